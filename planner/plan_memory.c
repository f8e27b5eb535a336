/* Memory of a run against a limit.  The trap: which option helps depends on what fills the memory;
 * shorter tiles do not shrink parameters, more ranks do not shrink logits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/size.h"
#include "../common/status.h"
#include "mesh.h"
#include "plan_check.h"

/* "A, B or C" with what would help. */
struct advice {
	char part[4][160];
	size_t n;
};

static char *
advise(struct advice *advice)
{
	K3_ASSERT(advice->n < sizeof(advice->part) / sizeof(advice->part[0]));
	return advice->part[advice->n++];
}

/* One line; `fixed` where there is nothing to advise. */
static void
tell(const struct advice *advice, const char *what, const char *fixed)
{
	char text[sizeof(advice->part) + 32] = "";

	for (size_t i = 0; i < advice->n; i++) {
		strcat(text, i == 0 ? "" : i + 1 < advice->n ? ", " : " or ");
		strcat(text, advice->part[i]);
	}
	k3_error("planner", "memory: %s: %s%s", what, advice->n ? text : fixed,
		 advice->n ? " would help" : "");
}

/* What lives as long as the run.  `room` is what is left of the limit beside the slots, or half of
 * it when they alone are too much. */
static void
advise_persistent(const struct k3_memory *memory, const struct k3_model *model, uint64_t room)
{
	struct k3_plan_options o = model->options;
	uint32_t shards = k3_mesh_group_size(&o.mesh, K3_GROUP_SHARD);
	struct advice advice = {.n = 0};
	struct k3_model *small;

	if (o.offers & K3_OFFER_MESH)
		snprintf(advise(&advice), sizeof(advice.part[0]), "--mesh dp_shard=%llu or more",
			 (unsigned long long)((memory->persist_bytes * shards + room - 1) / room));
	if ((o.offers & K3_OFFER_TYPES) && o.optimizer_dtype != K3_BF16) {
		o.dtype = o.optimizer_dtype = K3_BF16;
		if (k3_model_create(&small, &model->config, &o) == K3_OK) {
			snprintf(advise(&advice), sizeof(advice.part[0]),
				 "--dtype bf16 --optimizer-dtype bf16 (%s instead of %s)",
				 k3_size_text((double)small->persist_bytes).at,
				 k3_size_text((double)memory->persist_bytes).at);
			k3_model_destroy(small);
		}
	}
	if (o.offers & K3_OFFER_MODEL)
		snprintf(advise(&advice), sizeof(advice.part[0]),
			 "a smaller model (--layers, --vocab)");
	tell(&advice, "parameters and optimizer state fill it",
	     "they stay as they are, only a higher limit would help");
}

static void
advise_slots(const struct k3_model *model)
{
	const struct k3_plan_options *o = &model->options;
	struct advice advice = {.n = 0};
	bool keeps = false;

	for (uint32_t l = 0; l < model->config.layers; l++)
		keeps = keeps || o->activations[l] == K3_KEEP;
	if (keeps)
		strcpy(advise(&advice), "--activations recompute");
	if (o->offers & K3_OFFER_TOKENS) {
		strcpy(advise(&advice),
		       "fewer tokens per microbatch (--tokens, more --accumulate)");
		if (o->max_patches)
			snprintf(advise(&advice), sizeof(advice.part[0]),
				 "fewer patches than %llu (--max-patches)",
				 (unsigned long long)o->max_patches);
		/* kept activations take the same room in tiles of any length */
		if (!keeps && o->tile_tokens != 64)
			strcpy(advise(&advice), "shorter tiles (--tile-tokens 64)");
		else if (o->offers & K3_OFFER_MESH)
			strcpy(advise(&advice), "more cp ranks (--mesh cp)");
	}
	tell(&advice, "activations fill it",
	     "all layers recompute already, only a higher limit would help");
}

int
k3_plan_check_memory(const struct k3_memory *memory, uint64_t limit_bytes,
		     const struct k3_model *model)
{
	uint64_t need = k3_memory_bound(memory), wide = k3_memory_wide_bytes(memory),
		 persistent = memory->persist_bytes, slots = need - persistent - wide,
		 half = limit_bytes / 2;

	if (need <= limit_bytes)
		return K3_OK;
	k3_error("planner",
		 "memory: %s needed (persistent %s, slots %s, scratch of CPU workers %s), "
		 "limit %s: %llu bytes are missing",
		 k3_size_text((double)need).at, k3_size_text((double)persistent).at,
		 k3_size_text((double)slots).at, k3_size_text((double)wide).at,
		 k3_size_text((double)limit_bytes).at, (unsigned long long)(need - limit_bytes));
	if (persistent > half || persistent >= slots) {
		uint64_t room = slots < half ? limit_bytes - slots : limit_bytes - half;
		advise_persistent(memory, model, room * model->options.mesh.cp + !room);
	}
	if (slots > half || slots > persistent)
		advise_slots(model);
	return K3_ELIMIT;
}

static int
add_plan(struct k3_memory *memory, const struct k3_run_shape *shape, const struct k3_plan *plan)
{
	if (shape->gpu_scratch)
		k3_memory_add_scratch(memory, shape->gpu_scratch(plan));
	return k3_memory_add(memory, plan);
}

static int
add_microbatch(struct k3_memory *memory, const struct k3_model *model,
	       const struct k3_run_shape *shape, const struct k3_layout *layout,
	       const struct k3_microbatch *what)
{
	struct k3_plan *plan;
	int ret;

	K3_TRY(k3_plan_microbatch(&plan, model, layout, what));
	K3_TRY(add_plan(memory, shape, plan));
out:
	k3_plan_destroy(plan);
	return ret;
}

int
k3_memory_run(struct k3_memory *memory, const struct k3_model *model,
	      const struct k3_run_shape *shape)
{
	int32_t *docs = malloc(shape->tokens * sizeof(*docs));
	struct k3_layout layout = {.n_tokens = shape->tokens, .doc_ids = docs};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_plan *optimizer = NULL;
	int ret = docs ? K3_OK : K3_ENOMEM;

	k3_memory_init(memory, model);
	K3_TRY(ret);
	/* slots are taken for all of max_patches, so a microbatch without images shows the bound */
	if (shape->max_patches > model->options.max_patches) {
		k3_error("planner",
			 "memory of microbatches of %llu patches: the model is planned for %llu at "
			 "most",
			 (unsigned long long)shape->max_patches,
			 (unsigned long long)model->options.max_patches);
		K3_TRY(K3_EINVAL);
	}
	for (size_t i = 0; i < shape->tokens; i++)
		docs[i] = 1;
	K3_TRY(add_microbatch(memory, model, shape, &layout, &what));
	what.first = false;
	if (shape->accumulate > 1)
		K3_TRY(add_microbatch(memory, model, shape, &layout, &what));
	if (shape->evaluates)
		K3_TRY(add_microbatch(memory, model, shape, &layout, &(struct k3_microbatch){0}));
	K3_TRY(k3_plan_optimizer(&optimizer, model, 0));
	K3_TRY(add_plan(memory, shape, optimizer));
out:
	k3_plan_destroy(optimizer);
	free(docs);
	return ret;
}
