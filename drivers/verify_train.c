/* Training files: the optimizer steps replayed through microbatch and optimizer plans, and the
 * quantile rule by itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/schedule.h"
#include "../common/status.h"
#include "verify.h"
#include "verify_settings.h"

struct train_case {
	const struct k3_st *st;
	const struct k3_verify_options *options;
	struct k3_verify_report *report;
	struct k3_session session;
	struct k3_config config;
	struct k3i_verify_settings set;
	double *loss_sums;	    /* [steps, accumulation] */
	double *loss, *norm, *rate; /* [steps] */
	int32_t *tokens, *valid;    /* [steps, accumulation], [steps] */
};

/* Inputs of one microbatch; forced ids only when asked for. */
struct microbatch {
	int32_t *ids, *labels, *docs, **forced;
	size_t t, moe_layers;
};

static void
microbatch_free(struct microbatch *mb)
{
	for (size_t m = 0; mb->forced && m < mb->moe_layers; m++)
		free(mb->forced[m]);
	free(mb->forced);
	free(mb->ids);
	free(mb->labels);
	free(mb->docs);
}

static int32_t *
mb_tensor(const struct k3_st *st, size_t step, size_t m, const char *what, size_t *n)
{
	char name[128];

	snprintf(name, sizeof(name), "mb.%zu.%zu.%s", step, m, what);
	int32_t *out = k3i_verify_i32(st, name, n);
	if (!out)
		k3_error("drivers", "%s is missing", name);
	return out;
}

static int
microbatch_read(struct train_case *c, size_t step, size_t m, struct microbatch *mb)
{
	size_t n_labels = 0, n_docs = 0, n;
	char name[64];

	memset(mb, 0, sizeof(*mb));
	mb->moe_layers = c->config.layers > c->config.first_dense
				 ? c->config.layers - c->config.first_dense
				 : 0;
	mb->ids = mb_tensor(c->st, step, m, "input_ids", &mb->t);
	mb->labels = mb_tensor(c->st, step, m, "labels", &n_labels);
	mb->docs = mb_tensor(c->st, step, m, "doc_ids", &n_docs);
	if (!mb->ids || !mb->labels || !mb->docs || n_labels != mb->t || n_docs != mb->t ||
	    k3i_verify_check_tokens(mb->ids, mb->labels, mb->t, c->config.vocab) != K3_OK)
		return K3_EFORMAT;
	if (!c->options->forced_routing)
		return K3_OK;
	mb->forced = calloc(mb->moe_layers + 1, sizeof(*mb->forced));
	if (!mb->forced)
		return K3_ENOMEM;
	for (size_t l = 0; l < mb->moe_layers; l++) {
		snprintf(name, sizeof(name), "router_ids.%zu", l + c->config.first_dense);
		mb->forced[l] = mb_tensor(c->st, step, m, name, &n);
		if (!mb->forced[l] || n != mb->t * c->config.top_k ||
		    k3i_verify_check_ids(name, mb->forced[l], n, c->config.experts) != K3_OK)
			return K3_EFORMAT;
	}
	return K3_OK;
}

static int
run_microbatch(struct train_case *c, size_t step, size_t m, const struct microbatch *mb,
	       const double *hyper)
{
	struct k3_session *s = &c->session;
	struct k3_layout layout = {.n_tokens = mb->t, .doc_ids = mb->docs};
	struct k3_microbatch what = {.backward = true,
				     .first = m == 0,
				     .count = true,
				     .forced_routing = mb->forced != NULL};
	struct k3_host_batch batch = {
		.ids = mb->ids, .labels = mb->labels, .forced = (const int32_t *const *)mb->forced};
	const struct k3_plan *plan;
	double acc[K3_LOSS_LEN], before = 0;
	int ret;

	for (size_t i = 0; i < m; i++)
		before += c->loss_sums[step * c->set.accumulation + i];
	K3_TRY(k3_plan_cache_get(s->cache, &layout, &what, s->clock++, &plan));
	K3_TRY(k3_submit_plan(s->store, plan, &batch, m == 0 ? hyper : NULL));
	k3_runtime_drain(s->runtime);
	K3_TRY(k3_store_datum_read(s->store, NULL, s->model->loss_acc, acc));
	c->loss_sums[step * c->set.accumulation + m] = acc[K3_LOSS_SUM] - before;
	c->tokens[step * c->set.accumulation + m] = (int32_t)mb->t;
out:
	return ret;
}

/* Expert loads and biases after a step, one tensor per layer in the file. */
static void
compare_balance(struct train_case *c, size_t step)
{
	size_t e = c->config.experts, n;
	const struct k3_model *model = c->session.model;
	char name[64], label[112];

	for (uint32_t l = c->config.first_dense; l < c->config.layers; l++) {
		if (model->balance[l] == K3_NO_DATUM)
			continue;
		int32_t *count = malloc(model->persist[model->balance[l]].bytes);
		float *bias = malloc((e + 1) * sizeof(*bias));
		double *got = malloc((e + 1) * sizeof(*got));
		K3_ASSERT(count && bias && got);
		k3_store_datum_read(c->session.store, NULL, (uint32_t)model->balance[l], count);
		k3_store_datum_read(c->session.store, NULL, (uint32_t)model->bias[l], bias);
		for (size_t i = 0; i < e; i++)
			got[i] = (double)bias[i];
		snprintf(name, sizeof(name), "step.router_counts.%u", l);
		snprintf(label, sizeof(label), "%s step %zu", name, step);
		int32_t *want_count = k3i_verify_i32(c->st, name, &n);
		if (want_count && n == c->set.steps * e)
			k3_verify_compare_ints(c->report, "step.router_counts", label,
					       K3_PLACE_LAYERS + (int)l, count,
					       want_count + step * e, e);
		else
			k3_verify_missing(c->report, "step.router_counts", label);
		snprintf(name, sizeof(name), "step.bias.%u", l);
		snprintf(label, sizeof(label), "%s step %zu", name, step);
		double *want = k3i_verify_f64(c->st, name, &n);
		if (want && n == c->set.steps * e)
			k3_verify_compare(c->report, "step.bias", label, K3_PLACE_LAYERS + (int)l,
					  got, want + step * e, e, 2e-6, false);
		else
			k3_verify_missing(c->report, "step.bias", label);
		free(want);
		free(want_count);
		free(got);
		free(bias);
		free(count);
	}
}

static int
run_step(struct train_case *c, size_t step)
{
	double hyper[K3_HYPER_LEN] = {0}, out[K3_OUT_LEN];
	struct microbatch *mb = calloc(c->set.accumulation, sizeof(*mb));
	const struct k3_plan *optimizer;
	int ret = mb ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	for (size_t m = 0; m < c->set.accumulation; m++) {
		K3_TRY(microbatch_read(c, step, m, &mb[m]));
		for (size_t i = 0; i < mb[m].t; i++)
			hyper[K3_HYPER_VALID] += mb[m].labels[i] >= 0;
	}
	c->rate[step] = c->set.lr * k3_lr_factor((long long)step, (long long)c->set.steps,
						 (long long)c->set.warmup, c->set.decay_ratio,
						 c->set.lr_floor);
	c->valid[step] = (int32_t)hyper[K3_HYPER_VALID];
	hyper[K3_HYPER_INV_N] = hyper[K3_HYPER_VALID] > 0 ? 1 / hyper[K3_HYPER_VALID] : 0;
	hyper[K3_HYPER_LR] = c->rate[step];
	hyper[K3_HYPER_STEP] = (double)(step + 1);
	for (size_t m = 0; m < c->set.accumulation; m++) {
		k3_runtime_step(c->session.runtime, (int32_t)step + 1, (int32_t)m);
		K3_TRY(run_microbatch(c, step, m, &mb[m], hyper));
	}
	k3_runtime_step(c->session.runtime, (int32_t)step + 1, -1);
	K3_TRY(k3_session_optimizer(&c->session, (uint32_t)step & 1, &optimizer));
	K3_TRY(k3_submit_plan(c->session.store, optimizer, NULL, NULL));
	k3_runtime_drain(c->session.runtime);
	K3_TRY(k3_store_datum_read(c->session.store, NULL, c->session.model->step_out[step & 1],
				   out));
	c->loss[step] = out[K3_OUT_VALID] > 0 ? out[K3_OUT_LOSS_SUM] / out[K3_OUT_VALID] : 0;
	c->norm[step] = out[K3_OUT_NORM];
	compare_balance(c, step);
out:
	for (size_t m = 0; mb && m < c->set.accumulation; m++)
		microbatch_free(&mb[m]);
	free(mb);
	return ret;
}

/* Per-step values: the class's figure is the largest relative error of a step. */
static void
compare_series(struct train_case *c, const char *name, const double *got, size_t n,
	       double tolerance)
{
	size_t n_want;
	double *want = k3i_verify_f64(c->st, name, &n_want);
	char label[80];

	if (!want || n_want != n) {
		k3_verify_missing(c->report, name, name);
		free(want);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		snprintf(label, sizeof(label), "%s[%zu]", name, i);
		k3_verify_compare_one(c->report, name, label, got[i], want[i], tolerance);
	}
	free(want);
}

static void
compare_counts(struct train_case *c, const char *name, const int32_t *got, size_t n)
{
	size_t n_want;
	int32_t *want = k3i_verify_i32(c->st, name, &n_want);

	if (!want || n_want != n)
		k3_verify_missing(c->report, name, name);
	else
		k3_verify_compare_ints(c->report, name, name, K3_PLACE_NONE, got, want, n);
	free(want);
}

/* One final tensor of a kind; final.update compares the way that the weights went. */
static void
compare_final(struct train_case *c, const struct k3_ckpt_tensor *t, uint32_t kind, const char *cls,
	      const char *infix, double tolerance)
{
	char name[240], update[260];
	size_t n, n_want = 0, n_start = 0;
	double *got = k3i_verify_tensor(c->session.store, t, kind, &n);

	snprintf(name, sizeof(name), "final.%s%s", infix, t->name);
	double *want = k3i_verify_f64(c->st, name, &n_want);
	bool zero = strstr(t->name, ".experts.") != NULL;
	if (!got || !want || n_want != n) {
		k3_verify_missing(c->report, cls, name);
	} else {
		k3_verify_compare(c->report, cls, name,
				  k3i_verify_place(&c->session.model->params, t), got, want, n,
				  tolerance, zero && kind != 0);
		double *start = kind == 0 ? k3i_verify_f64(c->st, t->name, &n_start) : NULL;
		if (start && n_start == n) {
			for (size_t i = 0; i < n; i++) {
				got[i] -= start[i];
				want[i] -= start[i];
			}
			snprintf(update, sizeof(update), "final.update.%s", t->name);
			k3_verify_compare(c->report, "final.update", update,
					  k3i_verify_place(&c->session.model->params, t), got, want,
					  n, 1e-3, false);
		}
		free(start);
	}
	free(got);
	free(want);
}

static void
compare_final_bias(struct train_case *c, const struct k3_ckpt_tensor *t)
{
	char name[240];
	size_t n_want = 0, e = c->config.experts;
	float *bias = malloc((e + 1) * sizeof(*bias));
	double *got = malloc((e + 1) * sizeof(*got));

	snprintf(name, sizeof(name), "final.%s", t->name);
	double *want = k3i_verify_f64(c->st, name, &n_want);
	K3_ASSERT(bias && got);
	if (want && n_want == e &&
	    k3_store_datum_read(c->session.store, NULL, (uint32_t)c->session.model->bias[t->layer],
				bias) == K3_OK) {
		for (size_t i = 0; i < e; i++)
			got[i] = (double)bias[i];
		k3_verify_compare(c->report, "final.bias", name,
				  k3i_verify_place(&c->session.model->params, t), got, want, e,
				  2e-6, false);
	} else {
		k3_verify_missing(c->report, "final.bias", name);
	}
	free(want);
	free(got);
	free(bias);
}

static void
compare_all(struct train_case *c)
{
	const struct k3_params *ps = &c->session.model->params;

	compare_series(c, "step.loss", c->loss, c->set.steps, 2e-6);
	compare_series(c, "step.grad_norm", c->norm, c->set.steps, 3e-4);
	compare_series(c, "step.lr", c->rate, c->set.steps, 1e-12);
	compare_series(c, "step.loss_sums", c->loss_sums, c->set.steps * c->set.accumulation, 2e-6);
	compare_counts(c, "step.tokens", c->tokens, c->set.steps * c->set.accumulation);
	compare_counts(c, "step.valid_labels", c->valid, c->set.steps);
	for (size_t i = 0; i < k3_params_n_tensors(ps); i++) {
		struct k3_ckpt_tensor t;
		k3_params_tensor(ps, i, &t);
		if (t.kind == K3_CKPT_BIAS)
			compare_final_bias(c, &t);
		if (t.kind != K3_CKPT_PARAM)
			continue;
		compare_final(c, &t, 0, "final.param", "", 1e-4);
		compare_final(c, &t, 2, "final.exp_avg", "exp_avg.", 1e-3);
		compare_final(c, &t, 3, "final.exp_avg_sq", "exp_avg_sq.", 1e-3);
	}
}

/* One quantile case: the scores through the counting and the bias kernels. */
static int
quantile_case(struct train_case *c, const char *which)
{
	char name[64];
	size_t n_scores, n_bias, n_k, n_bins, n_hist = 0, n_out = 0;
	int ret = K3_OK;

	snprintf(name, sizeof(name), "quantile.scores.%s", which);
	double *scores = k3i_verify_f64(c->st, name, &n_scores);
	snprintf(name, sizeof(name), "quantile.bias_in.%s", which);
	double *bias_in = k3i_verify_f64(c->st, name, &n_bias);
	snprintf(name, sizeof(name), "quantile.k.%s", which);
	int32_t *k = k3i_verify_i32(c->st, name, &n_k);
	snprintf(name, sizeof(name), "quantile.nbins.%s", which);
	int32_t *bins = k3i_verify_i32(c->st, name, &n_bins);
	snprintf(name, sizeof(name), "quantile.hist.%s", which);
	int32_t *want_hist = k3i_verify_i32(c->st, name, &n_hist);
	snprintf(name, sizeof(name), "quantile.bias_out.%s", which);
	double *want_bias = k3i_verify_f64(c->st, name, &n_out);
	if (!scores || !bias_in || !k || !bins || !want_hist || !want_bias || n_bias == 0 ||
	    n_k != 1 || n_bins != 1 || n_scores % n_bias != 0 || k[0] < 1 ||
	    (size_t)k[0] > n_bias || bins[0] < 1 || n_hist != n_bias * (size_t)bins[0] ||
	    n_out != n_bias) {
		k3_error("drivers", "quantile case %s is incomplete or its shapes do not fit",
			 which);
		K3_TRY(K3_EFORMAT);
	}
	size_t e = n_bias, t = n_scores / e;
	double *got = malloc((e + 1) * sizeof(*got));
	int32_t *hist = malloc((n_hist + 1) * sizeof(*hist));
	ret = got && hist ? k3i_verify_quantile(scores, bias_in, t, e, (size_t)k[0],
						(size_t)bins[0], hist, got)
			  : K3_ENOMEM;
	if (ret == K3_OK) {
		snprintf(name, sizeof(name), "quantile.hist.%s", which);
		k3_verify_compare_ints(c->report, "quantile.hist", name, K3_PLACE_NONE, hist,
				       want_hist, n_hist);
		snprintf(name, sizeof(name), "quantile.bias_out.%s", which);
		k3_verify_compare(c->report, "quantile.bias_out", name, K3_PLACE_NONE, got,
				  want_bias, e, 1e-6, false);
	}
	free(got);
	free(hist);
out:
	free(scores);
	free(bias_in);
	free(k);
	free(bins);
	free(want_hist);
	free(want_bias);
	return ret;
}

/* Every quantile.scores.X of the file. */
static int
quantile_cases(struct train_case *c)
{
	static const char prefix[] = "quantile.scores.";
	int ret = K3_OK;

	for (size_t i = 0; i < k3_st_count(c->st); i++) {
		const char *name = k3_st_at(c->st, i)->name;
		if (strncmp(name, prefix, sizeof(prefix) - 1) == 0)
			K3_TRY(quantile_case(c, name + sizeof(prefix) - 1));
	}
out:
	return ret;
}

int
k3i_verify_train(const struct k3_st *st, const struct k3_verify_options *options,
		 struct k3_verify_report *report)
{
	struct train_case c = {.st = st, .options = options, .report = report};
	int ret;

	K3_TRY(k3i_verify_config(st, &c.config));
	K3_TRY(k3i_verify_settings(st, options, &c.set));
	if (options->activations)
		K3_TRY(k3_activations_parse(c.set.plan_options.activations, c.config.layers,
					    options->activations));
	size_t n = c.set.steps * c.set.accumulation;
	c.loss_sums = calloc(n, sizeof(double));
	c.loss = calloc(3 * c.set.steps, sizeof(double));
	c.tokens = calloc(n, sizeof(int32_t));
	c.valid = calloc(c.set.steps, sizeof(int32_t));
	if (!c.loss_sums || !c.loss || !c.tokens || !c.valid)
		K3_TRY(K3_ENOMEM);
	c.norm = c.loss + c.set.steps;
	c.rate = c.norm + c.set.steps;
	K3_TRY(k3_session_open(&c.session, &c.config, &c.set.plan_options, &options->runtime));
	K3_TRY(k3_session_init(&c.session, 0));
	K3_TRY(k3_checkpoint_load_params(c.session.store, st));
	for (size_t step = 0; step < c.set.steps; step++)
		K3_TRY(run_step(&c, step));
	compare_all(&c);
	K3_TRY(quantile_cases(&c));
	K3_TRY(k3_runtime_trace_finish(c.session.runtime));
out:
	k3_session_close(&c.session);
	free(c.loss_sums);
	free(c.loss);
	free(c.tokens);
	free(c.valid);
	return ret;
}
