/* Which row blocks an optimizer task takes.  Norms and updates are cut apart: a sum over few blocks
 * is not worth a task, an update should end soon, as the next step's forward pass waits for it. */
#include <stdlib.h>

#include "../common/status.h"
#include "optimizer.h"
#include "shard.h"

/* A task takes blocks until it is worth its submission: a few hundred microseconds on a core, on a
 * GPU a few dozen. */
enum { GROUP_BLOCKS = 16, GROUP_ELEMS = 1 << 19, GPU_GROUP_BLOCKS = 48 };
enum { GPU_NORM_ELEMS = 1 << 24, GPU_UPDATE_ELEMS = 1 << 21 };

/* When the verdict on a step is there, all updates could begin; what StarPU does for each of them
 * then would keep a GPU waiting.  So on GPUs they take turns: each lets one more begin. */
enum { GPU_TURNS = 4 };

static uint32_t
groups_of(const struct k3_model *model, const uint32_t *block, uint32_t most, size_t enough,
	  struct k3_block_group *group, uint32_t cap)
{
	uint32_t n = 0, first = 0;
	size_t elems = 0;

	for (uint32_t i = 0; i < model->n_blocks; i++) {
		/* the longest shard of any rank, so that all ranks have the same groups */
		const struct k3_datum *d = &model->persist[block[i]];
		elems += k3i_shard_pitch(model, &model->params.param[d->param], (size_t)d->index) *
			 d->row_elems;
		if (i + 1 < model->n_blocks && i + 1 - first < most && elems < enough)
			continue;
		if (n < cap)
			group[n] = (struct k3_block_group){block + first, i + 1 - first};
		n++;
		first = i + 1;
		elems = 0;
	}
	return n;
}

uint32_t
k3i_norm_groups(const struct k3_model *model, struct k3_block_group *group, uint32_t cap)
{
	bool gpu = model->options.for_gpus;

	return groups_of(model, model->table, gpu ? GPU_GROUP_BLOCKS : GROUP_BLOCKS,
			 gpu ? GPU_NORM_ELEMS : GROUP_ELEMS, group, cap);
}

uint32_t
k3i_update_groups(const struct k3_model *model, struct k3_block_group *group, uint32_t cap)
{
	bool gpu = model->options.for_gpus;

	return groups_of(model, model->update, gpu ? GPU_GROUP_BLOCKS : GROUP_BLOCKS,
			 gpu ? GPU_UPDATE_ELEMS : GROUP_ELEMS, group, cap);
}

/* Where a step reads a row block first: tower, embedding, layers, what comes after them; there the
 * vectors before the matrices. */
static uint32_t
read_place(const struct k3_model *m, uint32_t block)
{
	const struct k3_param *p = &m->params.param[m->persist[block].param];
	uint32_t place = p->unit == K3_UNIT_VISION  ? 0
			 : p->unit == K3_UNIT_EMBED ? 1
			 : p->layer >= 0	    ? 2 + (uint32_t)p->layer
						    : 2 + m->config.layers;

	return 2 * place + k3_param_is_matrix(p);
}

int
k3i_order_blocks(struct k3_model *model)
{
	uint32_t n = model->n_blocks, places = 2 * (model->config.layers + 3);
	uint32_t *first = calloc(places + 1, sizeof(*first));

	model->table = calloc(n, sizeof(*model->table));
	model->update = calloc(n, sizeof(*model->update));
	if (!first || !model->table || !model->update) {
		free(first);
		return K3_ENOMEM;
	}
	for (uint32_t i = 0; i < n; i++) {
		model->table[i] = i;
		first[read_place(model, i) + 1]++;
	}
	for (uint32_t place = 0; place < places; place++)
		first[place + 1] += first[place];
	for (uint32_t i = 0; i < n; i++)
		model->update[first[read_place(model, i)]++] = i;
	free(first);
	model->n_norm_partial = k3i_norm_groups(model, NULL, 0);
	model->n_updates = k3i_update_groups(model, NULL, 0);
	model->n_turns = model->options.for_gpus ? GPU_TURNS : 0;
	return K3_OK;
}
