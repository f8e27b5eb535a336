/* Writing checkpoints.  The trap: a parameter is cut in row blocks and an expert's tensor is a part
 * of a stack, so a tensor is put together from the blocks it overlaps; one block is in memory at a
 * time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"
#include "checkpoint.h"

static int
declare(struct k3_st_writer *w, const struct k3_ckpt_tensor *t, const char *suffix)
{
	char name[200];

	snprintf(name, sizeof(name), "%s%s", t->name, suffix);
	return k3_st_writer_declare(w, name, K3_F32, t->n_dims, t->dims);
}

static uint64_t
stored_elems(const struct k3_ckpt_tensor *t)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->n_dims; i++)
		n *= t->dims[i];
	return n;
}

/* Elements that no block holds: constants, the padding of A_log. */
static int
put_fill(struct k3_st_writer *w, const char *name, uint64_t first, uint64_t n, float value)
{
	float *data = malloc((n ? n : 1) * sizeof(*data));
	int ret = data ? K3_OK : K3_ENOMEM;

	for (uint64_t i = 0; data && i < n; i++)
		data[i] = value;
	if (ret == K3_OK && n > 0)
		ret = k3_st_writer_put_f32(w, name, first, n, data);
	free(data);
	return ret;
}

/* Rows of one block that belong to the tensor. */
static int
put_block(struct k3_st_writer *w, const struct k3_ckpt_tensor *t, const char *suffix,
	  const struct k3_datum *d, const float *block)
{
	size_t first, n = k3_params_overlap(t, d->row0, d->rows, &first);
	char name[200];

	if (n == 0)
		return K3_OK;
	snprintf(name, sizeof(name), "%s%s", t->name, suffix);
	return k3_st_writer_put_f32(w, name, (uint64_t)(first - t->row0) * d->row_elems,
				    (uint64_t)n * d->row_elems,
				    block + (first - d->row0) * d->row_elems);
}

/* All tensors of one parameter, block by block; kind 0 parameters, 2 and 3 moments. */
static int
put_param(struct k3_store *store, struct k3_st_writer *w, size_t param, uint32_t kind,
	  const char *suffix)
{
	const struct k3_model *m = k3_store_model(store);
	const struct k3_params *ps = &m->params;
	struct k3_ckpt_tensor t;
	float *block = NULL;
	int ret = K3_OK;

	for (size_t b = 0; b < ps->param[param].n_blocks; b++) {
		uint32_t datum = m->param_block[param] + kind * m->n_blocks + (uint32_t)b;
		const struct k3_datum *d = &m->persist[datum];
		free(block);
		block = malloc(d->rows * d->row_elems * sizeof(*block) + 1);
		if (!block)
			K3_TRY(K3_ENOMEM);
		K3_TRY(k3_store_floats_read(store, NULL, datum, block));
		for (size_t i = k3_params_tensor_at(ps, param, d->row0);
		     i < ps->first_tensor[param + 1]; i++) {
			k3_params_tensor(ps, i, &t);
			if (t.kind != K3_CKPT_PARAM)
				continue;
			if (t.row0 >= d->row0 + d->rows)
				break;
			K3_TRY(put_block(w, &t, suffix, d, block));
		}
	}
	for (size_t i = ps->first_tensor[param]; i < ps->first_tensor[param + 1]; i++) {
		char name[200];
		k3_params_tensor(ps, i, &t);
		snprintf(name, sizeof(name), "%s%s", t.name, suffix);
		if (t.kind == K3_CKPT_PARAM)
			K3_TRY(put_fill(w, name, t.n_elems, stored_elems(&t) - t.n_elems, 0.0f));
	}
out:
	free(block);
	return ret;
}

static int
put_buffers(struct k3_store *store, struct k3_st_writer *w)
{
	const struct k3_model *m = k3_store_model(store);
	float *bias = malloc((m->config.experts + 1) * sizeof(*bias));
	struct k3_ckpt_tensor t;
	int ret = bias ? K3_OK : K3_ENOMEM;

	for (size_t i = 0; ret == K3_OK && i < k3_params_n_tensors(&m->params); i++) {
		k3_params_tensor(&m->params, i, &t);
		if (t.kind == K3_CKPT_ONES || t.kind == K3_CKPT_ZEROS)
			K3_TRY(put_fill(w, t.name, 0, t.n_elems,
					t.kind == K3_CKPT_ONES ? 1.0f : 0.0f));
		if (t.kind != K3_CKPT_BIAS)
			continue;
		K3_TRY(k3_store_datum_read(store, NULL, (uint32_t)m->bias[t.layer], bias));
		K3_TRY(k3_st_writer_put_f32(w, t.name, 0, t.n_elems, bias));
	}
out:
	free(bias);
	return ret;
}

static int
save_model(struct k3_store *store, const char *dir, uint64_t shard_bytes)
{
	const struct k3_params *ps = &k3_store_model(store)->params;
	struct k3_st_writer *w = NULL;
	struct k3_ckpt_tensor t;
	int ret;

	K3_TRY(k3_st_writer_create(&w, dir, "model", shard_bytes));
	K3_TRY(k3_st_writer_metadata(w, "format", "pt"));
	for (size_t i = 0; i < k3_params_n_tensors(ps); i++) {
		k3_params_tensor(ps, i, &t);
		K3_TRY(declare(w, &t, ""));
	}
	K3_TRY(k3_st_writer_begin(w));
	for (size_t p = 0; p < ps->n; p++)
		K3_TRY(put_param(store, w, p, 0, ""));
	K3_TRY(put_buffers(store, w));
	K3_TRY(k3_st_writer_finish(w));
out:
	k3_st_writer_destroy(w);
	return ret;
}

static const struct {
	const char *suffix;
	uint32_t kind;
} state_parts[] = {{"", 0}, {".exp_avg", 2}, {".exp_avg_sq", 3}};

static int
save_optimizer(struct k3_store *store, const char *dir, uint64_t shard_bytes)
{
	const struct k3_params *ps = &k3_store_model(store)->params;
	struct k3_st_writer *w = NULL;
	struct k3_ckpt_tensor t;
	int ret;

	K3_TRY(k3_st_writer_create(&w, dir, "optimizer", shard_bytes));
	for (size_t i = 0; i < k3_params_n_tensors(ps); i++) {
		k3_params_tensor(ps, i, &t);
		for (size_t k = 0; t.kind == K3_CKPT_PARAM && k < 3; k++)
			K3_TRY(declare(w, &t, state_parts[k].suffix));
	}
	K3_TRY(k3_st_writer_begin(w));
	for (size_t p = 0; p < ps->n; p++)
		for (size_t k = 0; k < 3; k++)
			K3_TRY(put_param(store, w, p, state_parts[k].kind, state_parts[k].suffix));
	K3_TRY(k3_st_writer_finish(w));
out:
	k3_st_writer_destroy(w);
	return ret;
}

static int
write_text(const char *dir, const char *name, const char *text)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return k3_fs_write_atomic(path, text, strlen(text));
}

int
k3_checkpoint_save(struct k3_store *store, const char *dir, uint64_t step, const char *run_json,
		   uint64_t shard_bytes)
{
	char temporary[4096], final[4096];
	char *config = k3_config_json(&k3_store_model(store)->config);
	int ret = config ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	/* a path that is cut off would name, and remove, another folder */
	if (snprintf(temporary, sizeof(temporary), "%s/.step-%06llu.partial", dir,
		     (unsigned long long)step) >= (int)sizeof(temporary)) {
		k3_error("tasks", "the path is too long for a checkpoint below it: %s", dir);
		K3_TRY(K3_EINVAL);
	}
	snprintf(final, sizeof(final), "%s/step-%06llu", dir, (unsigned long long)step);
	K3_TRY(k3_fs_mkdirs(dir));
	K3_TRY(k3_fs_remove_tree(temporary));
	K3_TRY(k3_fs_mkdirs(temporary));
	K3_TRY(save_model(store, temporary, shard_bytes));
	K3_TRY(save_optimizer(store, temporary, shard_bytes));
	K3_TRY(write_text(temporary, "config.json", config));
	K3_TRY(write_text(temporary, "run.json", run_json));
	K3_TRY(k3_fs_sync_folder(temporary));
	K3_TRY(k3_fs_remove_tree(final));
	if (rename(temporary, final) != 0) {
		k3_error("tasks", "cannot rename %s to %s: %s", temporary, final, strerror(errno));
		K3_TRY(K3_EIO);
	}
	K3_TRY(k3_fs_sync_folder(dir));
	K3_TRY(write_text(final, K3_CHECKPOINT_MARKER, "complete\n"));
out:
	free(config);
	return ret;
}
