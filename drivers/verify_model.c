/* Model files: one forward and backward pass, every activation, route and gradient against the
 * file. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../planner/plan_check.h"
#include "verify_model.h"

/* A batch axis would be read as one stream. */
static int
check_stream(const struct k3i_verify_case *c, const char *name)
{
	const struct k3_st_tensor *t = k3_st_find(c->st, name);

	if (!t || t->n_dims == 1)
		return K3_OK;
	k3_error("drivers", "%s has %u dimensions; one is allowed", name, t->n_dims);
	return K3_EFORMAT;
}

static int
read_inputs(struct k3i_verify_case *c)
{
	size_t n_labels = 0, n_docs = 0;

	if (check_stream(c, "input.input_ids") != K3_OK ||
	    check_stream(c, "input.labels") != K3_OK || check_stream(c, "input.doc_ids") != K3_OK)
		return K3_EFORMAT;

	c->ids = k3i_verify_i32(c->st, "input.input_ids", &c->t);
	c->labels = k3i_verify_i32(c->st, "input.labels", &n_labels);
	c->docs = k3i_verify_i32(c->st, "input.doc_ids", &n_docs);
	if (!c->ids || !c->labels || !c->docs || n_labels != c->t || n_docs != c->t || c->t == 0) {
		k3_error("drivers",
			 "input.input_ids, input.labels and input.doc_ids must be there and "
			 "equally long (%zu, %zu, %zu)",
			 c->t, n_labels, n_docs);
		return K3_EFORMAT;
	}
	return k3i_verify_check_tokens(c->ids, c->labels, c->t, c->config.vocab);
}

/* Expert ids of the file as input of the routers. */
static int
read_forced(struct k3i_verify_case *c)
{
	size_t layers = c->config.layers > c->config.first_dense
				? c->config.layers - c->config.first_dense
				: 0,
	       n;
	char name[64];

	c->forced = calloc(layers + 1, sizeof(*c->forced));
	if (!c->forced)
		return K3_ENOMEM;
	for (size_t m = 0; m < layers; m++) {
		snprintf(name, sizeof(name), "router_ids.%zu", m + c->config.first_dense);
		c->forced[m] = k3i_verify_i32(c->st, name, &n);
		if (!c->forced[m] || n != c->t * c->config.top_k) {
			k3_error("drivers",
				 "%s is missing or not [%zu, %u]: routing can't be forced", name,
				 c->t, c->config.top_k);
			return K3_EFORMAT;
		}
		if (k3i_verify_check_ids(name, c->forced[m], n, c->config.experts) != K3_OK)
			return K3_EINVAL;
	}
	return K3_OK;
}

static int
load_weights(struct k3i_verify_case *c)
{
	struct k3_st *weights = NULL;
	int ret;

	if (!c->options->weights && k3_st_metadata(c->st, "weight_shapes")) {
		k3_error("drivers", "this case holds no weights: give them with --weights");
		return K3_EINVAL;
	}
	if (!k3_st_metadata(c->st, "weight_shapes"))
		return k3_checkpoint_load_params(c->session.store, c->st);
	K3_TRY(k3_st_open(&weights, c->options->weights));
	K3_TRY(k3_checkpoint_load_params(c->session.store, weights));
out:
	k3_st_close(weights);
	return ret;
}

static int
run(struct k3i_verify_case *c)
{
	struct k3_layout layout = {.n_tokens = c->t,
				   .doc_ids = c->docs,
				   .n_items = c->items.n,
				   .grid = c->items.grid,
				   .item_row = c->items.row};
	struct k3_microbatch what = {
		.backward = true, .first = true, .keep = true, .forced_routing = c->forced != NULL};
	struct k3_host_batch batch = {.ids = c->ids,
				      .labels = c->labels,
				      .forced = (const int32_t *const *)c->forced,
				      .item_pixels = c->items.pixels};
	double hyper[K3_HYPER_LEN] = {0};
	int ret;

	for (size_t i = 0; i < c->t; i++)
		hyper[K3_HYPER_VALID] += c->labels[i] >= 0;
	hyper[K3_HYPER_INV_N] = hyper[K3_HYPER_VALID] > 0 ? 1 / hyper[K3_HYPER_VALID] : 0;
	K3_TRY(k3_plan_microbatch(&c->plan, c->session.model, &layout, &what));
	K3_TRY(k3_plan_check(c->plan));
	K3_TRY(k3_submit_plan(c->session.store, c->plan, &batch, hyper));
	k3_runtime_drain(c->session.runtime);
out:
	return ret;
}

int
k3i_verify_model(const struct k3_st *st, const struct k3_verify_options *options,
		 struct k3_verify_report *report)
{
	struct k3i_verify_case c = {.st = st, .options = options, .report = report};
	struct k3_plan_options plan_options;
	int ret;

	k3_plan_options_init(&plan_options);
	plan_options.tile_tokens = options->tile_tokens;
	plan_options.balance = K3_BALANCE_NONE;
	plan_options.dtype = options->dtype;
	K3_TRY(k3i_verify_config(st, &c.config));
	report->layers = c.config.layers;
	if (options->activations)
		K3_TRY(k3_activations_parse(plan_options.activations, c.config.layers,
					    options->activations));
	plan_options.vision = c.config.vision.present;
	plan_options.vision_bands = options->bands;
	K3_TRY(read_inputs(&c));
	K3_TRY(k3i_verify_read_items(&c));
	if (options->forced_routing)
		K3_TRY(read_forced(&c));
	K3_TRY(k3_session_open(&c.session, &c.config, &plan_options, &options->runtime));
	K3_TRY(load_weights(&c));
	K3_TRY(run(&c));
	k3i_verify_compare(&c);
	K3_TRY(k3_runtime_trace_finish(c.session.runtime));
out:
	if (c.session.runtime)
		k3_runtime_drain(c.session.runtime);
	k3_plan_destroy(c.plan);
	k3_session_close(&c.session);
	for (size_t m = 0; c.forced && m + c.config.first_dense < c.config.layers; m++)
		free(c.forced[m]);
	free(c.forced);
	free(c.ids);
	free(c.labels);
	free(c.docs);
	k3i_verify_free_items(&c);
	return ret;
}
