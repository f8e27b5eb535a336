/* Operator files: KDA with ready-made q, k, v, g, beta, for every length of the file, in tiles that
 * hand their states on. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../planner/kda_op.h"
#include "verify.h"

struct ops_case {
	const struct k3_st *st;
	struct k3_verify_report *report;
	struct k3_session session;
	struct k3_plan *plan;
	struct k3_kda_op op;
	char prefix[32];
};

static double *
tensor(struct ops_case *c, const char *what, size_t want)
{
	char name[64];
	size_t n = 0;

	snprintf(name, sizeof(name), "%s%s", c->prefix, what);
	double *x = k3i_verify_f64(c->st, name, &n);
	if (x && n != want) {
		k3_error("drivers", "%s has %zu elements, %zu are expected", name, n, want);
		free(x);
		return NULL;
	}
	return x;
}

/* Writes columns [at, at + width) of every tile of an input from rows of x. */
static int
put(struct ops_case *c, const char *what, const double *const *part, const size_t *width,
    size_t n_parts)
{
	size_t row0 = 0;
	int ret = K3_OK;

	for (size_t i = 0; i < c->plan->n_tiles; i++) {
		int32_t datum = k3_plan_find(c->plan, what, -1, (int)i, -1);
		const struct k3_datum *d = &c->plan->data[datum];
		float *rows = malloc(d->rows * d->row_elems * sizeof(*rows) + 1);
		if (!rows)
			return K3_ENOMEM;
		for (size_t r = 0; r < d->rows; r++) {
			float *to = rows + r * d->row_elems;
			for (size_t p = 0; p < n_parts; to += width[p], p++)
				for (size_t k = 0; k < width[p]; k++)
					to[k] = (float)part[p][(row0 + r) * width[p] + k];
		}
		row0 += d->rows;
		ret = k3_store_floats_write(c->session.store, c->plan, (uint32_t)datum, rows);
		free(rows);
		if (ret != K3_OK)
			return ret;
	}
	return K3_OK;
}

static int
put_layouts(struct ops_case *c)
{
	size_t each = c->op.tile_tokens ? c->op.tile_tokens : c->op.t;
	int ret = K3_OK;

	for (size_t i = 0; i < c->plan->n_tiles; i++) {
		size_t rows = (i + 1) * each < c->op.t ? each : c->op.t - i * each;
		int32_t *l = calloc(k3_tile_layout_len(rows), sizeof(*l));
		if (!l)
			return K3_ENOMEM;
		l[K3_TL_ROWS] = l[K3_TL_VALID] = (int32_t)rows;
		l[K3_TL_SEGMENTS] = 1;
		l[K3_TL_ROW0] = (int32_t)(i * each);
		l[K3_TL_CONT_IN] = i > 0 || c->op.start_state;
		l[K3_TL_CONT_OUT] = 1;
		for (size_t r = 0; r < rows; r++) {
			l[K3_TL_HEAD + r] = 1;
			l[K3_TL_HEAD + rows + r] = (int32_t)r;
		}
		l[K3_TL_HEAD + 2 * rows + 1] = (int32_t)rows;
		ret = k3_store_datum_write(
			c->session.store, c->plan,
			(uint32_t)k3_plan_find(c->plan, "layout", -1, (int)i, -1), l);
		free(l);
		if (ret != K3_OK)
			return ret;
	}
	return K3_OK;
}

static int
put_state(struct ops_case *c, const char *what, int tile, const double *x)
{
	size_t n = c->op.heads * c->op.k * c->op.v;
	float *s = malloc(n * sizeof(*s));
	int ret = s ? K3_OK : K3_ENOMEM;

	for (size_t i = 0; s && i < n; i++)
		s[i] = (float)x[i];
	if (s)
		ret = k3_store_datum_write(c->session.store, c->plan,
					   (uint32_t)k3_plan_find(c->plan, what, -1, tile, -1), s);
	free(s);
	return ret;
}

/* Columns [at, at + width) of a result of all tiles as doubles [t, width]. */
static double *
get(struct ops_case *c, const char *what, size_t at, size_t width)
{
	double *out = malloc((c->op.t * width + 1) * sizeof(*out));
	size_t row0 = 0;

	K3_ASSERT(out != NULL);
	for (size_t i = 0; i < c->plan->n_tiles; i++) {
		int32_t datum = k3_plan_find(c->plan, what, -1, (int)i, -1);
		const struct k3_datum *d = &c->plan->data[datum];
		float *rows = malloc(d->rows * d->row_elems * sizeof(*rows) + 1);
		K3_ASSERT(rows && k3_store_floats_read(c->session.store, c->plan, (uint32_t)datum,
						       rows) == K3_OK);
		for (size_t r = 0; r < d->rows; r++)
			for (size_t k = 0; k < width; k++)
				out[(row0 + r) * width + k] =
					(double)rows[r * d->row_elems + at + k];
		row0 += d->rows;
		free(rows);
	}
	return out;
}

static void
compare_rows(struct ops_case *c, const char *cls, const char *what, size_t at, size_t width,
	     double tolerance)
{
	char name[64];
	double *want = tensor(c, cls, c->op.t * width), *got = get(c, what, at, width);

	snprintf(name, sizeof(name), "%s%s", c->prefix, cls);
	if (want)
		k3_verify_compare(c->report, cls, name, K3_PLACE_NONE, got, want, c->op.t * width,
				  tolerance, false);
	else
		k3_verify_missing(c->report, cls, name);
	free(want);
	free(got);
}

static void
compare_state(struct ops_case *c, const char *cls, const char *what, int tile, double tolerance)
{
	size_t n = c->op.heads * c->op.k * c->op.v;
	float *s = malloc(n * sizeof(*s));
	double *got = malloc(n * sizeof(*got)), *want = tensor(c, cls, n);
	char name[64];

	snprintf(name, sizeof(name), "%s%s", c->prefix, cls);
	K3_ASSERT(s && got);
	if (want &&
	    k3_store_datum_read(c->session.store, c->plan,
				(uint32_t)k3_plan_find(c->plan, what, -1, tile, -1), s) == K3_OK) {
		for (size_t i = 0; i < n; i++)
			got[i] = (double)s[i];
		k3_verify_compare(c->report, cls, name, K3_PLACE_NONE, got, want, n, tolerance,
				  false);
	} else {
		k3_verify_missing(c->report, cls, name);
	}
	free(s);
	free(got);
	free(want);
}

/* Inputs of a length; which states there are depends on the file. */
static int
run(struct ops_case *c)
{
	const struct k3_kda_op *op = &c->op;
	size_t h = op->heads, hk = h * op->k, hv = h * op->v;
	double *q = tensor(c, "q", op->t * hk), *k = tensor(c, "k", op->t * hk),
	       *v = tensor(c, "v", op->t * hv);
	double *g = tensor(c, "g", op->t * hk), *beta = tensor(c, "beta", op->t * h),
	       *dout = tensor(c, "do", op->t * hv);
	double *s0 = op->start_state ? tensor(c, "S0", hk * op->v) : NULL;
	double *dst = op->end_gradient ? tensor(c, "dST", hk * op->v) : NULL;
	int ret = K3_OK;

	if (!q || !k || !v || !g || !beta || !dout || (op->start_state && !s0) ||
	    (op->end_gradient && !dst)) {
		k3_error("drivers", "%s: q, k, v, g, beta and do must be there", c->prefix);
		K3_TRY(K3_EFORMAT);
	}
	K3_TRY(k3_plan_kda_op(&c->plan, c->session.model, op));
	K3_TRY(k3_store_prepare(c->session.store, c->plan));
	K3_TRY(put(c, "qkv", (const double *const[]){q, k, v}, (const size_t[]){hk, hk, hv}, 3));
	K3_TRY(put(c, "g", (const double *const[]){g}, &hk, 1));
	K3_TRY(put(c, "beta", (const double *const[]){beta}, &h, 1));
	K3_TRY(put(c, "do", (const double *const[]){dout}, &hv, 1));
	K3_TRY(put_layouts(c));
	if (s0)
		K3_TRY(put_state(c, "state", -1, s0));
	if (dst)
		K3_TRY(put_state(c, "dstate", (int)c->plan->n_tiles - 1, dst));
	K3_TRY(k3_submit_plan(c->session.store, c->plan, NULL, NULL));
	k3_runtime_drain(c->session.runtime);
out:
	free(q);
	free(k);
	free(v);
	free(g);
	free(beta);
	free(dout);
	free(s0);
	free(dst);
	return ret;
}

static int
run_length(struct ops_case *c)
{
	const struct k3_kda_op *op = &c->op;
	size_t hk = op->heads * op->k, hv = op->heads * op->v;
	int ret;

	K3_TRY(run(c));
	compare_rows(c, "o", "o", 0, hv, 2e-5);
	compare_state(c, "ST", "state", (int)c->plan->n_tiles - 1, 2e-5);
	compare_rows(c, "dq", "dqkv", 0, hk, 1e-4);
	compare_rows(c, "dk", "dqkv", hk, hk, 1e-4);
	compare_rows(c, "dv", "dqkv", 2 * hk, hv, 1e-4);
	compare_rows(c, "dg", "dg", 0, hk, 1e-4);
	compare_rows(c, "dbeta", "dbeta", 0, op->heads, 1e-4);
	if (op->start_state)
		compare_state(c, "dS0", "dstate", -1, 1e-4);
out:
	k3_plan_destroy(c->plan);
	c->plan = NULL;
	return ret;
}

/* Every T<T>.q of the file, with the shapes of its tensors. */
static int
all_lengths(struct ops_case *c)
{
	size_t found = 0;
	int ret = K3_OK;

	for (size_t i = 0; i < k3_st_count(c->st); i++) {
		const struct k3_st_tensor *q = k3_st_at(c->st, i);
		size_t length;
		char tail[4], name[64];
		if (sscanf(q->name, "T%zu.%3s", &length, tail) != 2 || strcmp(tail, "q") != 0)
			continue;
		snprintf(c->prefix, sizeof(c->prefix), "T%zu.", length);
		snprintf(name, sizeof(name), "T%zu.v", length);
		const struct k3_st_tensor *v = k3_st_find(c->st, name);
		if (!v || q->n_dims != 3 || v->n_dims != 3 || q->dims[0] != length ||
		    v->dims[0] != length || v->dims[1] != q->dims[1] || q->n_elems == 0 ||
		    v->n_elems == 0) {
			k3_error("drivers",
				 "%s and %s must be [%zu, heads, width], without a size of 0",
				 q->name, name, length);
			K3_TRY(K3_EFORMAT);
		}
		c->op.t = length;
		c->op.heads = q->dims[1];
		c->op.k = q->dims[2];
		c->op.v = v->dims[2];
		snprintf(name, sizeof(name), "T%zu.S0", length);
		c->op.start_state = k3_st_find(c->st, name) != NULL;
		snprintf(name, sizeof(name), "T%zu.dST", length);
		c->op.end_gradient = k3_st_find(c->st, name) != NULL;
		K3_TRY(run_length(c));
		found++;
	}
	if (found == 0) {
		k3_error("drivers",
			 "the file holds neither a model nor operator cases (T<length>.q)");
		ret = K3_EFORMAT;
	}
out:
	return ret;
}

int
k3i_verify_ops(const struct k3_st *st, const struct k3_verify_options *options,
	       struct k3_verify_report *report)
{
	struct ops_case c = {
		.st = st, .report = report, .op = {.tile_tokens = options->tile_tokens}};
	struct k3_plan_options plan_options;
	struct k3_config config;
	int ret;

	k3_plan_options_init(&plan_options);
	plan_options.dtype = options->dtype;
	K3_TRY(k3_config_preset(&config, "tiny"));
	K3_TRY(k3_session_open(&c.session, &config, &plan_options, &options->runtime));
	K3_TRY(all_lengths(&c));
	K3_TRY(k3_runtime_trace_finish(c.session.runtime));
out:
	k3_session_close(&c.session);
	return ret;
}
