/* What a communication kernel is told of its task.  A plan names ranks of the world, NCCL places
 * in a communicator. */
#include "lane_call.h"

static k3_comm_func *const calls[K3_N_OPS] = {
	[K3_OP_GATHER_PARAMS] = k3_gather_params_nccl,
	[K3_OP_REDUCE_SCATTER_GRADS] = k3_reduce_scatter_grads_nccl,
	[K3_OP_ALLREDUCE] = k3_allreduce_nccl,
	[K3_OP_GATHER_KV] = k3_gather_kv_nccl,
	[K3_OP_SCATTER_KV_GRADS] = k3_scatter_kv_grads_nccl,
	/* the same with other rows */
	[K3_OP_GATHER_FEATURES] = k3_gather_kv_nccl,
	[K3_OP_SUM_FEATURE_GRADS] = k3_scatter_kv_grads_nccl,
	[K3_OP_HALO_SEND] = k3_halo_send_nccl,
	[K3_OP_HALO_RECV] = k3_halo_recv_nccl,
	[K3_OP_KDA_STATE_GATHER] = k3_kda_state_gather_nccl,
};

bool
k3i_lane_carries(enum k3_op op)
{
	return calls[op] != NULL;
}

void
k3i_lane_call(void *const *buf, const struct k3_task *task, const struct k3_mesh *mesh, void *comm,
	      void *stream, k3_comm_failed *failed)
{
	const struct k3_access *access = &task->plan->access[task->first_access];
	enum k3_group kind = k3_mesh_comm_kind(mesh, task->comm);
	size_t elems[task->n_access + 1];
	struct k3_comm_call call = {
		.comm = comm,
		.stream = stream,
		.rank = k3_mesh_group_rank(mesh, kind, mesh->rank),
		.ranks = k3_mesh_group_size(mesh, kind),
		.peer = -1,
		.dtype = (enum k3_dtype)task->comm_dtype,
		.n_buf = task->n_access,
		.elems = elems,
		.failed = failed,
	};

	if (task->peer >= 0)
		call.peer = (int)k3_mesh_group_rank(mesh, kind, (uint32_t)task->peer);
	for (uint32_t i = 0; i < task->n_access; i++) {
		const struct k3_datum *d = &task->plan->data[access[i].datum];
		elems[i] = d->rows * d->row_elems;
	}
	k3_comm_check_nccl(&call);
	calls[task->op](buf, task->args, &call);
}
