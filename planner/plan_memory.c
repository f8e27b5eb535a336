/* Memory of a run against a limit.  The trap: which option helps depends on what fills the memory;
 * shorter tiles do not shrink parameters, more ranks do not shrink logits. */
#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "mesh.h"
#include "plan_check.h"

static double
gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

int
k3_plan_check_memory(const struct k3_memory *memory, uint64_t limit_bytes,
		     const struct k3_model *model)
{
	const struct k3_plan_options *o = &model->options;
	uint64_t need = k3_memory_bound(memory), wide = k3_memory_wide_bytes(memory),
		 slots = need - memory->persist_bytes - wide;
	uint32_t shards = k3_mesh_group_size(&o->mesh, K3_GROUP_SHARD);

	if (need <= limit_bytes)
		return K3_OK;
	k3_error("planner",
		 "memory: %.3f GiB needed (persistent %.3f, slots %.3f, scratch of CPU workers "
		 "%.3f), limit %.3f GiB: %llu bytes are missing",
		 gib(need), gib(memory->persist_bytes), gib(slots), gib(wide), gib(limit_bytes),
		 (unsigned long long)(need - limit_bytes));
	if (memory->persist_bytes > limit_bytes / 2) {
		/* what is left beside the slots, or half when they alone are too much */
		uint64_t room = (slots < limit_bytes / 2 ? limit_bytes - slots
							 : limit_bytes - limit_bytes / 2) *
				o->mesh.cp;
		k3_error("planner",
			 "memory: parameters and optimizer state fill it: --mesh dp_shard=%llu or "
			 "more would help",
			 (unsigned long long)((memory->persist_bytes * shards + room - 1) / room));
	}
	if (slots > limit_bytes / 2) {
		bool keeps = false;
		for (uint32_t l = 0; l < model->config.layers; l++)
			keeps = keeps || o->activations[l] == K3_KEEP;
		k3_error("planner",
			 "memory: activations fill it: %sfewer tokens per microbatch would help "
			 "(--tokens, more --accumulate), or %s",
			 keeps ? "--activations recompute, " : "",
			 o->tile_tokens != 64 ? "shorter tiles (--tile-tokens 64)"
					      : "more cp ranks (--mesh cp)");
	}
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
