/* FSDP in the plan (model.md 10): a unit's row blocks are gathered from the shard group before its
 * tasks, its gradients are reduce-scattered after the last of them.
 *
 * A rank's persistent blocks hold its shards.  Tasks read gathered copies: one datum per block,
 * written by gather_params, gone after the unit; the backward pass gathers again.  A piece (one
 * collective of several blocks) takes at most piece_bytes, or one block.  gather_slots - 1 parts
 * are gathered ahead of the part that is opened, so that their transfer runs beside its tasks.
 *
 * Trap: the order of collectives must be the same on all ranks, so what is gathered ahead follows
 * from the model alone, and gradients of a replica group are summed once per step, on the
 * accumulated shards: summing them in every microbatch would count the earlier ones twice.  In bf16
 * mode matrices are gathered as their bf16 copies and vectors as they are; a piece has one type. */
#include "../common/status.h"
#include "build.h"
#include "mesh_comm.h"
#include "shard.h"

enum { MAX_SUMS = 64 }; /* most data of one all-reduce of scalars */

struct part {
	enum k3_unit unit;
	int layer, part;
};

struct k3i_fsdp {
	int32_t *here;	/* [n_blocks] gathered copy that is open or ahead, else K3_NO_DATUM */
	uint32_t *grad; /* [n_blocks] full gradient */
	uint32_t *list; /* [n_blocks] scratch: blocks of a part */
	bool root_seen, turned; /* the root was opened once; twice: the backward walk has begun */
};

static const struct k3_param *
param_of(const struct k3_builder *b, uint32_t block)
{
	return &b->model->params.param[b->model->persist[block].param];
}

/* Type of what tasks read of a block. */
static enum k3_dtype
source_dtype(const struct k3_builder *b, uint32_t block)
{
	return (enum k3_dtype)b->model->persist[k3i_source(b->model, block)].dtype;
}

/* Elements that each member contributes to a gather of a block. */
static size_t
pitch_elems(const struct k3_builder *b, uint32_t block)
{
	const struct k3_param *p = param_of(b, block);

	return k3i_shard_pitch(b->model, p, (size_t)b->model->persist[block].index) * p->cols;
}

void
k3i_comms(struct k3_builder *b)
{
	struct k3_plan *p = b->plan;

	if (b->status == K3_OK && !p->n_comms)
		b->status =
			k3i_mesh_comms(p->arena, &b->model->options.mesh, &p->comm, &p->n_comms);
}

void *
k3i_comm_task(struct k3_builder *b, enum k3_op op, int layer, int tile, int group, int32_t comm,
	      int32_t peer, uint64_t count, enum k3_dtype dtype, size_t args_bytes)
{
	k3i_comms(b);
	void *args = k3i_task(b, op, layer, tile, group, args_bytes);
	b->widens = false;
	if (!b->cur)
		return args;
	b->cur->comm = comm;
	b->cur->peer = peer;
	b->cur->count = count;
	b->cur->comm_dtype = (uint8_t)dtype;
	return args;
}

/* A full copy of a block: the members' shards one after the other, so it may be longer than the
 * block. */
static uint32_t
full_block(struct k3_builder *b, const char *what, enum k3_dtype dtype, uint32_t block)
{
	const struct k3_param *p = param_of(b, block);
	size_t shards = k3_mesh_group_size(&b->model->options.mesh, K3_GROUP_SHARD);
	size_t rows = k3i_shard_pitch(b->model, p, (size_t)b->model->persist[block].index) * shards;
	uint32_t d = k3i_data(b, what, K3_DATA_GATHERED, dtype, p->layer, -1,
			      b->model->persist[block].index, rows, rows, p->cols);

	if (b->status == K3_OK) {
		b->plan->data[d].param = b->model->persist[block].param;
		b->plan->data[d].row0 = (size_t)b->model->persist[block].index * p->block_rows;
	}
	return d;
}

/* State of this plan; NULL when there is nothing to gather or memory is out. */
static struct k3i_fsdp *
begin(struct k3_builder *b)
{
	uint32_t n = b->model->n_blocks;

	if (b->fsdp || b->status != K3_OK ||
	    k3_mesh_comm(&b->model->options.mesh, K3_GROUP_SHARD) < 0)
		return b->fsdp;
	struct k3i_fsdp *f = k3i_arena_alloc(b->plan->arena, sizeof(*f));
	if (f) {
		f->here = k3i_arena_alloc(b->plan->arena, n * sizeof(*f->here));
		f->grad = k3i_arena_alloc(b->plan->arena, n * sizeof(*f->grad));
		f->list = k3i_arena_alloc(b->plan->arena, n * sizeof(*f->list));
	}
	if (!f || !f->here || !f->grad || !f->list) {
		b->status = K3_ENOMEM;
		return NULL;
	}
	/* the views of all parameters are one array in the order of the blocks */
	for (uint32_t i = 0; i < n; i++) {
		f->here[i] = K3_NO_DATUM;
		if (b->what.backward)
			b->grad[0].datum[i] = f->grad[i] = full_block(b, "full_grad", K3_F32, i);
	}
	b->fsdp = f;
	return b->status == K3_OK ? f : NULL;
}

/* Blocks of a part into f->list; their number. */
static size_t
list_part(const struct k3_builder *b, struct k3i_fsdp *f, struct part part)
{
	const struct k3_params *ps = &b->model->params;
	size_t n = 0, first = 0, end = ps->n;

	if (part.unit == K3_UNIT_LAYER) {
		first = (size_t)k3_params_find(ps, K3_P_ATTN_NORM, part.layer);
		for (end = first; end < ps->n && ps->param[end].unit == K3_UNIT_LAYER &&
				  ps->param[end].layer == part.layer;
		     end++)
			;
	}
	for (size_t i = first; i < end; i++) {
		const struct k3_param *p = &ps->param[i];
		if (p->unit != part.unit || (p->experts_per_block > 0) != (part.part >= 0))
			continue;
		size_t from = part.part < 0 ? 0 : (size_t)part.part;
		size_t to = part.part < 0 || from >= p->n_blocks ? p->n_blocks : from + 1;
		for (size_t k = from; k < to; k++)
			f->list[n++] = b->model->param_block[i] + (uint32_t)k;
	}
	return n;
}

/* Those of them that are gathered as this type. */
static size_t
list_type(const struct k3_builder *b, struct k3i_fsdp *f, struct part part, enum k3_dtype dtype)
{
	size_t all = list_part(b, f, part), n = 0;

	for (size_t i = 0; i < all; i++)
		if (source_dtype(b, f->list[i]) == dtype)
			f->list[n++] = f->list[i];
	return n;
}

/* End of the piece that begins at list[first]: at most piece_bytes when gathered, at least one
 * block. */
static size_t
piece_end(const struct k3_builder *b, const uint32_t *list, size_t first, size_t n,
	  enum k3_dtype dtype, uint64_t *count)
{
	size_t shards = k3_mesh_group_size(&b->model->options.mesh, K3_GROUP_SHARD), end = first;

	*count = 0;
	while (end < n) {
		uint64_t more = pitch_elems(b, list[end]);
		if (end > first && (*count + more) * shards * k3_dtype_bytes(dtype) >
					   b->model->options.piece_bytes)
			break;
		*count += more;
		end++;
	}
	return end;
}

static void
gather_type(struct k3_builder *b, struct k3i_fsdp *f, struct part part, enum k3_dtype dtype)
{
	size_t n = list_type(b, f, part, dtype), end;
	int32_t comm = k3_mesh_comm(&b->model->options.mesh, K3_GROUP_SHARD);
	uint64_t count;

	for (size_t i = 0; i < n && b->status == K3_OK; i = end) {
		end = piece_end(b, f->list, i, n, dtype, &count);
		for (size_t k = i; k < end; k++)
			f->here[f->list[k]] = (int32_t)full_block(b, "full", dtype, f->list[k]);
		k3i_comm_task(b, K3_OP_GATHER_PARAMS, part.layer, -1, part.part, comm, -1, count,
			      dtype, 0);
		for (size_t k = i; k < end; k++)
			k3i_use(b, (uint32_t)f->here[f->list[k]], K3_W);
		for (size_t k = i; k < end; k++)
			k3i_use(b, k3i_source(b->model, f->list[k]), K3_R);
		k3i_task_end(b, 0, 0);
	}
}

/* Gathers the blocks of a part that are not here yet. */
static void
gather(struct k3_builder *b, struct k3i_fsdp *f, struct part part)
{
	size_t n = list_part(b, f, part);

	if (!n || f->here[f->list[0]] != K3_NO_DATUM)
		return;
	if (b->act != K3_F32)
		gather_type(b, f, part, b->act);
	gather_type(b, f, part, K3_F32);
}

static int
n_expert_parts(const struct k3_builder *b, int layer)
{
	int i = k3_params_find(&b->model->params, K3_P_EXPERT_W13, layer);

	return i < 0 ? 0 : (int)b->model->params.param[i].n_blocks;
}

/* What the walk opens after `part`: vision, embedding, layers with their expert groups, root,
 * head; then root, layers, vision backward. */
static bool
next_part(const struct k3_builder *b, const struct k3i_fsdp *f, struct part *part)
{
	int layers = (int)b->config->layers, step = f->turned ? -1 : 1, layer;

	switch (part->unit) {
	case K3_UNIT_VISION:
		*part = (struct part){K3_UNIT_EMBED, -1, -1};
		return !f->turned;
	case K3_UNIT_EMBED:
		*part = (struct part){K3_UNIT_LAYER, 0, -1};
		return true;
	case K3_UNIT_LAYER:
		if (part->part + 1 < n_expert_parts(b, part->layer)) {
			part->part++;
			return true;
		}
		layer = part->layer + step;
		if (layer == layers)
			*part = (struct part){K3_UNIT_ROOT, -1, -1};
		else
			*part = (struct part){K3_UNIT_LAYER, layer, -1};
		if (layer < 0)
			*part = (struct part){K3_UNIT_VISION, -1, -1};
		return layer >= 0 || b->model->options.vision;
	case K3_UNIT_ROOT:
		if (f->turned)
			*part = (struct part){K3_UNIT_LAYER, layers - 1, -1};
		else
			*part = (struct part){K3_UNIT_HEAD, -1, -1};
		return true;
	default:
		return false;
	}
}

void
k3i_unit_open(struct k3_builder *b, enum k3_unit unit, int layer, int part)
{
	struct k3i_fsdp *f = begin(b);
	struct part at = {unit, layer, part};

	if (!f)
		return;
	if (unit == K3_UNIT_ROOT) {
		f->turned = f->root_seen;
		f->root_seen = true;
	}
	gather(b, f, at);
	size_t n = list_part(b, f, at);
	for (size_t i = 0; i < n && b->status == K3_OK; i++)
		b->weight[0].datum[f->list[i]] = (uint32_t)f->here[f->list[i]];
	for (uint32_t ahead = 1; ahead < b->model->options.gather_slots && next_part(b, f, &at);
	     ahead++)
		gather(b, f, at);
}

void
k3i_unit_close(struct k3_builder *b, enum k3_unit unit, int layer, int part)
{
	struct k3i_fsdp *f = begin(b);

	if (!f)
		return;
	size_t n = list_part(b, f, (struct part){unit, layer, part});
	for (size_t i = 0; i < n; i++) {
		f->here[f->list[i]] = K3_NO_DATUM;
		b->weight[0].datum[f->list[i]] = k3i_source(b->model, f->list[i]);
	}
}

void
k3i_unit_reduce(struct k3_builder *b, enum k3_unit unit, int layer, int part)
{
	struct k3i_fsdp *f = begin(b);
	int32_t comm = k3_mesh_comm(&b->model->options.mesh, K3_GROUP_SHARD);
	uint64_t count;
	size_t end;

	if (!f)
		return;
	size_t n = list_part(b, f, (struct part){unit, layer, part});
	for (size_t i = 0; i < n && b->status == K3_OK; i = end) {
		end = piece_end(b, f->list, i, n, K3_F32, &count);
		struct k3_reduce_scatter_args *a =
			k3i_comm_task(b, K3_OP_REDUCE_SCATTER_GRADS, layer, -1, part, comm, -1,
				      count, K3_F32, sizeof(*a));
		for (size_t k = i; k < end; k++)
			a->accumulate = k3i_use_sum(b, b->model->n_blocks + f->list[k]);
		/* the sum is made in place, then added to the shard */
		for (size_t k = i; k < end; k++)
			k3i_use(b, f->grad[f->list[k]], K3_RW);
		k3i_task_end(b, 0, 0);
	}
}

/* Sums persistent data first .. first+n-1 over a group, in place. */
static void
sum_data(struct k3_builder *b, enum k3_group group, uint32_t first, uint32_t n, int layer,
	 int index)
{
	const struct k3_datum *d = &b->model->persist[first];
	int32_t comm = k3_mesh_comm(&b->model->options.mesh, group);
	uint64_t count = 0;

	if (comm < 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		count += d[i].rows * d[i].row_elems;
	k3i_comm_task(b, K3_OP_ALLREDUCE, layer, -1, index, comm, -1, count,
		      (enum k3_dtype)d->dtype, 0);
	for (uint32_t i = 0; i < n; i++)
		k3i_use(b, first + i, K3_RW);
	k3i_task_end(b, 0, 0);
}

/* Gradient shards over the replicas, in pieces.  Empty shards have the same place in every replica.
 */
static void
sum_replicas(struct k3_builder *b)
{
	const struct k3_model *m = b->model;
	const struct k3_datum *grad = &m->persist[m->n_blocks];
	uint32_t end;

	for (uint32_t i = 0; i < m->n_blocks; i = end) {
		uint64_t bytes = grad[i].bytes;
		for (end = i + 1; end < m->n_blocks && end - i < MAX_SUMS; end++) {
			if (bytes + grad[end].bytes > m->options.piece_bytes ||
			    grad[end].layer != grad[i].layer)
				break;
			bytes += grad[end].bytes;
		}
		if (bytes)
			sum_data(b, K3_GROUP_REPLICATE, m->n_blocks + i, end - i, grad[i].layer,
				 (int)i);
	}
}

void
k3i_reduce_step(struct k3_builder *b)
{
	const struct k3_model *m = b->model;

	sum_replicas(b);
	sum_data(b, K3_GROUP_WORLD, m->loss_acc, 1, -1, -1);
	for (uint32_t l = 0; l < m->config.layers; l++)
		if (m->balance[l] != K3_NO_DATUM)
			sum_data(b, K3_GROUP_WORLD, (uint32_t)m->balance[l], 1, (int)l, -1);
}

void
k3i_reduce_norm(struct k3_builder *b)
{
	const struct k3_model *m = b->model;

	for (uint32_t i = 0; i < m->n_norm_partial; i += MAX_SUMS)
		sum_data(b, K3_GROUP_SHARD, m->norm_partial + i,
			 m->n_norm_partial - i < MAX_SUMS ? m->n_norm_partial - i : MAX_SUMS, -1,
			 (int)i);
}
