/* Model files: one forward and backward pass, every activation, route and gradient against the
 * file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "../planner/plan_check.h"
#include "verify_model.h"

static int
read_inputs(struct k3i_verify_case *c)
{
	size_t n_labels = 0, n_docs = 0;

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

/* An activation of the file, if the file has it. */
static void
compare_activation(struct k3i_verify_case *c, const char *cls, const char *file_name,
		   const char *what, int layer, int place, double tolerance)
{
	size_t n_want = 0, n_got = 0;
	double *want = k3i_verify_f64(c->st, file_name, &n_want), *got;

	if (!want)
		return;
	got = k3i_verify_gather(c, what, layer, &n_got);
	if (!got || n_got != n_want)
		k3_verify_missing(c->report, cls, file_name);
	else
		k3_verify_compare(c->report, cls, file_name, place, got, want, n_want, tolerance,
				  false);
	free(want);
	free(got);
}

static void
compare_losses(struct k3i_verify_case *c)
{
	size_t n, n_got;
	double *want = k3i_verify_f64(c->st, "token_loss", &n),
	       *got = k3i_verify_gather(c, "tstat", -1, &n_got), acc[K3_LOSS_LEN];

	if (want && got && n == c->t && n_got == 2 * n) {
		for (size_t i = 0; i < n; i++)
			got[i] = got[2 * i];
		/* an ignored row has no loss here, whatever the file says */
		for (size_t i = 0; i < n; i++)
			if (c->labels[i] < 0)
				want[i] = got[i] = 0;
		k3_verify_compare(c->report, "token_loss", "token_loss", K3_PLACE_HEAD, got, want,
				  n, 2e-5, false);
	} else if (want) {
		k3_verify_missing(c->report, "token_loss", "token_loss");
	}
	free(want);
	free(got);
	want = k3i_verify_f64(c->st, "loss", &n);
	/* without labels the loss is 0: there is nothing to divide by */
	if (want && n == 1 &&
	    k3_store_datum_read(c->session.store, NULL, c->session.model->loss_acc, acc) == K3_OK)
		k3_verify_compare_one(c->report, "loss", "loss",
				      acc[K3_LOSS_SUM] /
					      (acc[K3_LOSS_VALID] > 0 ? acc[K3_LOSS_VALID] : 1),
				      want[0], 1e-6);
	free(want);
}

/* Routes of one tile into arrays over all tokens: ids ascending with their weights, and the margin.
 */
static void
take_routes(struct k3i_verify_case *c, const struct k3_datum *d, const int32_t *route,
	    const float *routew, const float *bias, int32_t *ids, double *weights, double *margin)
{
	size_t e = c->config.experts, k = c->config.top_k;
	const struct k3_tile *tile = &c->plan->tile[d->tile];
	const float *score = k3_routew_scores(routew, tile->rows, k),
		    *cut = k3_routew_cut(routew, e, tile->rows, k);

	for (size_t r = 0; r < tile->rows && tile->row0 + r < c->t; r++) {
		const int32_t *from = k3_route_ids(route, e) + r * k;
		size_t at = (tile->row0 + r) * k;
		double least = INFINITY;
		for (size_t j = 0; j < k; j++) {
			size_t p = j;
			double value =
				(double)score[r * e + (size_t)from[j]] + (double)bias[from[j]];
			least = value < least ? value : least;
			for (; p > 0 && ids[at + p - 1] > from[j]; p--) {
				ids[at + p] = ids[at + p - 1];
				weights[at + p] = weights[at + p - 1];
			}
			ids[at + p] = from[j];
			weights[at + p] = (double)routew[r * k + j];
		}
		margin[tile->row0 + r] = least - (double)cut[r];
	}
}

static void
compare_routes(struct k3i_verify_case *c, int l)
{
	size_t k = c->config.top_k, n;
	int32_t *ids = calloc(c->t * k + 1, sizeof(*ids));
	double *weights = calloc(c->t * k + 1, sizeof(*weights)),
	       *margin = calloc(c->t + 1, sizeof(*margin));
	float *bias = malloc((c->config.experts + 1) * sizeof(*bias));
	char name[64];

	K3_ASSERT(ids && weights && margin && bias);
	k3_store_datum_read(c->session.store, NULL, (uint32_t)c->session.model->bias[l], bias);
	for (size_t i = 0; i < c->plan->n_tiles; i++) {
		int32_t a = k3_plan_find(c->plan, "route", l, (int)i, -1),
			b = k3_plan_find(c->plan, "routew", l, (int)i, -1);
		int32_t *route = malloc(c->plan->data[a].bytes + 1);
		float *routew = malloc(c->plan->data[b].bytes + 1);
		K3_ASSERT(route && routew);
		if (k3_store_datum_read(c->session.store, c->plan, (uint32_t)a, route) == K3_OK &&
		    k3_store_datum_read(c->session.store, c->plan, (uint32_t)b, routew) == K3_OK)
			take_routes(c, &c->plan->data[a], route, routew, bias, ids, weights,
				    margin);
		free(route);
		free(routew);
	}
	snprintf(name, sizeof(name), "router_ids.%d", l);
	int32_t *want_ids = k3i_verify_i32(c->st, name, &n);
	if (want_ids && n == c->t * k)
		k3_verify_compare_ints(c->report, "router_ids", name, K3_PLACE_LAYERS + l, ids,
				       want_ids, n);
	snprintf(name, sizeof(name), "router_weights.%d", l);
	double *want = k3i_verify_f64(c->st, name, &n);
	if (want && n == c->t * k)
		k3_verify_compare(c->report, "router_weights", name, K3_PLACE_LAYERS + l, weights,
				  want, n, 2e-5, false);
	free(want);
	snprintf(name, sizeof(name), "router_margin.%d", l);
	want = k3i_verify_f64(c->st, name, &n);
	if (want && n == c->t)
		k3_verify_compare(c->report, "router_margin", name, K3_PLACE_LAYERS + l, margin,
				  want, n, 2e-5, false);
	free(want);
	free(want_ids);
	free(ids);
	free(weights);
	free(margin);
	free(bias);
}

/* Digest of a large gradient: norm, signed dot product, largest value, samples. */
static void
compare_digest(struct k3i_verify_case *c, const struct k3_ckpt_tensor *t, const double *got,
	       size_t n, const double *want)
{
	char name[220];
	double norm = 0, dot = 0, most = 0;
	size_t n_sample;

	snprintf(name, sizeof(name), "sign.%s", t->name);
	uint64_t key = k3_rng_key(name, 1);
	for (size_t i = 0; i < n; i++) {
		norm += got[i] * got[i];
		dot += k3_rng_uniform(key, i) < 0.5 ? -got[i] : got[i];
		most = fabs(got[i]) > most ? fabs(got[i]) : most;
	}
	norm = sqrt(norm);
	snprintf(name, sizeof(name), "gdigest.%s", t->name);
	k3_verify_compare_one(c->report, "gdigest", name, norm, want[0], 1e-4);
	/* the dot product cancels: its error is measured by the norm */
	k3_verify_compare_one(c->report, "gdigest.dot", name,
			      1 + (dot - want[1]) / (want[0] > 0 ? want[0] : 1), 1, 3e-4);
	k3_verify_compare_one(c->report, "gdigest.max", name, most, want[2], 1e-3);
	snprintf(name, sizeof(name), "gsample.%s", t->name);
	double *samples = k3i_verify_f64(c->st, name, &n_sample);
	if (!samples) {
		k3_verify_missing(c->report, "gsample", name);
		return;
	}
	double *mine = malloc((n_sample + 1) * sizeof(*mine));
	K3_ASSERT(mine != NULL);
	snprintf(name, sizeof(name), "digest.%s", t->name);
	key = k3_rng_key(name, 1);
	for (size_t i = 0; i < n_sample; i++)
		mine[i] = got[(size_t)floor(k3_rng_uniform(key, i) * (double)n)];
	k3_verify_compare(c->report, "gsample", name,
			  k3i_verify_place(&c->session.model->params, t), mine, samples, n_sample,
			  1e-4, false);
	free(mine);
	free(samples);
}

static void
compare_gradient(struct k3i_verify_case *c, const struct k3_ckpt_tensor *t)
{
	char name[220], digest[220];
	size_t n, n_want = 0, n_digest = 0;

	snprintf(name, sizeof(name), "grad.%s", t->name);
	snprintf(digest, sizeof(digest), "gdigest.%s", t->name);
	double *want = k3i_verify_f64(c->st, name, &n_want),
	       *sums = want ? NULL : k3i_verify_f64(c->st, digest, &n_digest);
	if (!want && !sums) {
		k3_verify_missing(c->report, "grad.param", name);
		return;
	}
	/* layer 0's unused pair is no parameter: its gradient is 0 */
	double *got = t->kind == K3_CKPT_PARAM ? k3i_verify_tensor(c->session.store, t, 1, &n)
					       : calloc(t->n_elems + 1, sizeof(*got));
	if (t->kind != K3_CKPT_PARAM)
		n = t->n_elems;
	bool zero = t->kind != K3_CKPT_PARAM || strstr(t->name, ".experts.") != NULL;
	if (!got || (want && n_want != n))
		k3_verify_missing(c->report, "grad.param", name);
	else if (sums && n_digest != 3)
		k3_verify_missing(c->report, "gdigest", digest);
	else if (want)
		k3_verify_compare(c->report, "grad.param", name,
				  k3i_verify_place(&c->session.model->params, t), got, want, n,
				  1e-4, zero);
	else
		compare_digest(c, t, got, n, sums);
	free(got);
	free(want);
	free(sums);
}

/* Inputs and weights are no results; samples go with their digest. */
static bool
is_result(const char *name)
{
	static const char *const other[] = {"input.", "language_model.", "vision_tower.",
					    "mm_projector.", "gsample."};

	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
		if (strncmp(name, other[i], strlen(other[i])) == 0)
			return false;
	return true;
}

/* What the file expects and nothing above compared (no such layer, another shape) is missing here.
 */
static void
report_uncompared(struct k3i_verify_case *c)
{
	for (size_t i = 0; i < k3_st_count(c->st); i++) {
		const char *name = k3_st_at(c->st, i)->name;
		if (is_result(name) && !k3_verify_compared(c->report, name))
			k3_verify_missing(c->report, "not compared", name);
	}
}

/* A result that the format promises and the file lacks: a damaged file must not look complete. */
void
k3i_verify_require(struct k3i_verify_case *c, const char *cls, int layer)
{
	char name[64];

	if (layer < 0)
		snprintf(name, sizeof(name), "%s", cls);
	else
		snprintf(name, sizeof(name), "%s.%d", cls, layer);
	if (!k3_st_find(c->st, name))
		k3_verify_missing(c->report, cls, name);
}

static void
require_results(struct k3i_verify_case *c)
{
	static const char *const whole[] = {"embeddings", "logits", "token_loss", "loss",
					    "grad.embeddings"};
	static const char *const routes[] = {"router_ids", "router_weights", "router_margin"};
	/* with digests the gradients of the prefixes are left out */
	const char *gradients = k3_st_metadata(c->st, "gradients");
	bool digest = gradients && strcmp(gradients, "digest") == 0;

	for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
		k3i_verify_require(c, whole[i], -1);
	for (int l = 0; l < (int)c->config.layers; l++) {
		k3i_verify_require(c, "prefix", l);
		if (!digest)
			k3i_verify_require(c, "grad.prefix", l);
		for (size_t i = 0; i < 3 && (uint32_t)l >= c->config.first_dense; i++)
			k3i_verify_require(c, routes[i], l);
	}
}

static void
compare_all(struct k3i_verify_case *c)
{
	const struct k3_params *ps = &c->session.model->params;
	char name[64];

	require_results(c);
	k3i_verify_vision_forward(c);
	compare_activation(c, "embeddings", "embeddings", "embeddings", -1, K3_PLACE_EMBEDDINGS,
			   c->config.vision.present ? 5e-6 : 0);
	for (int l = 0; l < (int)c->config.layers; l++) {
		snprintf(name, sizeof(name), "prefix.%d", l);
		compare_activation(c, "prefix", name, "prefix", l, K3_PLACE_LAYERS + l, 2e-5);
		if ((uint32_t)l >= c->config.first_dense)
			compare_routes(c, l);
	}
	compare_activation(c, "logits", "logits", "logits", -1, K3_PLACE_HEAD, 2e-5);
	compare_losses(c);
	compare_activation(c, "grad.embeddings", "grad.embeddings", "dembeddings", -1,
			   K3_PLACE_EMBEDDINGS, 1e-4);
	for (int l = 0; l < (int)c->config.layers; l++) {
		snprintf(name, sizeof(name), "grad.prefix.%d", l);
		compare_activation(c, "grad.prefix", name, "dprefix", l, K3_PLACE_LAYERS + l, 1e-4);
	}
	k3i_verify_vision_backward(c);
	for (size_t i = 0; i < k3_params_n_tensors(ps); i++) {
		struct k3_ckpt_tensor t;
		k3_params_tensor(ps, i, &t);
		if (t.kind != K3_CKPT_BIAS)
			compare_gradient(c, &t);
	}
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
	compare_all(&c);
	report_uncompared(&c);
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
