/* Shards are cut inside row blocks, so that a gathered block is the members' shards one after the
 * other. */
#include "shard.h"

#include "mesh.h"

static size_t
block_rows(const struct k3_param *param, size_t block)
{
	size_t left = param->rows - block * param->block_rows;

	return left < param->block_rows ? left : param->block_rows;
}

size_t
k3i_shard_pitch(const struct k3_model *model, const struct k3_param *param, size_t block)
{
	size_t ranks = k3_mesh_group_size(&model->options.mesh, K3_GROUP_SHARD);
	size_t rows = block_rows(param, block), unit = 1;

	if (param->experts_per_block) {
		size_t expert_rows = param->block_rows / param->experts_per_block;
		if (rows / expert_rows >= ranks)
			unit = expert_rows;
	}
	return (rows / unit + ranks - 1) / ranks * unit;
}

void
k3i_shard_block(const struct k3_model *model, const struct k3_param *param, size_t block,
		uint32_t rank, size_t *row0, size_t *rows)
{
	size_t all = block_rows(param, block), pitch = k3i_shard_pitch(model, param, block);
	size_t from = pitch * k3_mesh_group_rank(&model->options.mesh, K3_GROUP_SHARD, rank);

	if (from > all)
		from = all;
	*row0 = block * param->block_rows + from;
	*rows = all - from < pitch ? all - from : pitch;
}
