/* Generation with forward-only plans.  The whole text is run again for each token, in rows whose
 * number is rounded up to ROW_STEP: what stands behind the last token can't be seen by it, so one
 * plan serves so many lengths. */
#include "eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"

enum { ROW_STEP = 64 };

int
k3_eval_open(struct k3_session *session, const char *path, uint32_t tile_tokens,
	     const struct k3_runtime_options *runtime, bool cut_state,
	     const struct k3_machine *machine, bool vision, enum k3_dtype dtype)
{
	struct k3_plan_options options;
	struct k3_config config;
	struct k3_st *st = NULL;
	char direct[4300], *folder = NULL;
	int ret;

	snprintf(direct, sizeof(direct), "%s/config.json", path);
	if (access(direct, F_OK) == 0)
		folder = strdup(path);
	else
		K3_TRY(k3_checkpoint_find(&folder, path));
	if (!folder)
		K3_TRY(K3_ENOMEM);
	K3_TRY(k3_checkpoint_check_or_advise(folder, true, "--load"));
	K3_TRY(k3_config_load(&config, folder));
	if (vision && !config.vision.present) {
		k3_error("drivers", "%s: the model has no vision tower, and images are asked for",
			 folder);
		K3_TRY(K3_EINVAL);
	}
	config.vision.present = vision;
	k3_plan_options_init(&options);
	options.vision = vision;
	options.dtype = dtype;
	options.tile_tokens = tile_tokens;
	options.cut_state = cut_state;
	options.machine = machine;
	K3_TRY(k3_st_open(&st, folder));
	K3_TRY(k3_session_open(session, &config, &options, runtime));
	K3_TRY(k3_checkpoint_load_params(session->store, st));
out:
	k3_st_close(st);
	free(folder);
	return ret;
}

/* Logits of row `row`, from the kept sub-tiles of the plan. */
static int
read_logits(struct k3_session *s, const struct k3_plan *plan, size_t row, float *logits)
{
	size_t vocab = s->model->config.vocab;

	for (size_t t = 0; t < plan->n_tiles; t++) {
		const struct k3_tile *tile = &plan->tile[t];
		size_t seen = 0;
		if (row < tile->row0 || row >= tile->row0 + tile->rows)
			continue;
		for (int sub = 0;; sub++) {
			int32_t datum = k3_plan_find(plan, "logits", -1, (int)t, sub);
			K3_ASSERT(datum != K3_NO_DATUM);
			const struct k3_datum *d = &plan->data[datum];
			if (row - tile->row0 < seen + d->rows) {
				float *all = malloc(d->rows * vocab * sizeof(*all));
				int ret = all ? k3_store_floats_read(s->store, plan,
								     (uint32_t)datum, all)
					      : K3_ENOMEM;
				if (ret == K3_OK)
					memcpy(logits, all + (row - tile->row0 - seen) * vocab,
					       vocab * sizeof(*logits));
				free(all);
				return ret;
			}
			seen += d->rows;
		}
	}
	return K3_EINVAL;
}

/* Next byte from the logits of the 256 byte tokens. */
static unsigned char
choose(const float *logits, double temperature, double u)
{
	double most = -INFINITY, sum = 0;
	size_t best = 0;

	for (size_t b = 0; b < 256; b++)
		if ((double)logits[b] > most) {
			most = (double)logits[b];
			best = b;
		}
	if (!(temperature > 0))
		return (unsigned char)best;
	for (size_t b = 0; b < 256; b++)
		sum += exp(((double)logits[b] - most) / temperature);
	for (size_t b = 0; b < 256; b++) {
		u -= exp(((double)logits[b] - most) / temperature) / sum;
		if (u < 0)
			return (unsigned char)b;
	}
	return (unsigned char)best;
}

static size_t
rows_of(size_t tokens)
{
	return (tokens + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
}

int
k3i_eval_text_init(struct k3i_eval_text *text, const struct k3_config *config, size_t most)
{
	size_t cap = rows_of(most);

	*text = (struct k3i_eval_text){.cap = cap, .rows = malloc(3 * cap * sizeof(int32_t))};
	if (!text->rows)
		return K3_ENOMEM;
	for (size_t i = 0; i < cap; i++) {
		text->rows[i] = (int32_t)config->pad;
		text->rows[cap + i] = K3_LABEL_IGNORED;
		text->rows[2 * cap + i] = 1;
	}
	return K3_OK;
}

int
k3i_eval_logits(struct k3_session *s, const struct k3i_eval_text *text, size_t n, float *logits)
{
	static const double hyper[K3_HYPER_LEN];
	struct k3_layout layout = {.n_tokens = rows_of(n),
				   .doc_ids = text->rows + 2 * text->cap,
				   .n_items = text->n_items,
				   .grid = text->grid,
				   .item_row = text->item_row};
	struct k3_microbatch what = {.first = true, .keep_logits = true};
	struct k3_host_batch batch = {.ids = text->rows,
				      .labels = text->rows + text->cap,
				      .item_bytes = text->item_bytes};
	const struct k3_plan *plan;
	int ret;

	K3_TRY(k3_plan_cache_get(s->cache, &layout, &what, s->clock += 4, &plan));
	K3_TRY(k3_submit_plan(s->store, plan, &batch, hyper));
	k3_runtime_drain(s->runtime);
	K3_TRY(read_logits(s, plan, n - 1, logits));
out:
	k3_runtime_drain(s->runtime);
	return ret;
}

int
k3_eval_generate(struct k3_session *session, const char *prompt, size_t n_bytes, double temperature,
		 uint64_t seed, unsigned char *out)
{
	const struct k3_config *c = &session->model->config;
	size_t length = strlen(prompt);
	struct k3i_eval_text text = {0};
	float *logits = malloc(c->vocab * sizeof(*logits));
	uint64_t key = k3_rng_key("generate", seed);
	int ret = logits ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	K3_TRY(k3i_eval_text_init(&text, c, 1 + length + n_bytes));
	if (c->vocab < 257) {
		k3_error("drivers",
			 "the vocabulary has %u tokens: generating bytes needs 256 and a start "
			 "token",
			 c->vocab);
		K3_TRY(K3_EINVAL);
	}
	text.rows[0] = (int32_t)c->bos;
	for (size_t i = 0; i < length; i++)
		text.rows[1 + i] = (unsigned char)prompt[i];
	for (size_t i = 0; i < n_bytes; i++) {
		size_t n = 1 + length + i;
		K3_TRY(k3i_eval_logits(session, &text, n, logits));
		out[i] = choose(logits, temperature, k3_rng_uniform(key, i));
		text.rows[n] = out[i];
	}
out:
	free(text.rows);
	free(logits);
	return ret;
}
