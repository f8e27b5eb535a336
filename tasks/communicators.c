#include "communicators.h"

#include <cuda_runtime.h>

#include "../common/log.h"
#include "../common/status.h"

/* A status at start: nothing runs yet, so the caller can give up. */
static int
started(const struct k3i_communicators *comms, ncclResult_t result, const char *what,
	enum k3_group kind)
{
	if (result == ncclSuccess)
		return K3_OK;
	k3_error("tasks", "%s of communicator %s: %s (%d): %s", what, k3_mesh_group_name(kind),
		 ncclGetErrorString(result), result, ncclGetLastError(comms->comm[K3_GROUP_WORLD]));
	return K3_ENODEV;
}

/* All ranks meet under one id, which the first makes; it is this one as long as it is alone. */
static int
make_world(struct k3i_communicators *comms)
{
	ncclUniqueId id;
	int ret;

	if (k3_mesh_ranks(&comms->mesh) > 1) {
		k3_error("tasks", "%u ranks: this version starts one", k3_mesh_ranks(&comms->mesh));
		return K3_ENODEV;
	}
	K3_TRY(started(comms, ncclGetUniqueId(&id), "ncclGetUniqueId", K3_GROUP_WORLD));
	K3_TRY(started(comms,
		       ncclCommInitRank(&comms->comm[K3_GROUP_WORLD],
					(int)k3_mesh_ranks(&comms->mesh), id,
					(int)comms->mesh.rank),
		       "ncclCommInitRank", K3_GROUP_WORLD));
out:
	return ret;
}

/* The groups of a kind together are the world, so one split makes all of them. */
static int
make_groups(struct k3i_communicators *comms)
{
	int ret = K3_OK;

	for (int kind = K3_GROUP_WORLD + 1; kind < K3_N_GROUPS; kind++) {
		int32_t number = k3_mesh_comm(&comms->mesh, (enum k3_group)kind);
		if (number >= 0 && (int)k3_mesh_comm_kind(&comms->mesh, number) == kind)
			K3_TRY(started(comms,
				       ncclCommSplit(comms->comm[K3_GROUP_WORLD], number,
						     (int)comms->mesh.rank, &comms->comm[kind],
						     NULL),
				       "ncclCommSplit", (enum k3_group)kind));
	}
out:
	return ret;
}

/* Of the current device; 0: CUDA does not tell. */
static uint64_t
free_bytes(void)
{
	size_t left = 0, all = 0;

	return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* A small sum on each, so that the first tasks do not pay for the connections. */
static int
warm(const struct k3i_communicators *comms)
{
	cudaStream_t stream = NULL;
	float *one = NULL;
	int ret = K3_OK;

	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
	    cudaMalloc((void **)&one, sizeof(*one)) != cudaSuccess ||
	    cudaMemsetAsync(one, 0, sizeof(*one), stream) != cudaSuccess)
		ret = K3_ENODEV;
	for (int kind = 0; kind < K3_N_GROUPS && ret == K3_OK; kind++)
		if (comms->comm[kind]) {
			ret = started(comms,
				      ncclAllReduce(one, one, 1, ncclFloat32, ncclSum,
						    comms->comm[kind], stream),
				      "ncclAllReduce", (enum k3_group)kind);
			if (ret == K3_OK && cudaStreamSynchronize(stream) != cudaSuccess)
				ret = K3_ENODEV;
		}
	cudaError_t error = cudaGetLastError();
	if (error != cudaSuccess)
		k3_error("tasks", "the communicators could not be warmed: %s",
			 cudaGetErrorString(error));
	cudaFree(one);
	if (stream)
		cudaStreamDestroy(stream);
	return ret;
}

int
k3i_communicators_open(struct k3i_communicators *comms, const struct k3_mesh *mesh)
{
	uint64_t before = free_bytes(), after;
	int ret;

	comms->mesh = *mesh;
	K3_TRY(make_world(comms));
	K3_TRY(make_groups(comms));
	K3_TRY(warm(comms));
	after = free_bytes();
	comms->bytes = before > after ? before - after : 0;
out:
	if (ret != K3_OK)
		k3i_communicators_abort(comms);
	return ret;
}

void
k3i_communicators_close(struct k3i_communicators *comms)
{
	for (int kind = K3_N_GROUPS; kind-- > 0;) {
		if (comms->comm[kind])
			(void)started(comms, ncclCommDestroy(comms->comm[kind]), "ncclCommDestroy",
				      (enum k3_group)kind);
		comms->comm[kind] = NULL;
	}
	comms->bytes = 0;
}

void
k3i_communicators_abort(struct k3i_communicators *comms)
{
	for (int kind = K3_N_GROUPS; kind-- > 0;)
		if (comms->comm[kind]) {
			ncclCommAbort(comms->comm[kind]);
			comms->comm[kind] = NULL;
		}
}
