/* Results of a model file against those of the task graph: activations, routes, losses,
 * gradients.  The trap: a file that lacks what its format promises, or holds what nothing
 * compares, must not look right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "verify_model.h"

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
	const struct k3_st_tensor *g = k3_st_find(c->st, name);
	if (g &&
	    (g->n_dims != t->n_dims || memcmp(g->dims, t->dims, t->n_dims * sizeof(*g->dims)))) {
		k3_error("drivers", "%s has not the shape of its parameter", name);
		k3_verify_missing(c->report, "grad.param", name);
		free(want);
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
static void
require(struct k3i_verify_case *c, const char *cls, int layer)
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
		require(c, whole[i], -1);
	for (int l = 0; l < (int)c->config.layers; l++) {
		require(c, "prefix", l);
		if (!digest)
			require(c, "grad.prefix", l);
		for (size_t i = 0; i < 3 && (uint32_t)l >= c->config.first_dense; i++)
			require(c, routes[i], l);
	}
}

void
k3i_verify_compare(struct k3i_verify_case *c)
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
			k3i_verify_routes(c, l);
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
	report_uncompared(c);
}
