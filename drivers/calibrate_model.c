/* Our operations, at work: plans of a few layers run in their order, so that each kernel finds its
 * operands where a training step leaves them, not in a warm cache.  The trap: other programs share
 * the machine, so a task's time is the least over some runs. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "../planner/plan_check.h"
#include "calibrate.h"
#include "images.h"

/* The first four layers hold every kind: dense feed-forward, KDA, MLA, experts. */
enum { LAYERS = 4, VOCABULARY = 4096, EXPERTS = 8, TILE = 256 };

static int
add_sample(struct k3_op_samples *s, const struct k3_task *t, double us)
{
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 64;
		struct k3_rate_sample *grown = realloc(s->sample, cap * sizeof(*grown));
		if (!grown)
			return K3_ENOMEM;
		s->sample = grown;
		s->cap = cap;
	}
	s->sample[s->n++] = (struct k3_rate_sample){t->flops, t->bytes, t->param_bytes, us};
	return K3_OK;
}

/* Runs a plan, a first time for nothing; each task's least time becomes a sample. */
static int
measure(struct k3_serial *serial, const struct k3_plan *plan, const struct k3_host_batch *batch,
	const double *hyper, uint32_t repeat, struct k3_op_samples *samples)
{
	double *us = malloc((plan->n_tasks + 1) * sizeof(*us)),
	       *least = malloc((plan->n_tasks + 1) * sizeof(*least));
	int ret = us && least ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	K3_TRY(k3_plan_check(plan));
	for (uint32_t run = 0; run <= repeat; run++) {
		K3_TRY(k3_serial_run(serial, plan, batch, hyper, us));
		for (size_t i = 0; i < plan->n_tasks; i++)
			if (run <= 1 || us[i] < least[i])
				least[i] = us[i];
	}
	for (size_t i = 0; i < plan->n_tasks; i++)
		K3_TRY(add_sample(&samples[plan->task[i].op], &plan->task[i], least[i]));
out:
	free(us);
	free(least);
	return ret;
}

/* Two items that half of the rows and four of them take: an image of up to 1,024 patches, and a
 * small one, with two frames where the tower knows them. */
static int
make_images(struct k3_images *x, const struct k3_config *c, size_t tokens)
{
	enum { MOST_MERGED = 256, SMALL_MERGED = 4 };
	uint32_t merged = tokens / 2 < MOST_MERGED ? (uint32_t)tokens / 2 : MOST_MERGED, h = 1;

	while ((h + 1) * (h + 1) <= merged)
		h++;
	uint32_t w = merged > h ? merged / h : 1;
	*x = (struct k3_images){.n = h * w + SMALL_MERGED <= tokens ? 2 : 1};
	x->grid = calloc(2, sizeof(*x->grid));
	x->row = calloc(2, sizeof(*x->row));
	if (!x->grid || !x->row)
		return K3_ENOMEM;
	x->grid[0] = (struct k3_grid){1, h * c->vision.merge_h, w * c->vision.merge_w};
	x->grid[1] = (struct k3_grid){c->vision.max_frames > 1 ? 2 : 1, 2 * c->vision.merge_h,
				      2 * c->vision.merge_w};
	x->row[1] = h * w;
	return K3_OK;
}

static int
measure_microbatch(struct k3_serial *serial, const struct k3_model *model, size_t tokens,
		   const struct k3_images *images, uint32_t repeat, struct k3_op_samples *samples)
{
	int32_t *rows = malloc(3 * tokens * sizeof(*rows));
	struct k3_host_batch batch = {.ids = rows, .labels = rows + tokens};
	struct k3_layout layout = {.n_tokens = tokens, .doc_ids = rows + 2 * tokens};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	double hyper[K3_HYPER_LEN] = {0};
	uint64_t key = k3_rng_key("calibrate", 0);
	struct k3_plan *plan = NULL;
	int ret = rows ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	for (size_t i = 0; i < tokens; i++) {
		double u = k3_rng_uniform(key, i), v = k3_rng_uniform(key, i + tokens);
		rows[i] = (int32_t)(u * model->config.vocab);
		rows[tokens + i] = (int32_t)(v * model->config.vocab);
		rows[2 * tokens + i] = 1;
	}
	if (images) {
		k3_images_place(images, &layout);
		batch.item_pixels = images->pixels_of;
	}
	hyper[K3_HYPER_VALID] = (double)tokens;
	hyper[K3_HYPER_INV_N] = 1 / (double)tokens;
	hyper[K3_HYPER_LR] = 1e-4;
	hyper[K3_HYPER_STEP] = 1;
	K3_TRY(k3_plan_microbatch(&plan, model, &layout, &what));
	K3_TRY(measure(serial, plan, &batch, hyper, repeat, samples));
out:
	k3_plan_destroy(plan);
	free(rows);
	return ret;
}

/* One size of tile: from initial values to the end of a step.  vision_patches 0: the image is one
 * tile. */
static int
measure_tile(const struct k3_config *config, const struct k3_plan_options *options, size_t tokens,
	     uint32_t repeat, struct k3_op_samples *samples)
{
	struct k3_plan_options o = *options;
	struct k3_model *model = NULL;
	struct k3_serial *serial = NULL;
	struct k3_plan *plan = NULL;
	struct k3_images images = {0};
	int ret;

	K3_TRY(make_images(&images, config, tokens));
	K3_TRY(k3_images_fill(&images, config, 0));
	if (!o.vision_patches)
		o.vision_patches = (uint32_t)k3_grid_patches(&images.grid[0]);
	K3_TRY(k3_model_create(&model, config, &o));
	K3_TRY(k3_serial_create(&serial, model));
	K3_TRY(k3_plan_init(&plan, model, 0, false));
	K3_TRY(measure(serial, plan, NULL, NULL, 0, samples));
	K3_TRY(measure_microbatch(serial, model, tokens, &images, repeat, samples));
	/* what a microbatch without images gives the tower */
	if (options->tile_tokens)
		K3_TRY(measure_microbatch(serial, model, 1, NULL, repeat, samples));
	k3_plan_destroy(plan);
	K3_TRY(k3_plan_optimizer(&plan, model, 0));
	K3_TRY(measure(serial, plan, NULL, NULL, 1, samples));
out:
	k3_plan_destroy(plan);
	k3_serial_destroy(serial);
	k3_model_destroy(model);
	k3_images_fini(&images);
	return ret;
}

/* Every operation needs a tower; the smallest stands in where there is none. */
static int
make_config(struct k3_config *config, const char *preset)
{
	struct k3_config small;
	int ret;

	K3_TRY(k3_config_preset(config, preset));
	K3_TRY(k3_config_preset(&small, "small"));
	if (!config->vision.present)
		config->vision = small.vision;
	/* more experts or tokens of the vocabulary would add memory, not information */
	if (config->experts > EXPERTS)
		config->experts = EXPERTS;
	if (config->top_k > config->experts)
		config->top_k = config->experts;
	if (config->layers > LAYERS)
		K3_TRY(k3_config_set_layers(config, LAYERS));
	if (config->vision.layers > LAYERS)
		config->vision.layers = LAYERS;
	if (config->vocab > VOCABULARY)
		K3_TRY(k3_config_set_vocab(config, VOCABULARY));
out:
	return ret;
}

int
k3i_measure_model(struct k3_op_samples *samples, const char *preset, const uint32_t *tokens,
		  size_t n_tokens, uint32_t repeat)
{
	struct k3_plan_options options;
	struct k3_config config;
	int ret;

	K3_TRY(make_config(&config, preset));
	k3_plan_options_init(&options);
	options.fingerprint = true; /* hashes are measured too */
	options.vision = true;
	for (size_t i = 0; i < n_tokens; i++)
		K3_TRY(measure_tile(&config, &options, tokens[i], repeat, samples));
	/* several tiles: states and attention that cross their borders; what is computed again */
	options.tile_tokens = TILE;
	options.vision_patches = TILE;
	for (uint32_t l = 0; l < config.layers; l++)
		options.activations[l] = K3_RECOMPUTE;
	K3_TRY(measure_tile(&config, &options, tokens[n_tokens - 1], repeat, samples));
out:
	return ret;
}
