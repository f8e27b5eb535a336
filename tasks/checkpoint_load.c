/* Reading weights into handles: every element of every parameter exactly once, or an error that
 * names the keys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "checkpoint.h"

enum { LISTED_KEYS = 10 };

struct complaints {
	size_t n;
	const char *what;
};

static void
complain(struct complaints *c, const char *key, const char *detail)
{
	if (c->n++ < LISTED_KEYS)
		k3_error("tasks", "%s: %s%s%s", c->what, key, *detail ? ": " : "", detail);
}

static void
shape_text(char *text, size_t bytes, uint32_t n, const uint64_t *dims)
{
	size_t at = (size_t)snprintf(text, bytes, "[");

	for (uint32_t i = 0; i < n && at < bytes; i++)
		at += (size_t)snprintf(text + at, bytes - at, "%s%llu", i ? ", " : "",
				       (unsigned long long)dims[i]);
	if (at < bytes)
		snprintf(text + at, bytes - at, "]");
}

/* The tensor's shape is the expected one; A_log may come without its padding, a vector with a
 * leading 1. */
static bool
shape_fits(const struct k3_st_tensor *got, const struct k3_ckpt_tensor *want)
{
	if (got->n_dims == want->n_dims &&
	    memcmp(got->dims, want->dims, got->n_dims * sizeof(uint64_t)) == 0)
		return true;
	return want->n_dims == 1 && got->n_dims == 1 && got->dims[0] == want->n_elems;
}

static const struct k3_st_tensor *
find(const struct k3_st *st, const struct k3_ckpt_tensor *t, const char *suffix,
     struct complaints *missing, struct complaints *shapes)
{
	char name[200], got[128], want[128], detail[300];

	snprintf(name, sizeof(name), "%s%s", t->name, suffix);
	const struct k3_st_tensor *f = k3_st_find(st, name);
	if (!f) {
		complain(missing, name, "");
		return NULL;
	}
	if (!shape_fits(f, t)) {
		shape_text(got, sizeof(got), f->n_dims, f->dims);
		shape_text(want, sizeof(want), t->n_dims, t->dims);
		snprintf(detail, sizeof(detail), "is %s, must be %s", got, want);
		complain(shapes, name, detail);
		return NULL;
	}
	return f;
}

/* Every key that the model needs is there in the right shape. */
static int
check_keys(const struct k3_params *ps, const struct k3_st *st, const char *suffix, bool buffers)
{
	struct complaints missing = {0, "missing key"}, shapes = {0, "wrong shape"};
	struct k3_ckpt_tensor t;

	for (size_t i = 0; i < k3_params_n_tensors(ps); i++) {
		k3_params_tensor(ps, i, &t);
		if (t.kind == K3_CKPT_PARAM || (buffers && t.kind == K3_CKPT_BIAS))
			find(st, &t, suffix, &missing, &shapes);
	}
	if (missing.n == 0 && shapes.n == 0)
		return K3_OK;
	k3_error("tasks", "%zu keys are missing, %zu have a wrong shape", missing.n, shapes.n);
	return K3_EFORMAT;
}

/* The copy that tasks read in the place of a block, if it has one. */
static int
write_copy(struct k3_store *store, uint32_t block, const float *data)
{
	int32_t copy = k3_store_model(store)->copy[block];

	return copy == K3_NO_DATUM || copy == (int32_t)block
		       ? K3_OK
		       : k3_store_floats_write(store, NULL, (uint32_t)copy, data);
}

/* One row block of a parameter from the tensors it overlaps. */
static int
load_block(struct k3_store *store, const struct k3_st *st, size_t param, size_t block,
	   uint32_t kind, const char *suffix)
{
	const struct k3_model *m = k3_store_model(store);
	const struct k3_params *ps = &m->params;
	uint32_t datum = m->param_block[param] + kind * m->n_blocks + (uint32_t)block;
	const struct k3_datum *d = &m->persist[datum];
	float *data = malloc(d->rows * d->row_elems * sizeof(*data) + 1);
	size_t filled = 0;
	int ret = data ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	for (size_t i = k3_params_tensor_at(ps, param, d->row0); filled < d->rows; i++) {
		struct k3_ckpt_tensor t;
		char name[200];
		K3_ASSERT(i < ps->first_tensor[param + 1]);
		k3_params_tensor(ps, i, &t);
		size_t first, n = k3_params_overlap(&t, d->row0, d->rows, &first);
		if (n == 0)
			continue;
		snprintf(name, sizeof(name), "%s%s", t.name, suffix);
		K3_TRY(k3_st_read_f32(
			k3_st_find(st, name), (uint64_t)(first - t.row0) * d->row_elems,
			(uint64_t)n * d->row_elems, data + (first - d->row0) * d->row_elems));
		filled += n;
	}
	K3_TRY(k3_store_floats_write(store, NULL, datum, data));
	if (kind == 0)
		K3_TRY(write_copy(store, datum, data));
out:
	free(data);
	return ret;
}

static int
load_all(struct k3_store *store, const struct k3_st *st, uint32_t kind, const char *suffix)
{
	const struct k3_model *m = k3_store_model(store);
	const struct k3_params *ps = &m->params;
	int ret;

	K3_TRY(k3_store_reserve(store, NULL, kind * m->n_blocks, m->n_blocks));
	for (uint32_t i = 0; kind == 0 && i < m->n_blocks; i++)
		if (m->copy[i] != K3_NO_DATUM)
			K3_TRY(k3_store_reserve(store, NULL, (uint32_t)m->copy[i], 1));
	for (size_t p = 0; p < ps->n; p++)
		for (size_t b = 0; b < ps->param[p].n_blocks; b++)
			K3_TRY(load_block(store, st, p, b, kind, suffix));
out:
	return ret;
}

static int
load_biases(struct k3_store *store, const struct k3_st *st)
{
	const struct k3_model *m = k3_store_model(store);
	float *bias = malloc((m->config.experts + 1) * sizeof(*bias));
	struct k3_ckpt_tensor t;
	int ret = bias ? K3_OK : K3_ENOMEM;

	for (size_t i = 0; ret == K3_OK && i < k3_params_n_tensors(&m->params); i++) {
		k3_params_tensor(&m->params, i, &t);
		if (t.kind != K3_CKPT_BIAS)
			continue;
		K3_TRY(k3_st_read_f32(k3_st_find(st, t.name), 0, t.n_elems, bias));
		K3_TRY(k3_store_datum_write(store, NULL, (uint32_t)m->bias[t.layer], bias));
	}
out:
	free(bias);
	return ret;
}

static int
by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Keys of the language model, and of the tower where there is one, that no part of this model
 * takes; others (a text model's tower, inverse frequencies) are passed over. */
static int
check_unknown(const struct k3_params *ps, const struct k3_st *st)
{
	size_t n = k3_params_n_tensors(ps), passed = 0;
	char **known = calloc(n, sizeof(*known));
	bool tower = k3_params_find(ps, K3_P_VIT_PATCH, -1) >= 0;
	struct complaints unknown = {0, "unknown key"};
	struct k3_ckpt_tensor t;
	int ret = known ? K3_OK : K3_ENOMEM;

	for (size_t i = 0; ret == K3_OK && i < n; i++) {
		k3_params_tensor(ps, i, &t);
		known[i] = strdup(t.name);
		if (!known[i])
			ret = K3_ENOMEM;
	}
	K3_TRY(ret);
	qsort(known, n, sizeof(*known), by_text);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const char *name = k3_st_at(st, i)->name;
		bool of_tower = strncmp(name, "vision_tower.", 13) == 0 ||
				strncmp(name, "mm_projector.", 13) == 0;
		if (strncmp(name, "language_model.", 15) != 0 && !(of_tower && tower)) {
			passed += of_tower;
			continue;
		}
		if (!strstr(name, "rotary_emb.inv_freq") &&
		    !bsearch(&name, known, n, sizeof(*known), by_text))
			complain(&unknown, name, "");
	}
	if (passed > 0)
		k3_info("tasks", "%zu tensors of the vision tower are not used by this text model",
			passed);
	if (unknown.n > 0) {
		k3_error("tasks", "%zu keys have no place in the model", unknown.n);
		ret = K3_EFORMAT;
	}
out:
	for (size_t i = 0; known && i < n; i++)
		free(known[i]);
	free(known);
	return ret;
}

int
k3_checkpoint_load_params(struct k3_store *store, const struct k3_st *st)
{
	const struct k3_params *ps = &k3_store_model(store)->params;
	int ret, unknown;

	ret = check_keys(ps, st, "", true);
	unknown = check_unknown(ps, st);
	K3_TRY(ret);
	K3_TRY(unknown);
	K3_TRY(load_all(store, st, 0, ""));
	K3_TRY(load_biases(store, st));
out:
	return ret;
}

int
k3_checkpoint_load_optimizer(struct k3_store *store, const char *path)
{
	const struct k3_params *ps = &k3_store_model(store)->params;
	struct k3_st *st = NULL;
	int ret;

	K3_TRY(k3_checkpoint_open_optimizer(&st, path));
	K3_TRY(check_keys(ps, st, "", false));
	K3_TRY(check_keys(ps, st, ".exp_avg", false));
	K3_TRY(check_keys(ps, st, ".exp_avg_sq", false));
	K3_TRY(load_all(store, st, 0, ""));
	K3_TRY(load_all(store, st, 2, ".exp_avg"));
	K3_TRY(load_all(store, st, 3, ".exp_avg_sq"));
out:
	k3_st_close(st);
	return ret;
}
