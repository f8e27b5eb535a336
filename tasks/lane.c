/* NCCL behind the communication codelets.  The trap: NCCL's own threads take the binding of the
 * thread that makes a communicator, so that is the program's, not a worker's, which is bound to
 * one core. */
#include "lane.h"

#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../planner/mesh.h"
#include "codelets.h"
#include "convert.h"

int
k3_transport_parse(enum k3_transport *transport, const char *text)
{
	if (strcmp(text, "none") != 0 && strcmp(text, "nccl") != 0) {
		k3_error("tasks", "--comm %s: must be none or nccl", text);
		return K3_EINVAL;
	}
	*transport = strcmp(text, "nccl") == 0 ? K3_TRANSPORT_NCCL : K3_TRANSPORT_NONE;
	return K3_OK;
}

#if defined(K3_HAVE_NCCL) && defined(STARPU_USE_CUDA)
#include <nccl.h>
#include <starpu_cuda.h>

#include "lane_call.h"
#include "trace_cuda.h"

static struct {
	bool wanted;
	bool alone; /* the worker is the lane's */
	int worker; /* -1: not chosen yet */
	starpu_data_handle_t order;
	struct k3_mesh mesh;
	uint64_t bytes; /* that the communicators took of the GPU */
	/* of this rank's group of each kind; NULL: it does not communicate, or shares an earlier
	 * kind's */
	ncclComm_t comm[K3_N_GROUPS];
} lane = {.worker = -1};

static void
abort_all(void)
{
	for (int kind = K3_N_GROUPS; kind-- > 0;)
		if (lane.comm[kind]) {
			ncclCommAbort(lane.comm[kind]);
			lane.comm[kind] = NULL;
		}
}

/* In a task nothing can be returned.  The other ranks must not wait for this one. */
static void
failed(const struct k3_comm_call *call, int result, const char *what, const char *file, int line)
{
	k3_error("tasks", "%s:%d: %s: %s (%d): %s", file, line, what,
		 ncclGetErrorString((ncclResult_t)result), result, ncclGetLastError(call->comm));
	abort_all();
	abort();
}

static void
run(void *buffers[], void *cl_arg)
{
	const struct k3_task *t = k3i_task_now();
	int id = starpu_worker_get_id_check();
	ncclComm_t comm = lane.comm[k3_mesh_comm_kind(&lane.mesh, t->comm)];
	void *buf[t->n_access + 1];

	(void)cl_arg;
	k3i_pointers(t, buf, buffers);
	k3i_trace_cuda_before(id);
	k3i_lane_call(buf, t, &lane.mesh, comm, starpu_cuda_get_local_stream(), failed);
	k3i_trace_cuda_after(id);
}

/* Does compute go to this worker? */
static int
can_compute(unsigned worker, struct starpu_task *task, unsigned nimpl)
{
	(void)task;
	(void)nimpl;
	return (int)worker != lane.worker;
}

/* Communication tasks run on CUDA workers, or are refused; nothing else runs on the lane's own. */
static void
set_codelets(bool on)
{
	for (int op = 0; op < K3_N_OPS; op++) {
		if (k3i_lane_carries((enum k3_op)op))
			k3i_codelet_set_comm((enum k3_op)op, on ? run : NULL);
		else if (k3_codelet((enum k3_op)op))
			k3_codelet((enum k3_op)op)->can_execute =
				on && lane.alone ? can_compute : NULL;
	}
}

int
k3i_lane_prepare(enum k3_transport transport, enum k3_device device)
{
	lane.wanted = transport == K3_TRANSPORT_NCCL;
	if (!lane.wanted)
		return K3_OK;
	if (device == K3_DEVICE_CPU) {
		k3_error("tasks", "--comm nccl: moves data between GPUs, so it needs --device cuda "
				  "or all");
		return K3_EINVAL;
	}
	if (setenv("STARPU_NWORKER_PER_CUDA", "2", 0) != 0 ||
	    setenv("STARPU_CUDA_THREAD_PER_WORKER", "1", 0) != 0)
		return K3_ENOMEM;
	return K3_OK;
}

int
k3i_lane_choose(void)
{
	int worker[STARPU_NMAXWORKERS];
	unsigned n;

	if (!lane.wanted)
		return K3_OK;
	n = starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, worker, STARPU_NMAXWORKERS);
	for (unsigned i = 1; i < n; i++)
		if (starpu_worker_get_devid(worker[i]) != starpu_worker_get_devid(worker[0])) {
			k3_error("tasks", "StarPU has several GPUs: a rank that communicates has "
					  "one (STARPU_NCUDA=1)");
			return K3_ENODEV;
		}
	if (n == 0) {
		k3_error("tasks", "--comm nccl: StarPU has no CUDA worker");
		return K3_ENODEV;
	}
	lane.worker = worker[n - 1];
	lane.alone = n > 1;
	if (!lane.alone)
		k3_warn("tasks",
			"the GPU has one worker: communication waits for compute tasks "
			"(STARPU_NWORKER_PER_CUDA=2 STARPU_CUDA_THREAD_PER_WORKER=1, and a "
			"StarPU without blocking drivers)");
	starpu_void_data_register(&lane.order);
	set_codelets(true);
	return K3_OK;
}

/* A status at start: nothing runs yet, so the caller can give up. */
static int
started(ncclResult_t result, const char *what, enum k3_group kind)
{
	if (result == ncclSuccess)
		return K3_OK;
	k3_error("tasks", "%s of communicator %s: %s (%d): %s", what, k3_mesh_group_name(kind),
		 ncclGetErrorString(result), result, ncclGetLastError(lane.comm[K3_GROUP_WORLD]));
	return K3_ENODEV;
}

/* All ranks meet under one id, which the first makes; it is this one as long as it is alone. */
static int
make_world(void)
{
	ncclUniqueId id;
	int ret;

	if (k3_mesh_ranks(&lane.mesh) > 1) {
		k3_error("tasks", "%u ranks: this version starts one", k3_mesh_ranks(&lane.mesh));
		return K3_ENODEV;
	}
	K3_TRY(started(ncclGetUniqueId(&id), "ncclGetUniqueId", K3_GROUP_WORLD));
	K3_TRY(started(ncclCommInitRank(&lane.comm[K3_GROUP_WORLD], (int)k3_mesh_ranks(&lane.mesh),
					id, (int)lane.mesh.rank),
		       "ncclCommInitRank", K3_GROUP_WORLD));
out:
	return ret;
}

/* The groups of a kind together are the world, so one split makes all of them. */
static int
make_groups(void)
{
	int ret = K3_OK;

	for (int kind = K3_GROUP_WORLD + 1; kind < K3_N_GROUPS; kind++) {
		int32_t number = k3_mesh_comm(&lane.mesh, (enum k3_group)kind);
		if (number >= 0 && (int)k3_mesh_comm_kind(&lane.mesh, number) == kind)
			K3_TRY(started(ncclCommSplit(lane.comm[K3_GROUP_WORLD], number,
						     (int)lane.mesh.rank, &lane.comm[kind], NULL),
				       "ncclCommSplit", (enum k3_group)kind));
	}
out:
	return ret;
}

/* Of the lane's device; 0: CUDA does not tell. */
static uint64_t
free_bytes(void)
{
	size_t left = 0, all = 0;

	return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* A small sum on each, so that the first tasks do not pay for the connections. */
static int
warm(void)
{
	cudaStream_t stream = NULL;
	float *one = NULL;
	int ret = K3_OK;

	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
	    cudaMalloc((void **)&one, sizeof(*one)) != cudaSuccess ||
	    cudaMemsetAsync(one, 0, sizeof(*one), stream) != cudaSuccess)
		ret = K3_ENODEV;
	for (int kind = 0; kind < K3_N_GROUPS && ret == K3_OK; kind++)
		if (lane.comm[kind]) {
			ret = started(ncclAllReduce(one, one, 1, ncclFloat32, ncclSum,
						    lane.comm[kind], stream),
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
k3i_lane_start(const struct k3_mesh *mesh)
{
	uint64_t before, after;
	int ret;

	if (!lane.wanted)
		return K3_OK;
	lane.mesh = *mesh;
	if (cudaSetDevice(starpu_worker_get_devid(lane.worker)) != cudaSuccess) {
		k3_error("tasks", "device %d: %s", starpu_worker_get_devid(lane.worker),
			 cudaGetErrorString(cudaGetLastError()));
		K3_TRY(K3_ENODEV);
	}
	before = free_bytes();
	K3_TRY(make_world());
	K3_TRY(make_groups());
	K3_TRY(warm());
	after = free_bytes();
	lane.bytes = before > after ? before - after : 0;
	k3_info("tasks", "communication by NCCL on worker %d%s, rank %u of %u", lane.worker,
		lane.alone ? ", its own" : "", mesh->rank, k3_mesh_ranks(mesh));
out:
	if (ret != K3_OK)
		abort_all();
	return ret;
}

void
k3i_lane_stop(void)
{
	for (int kind = K3_N_GROUPS; kind-- > 0;) {
		if (lane.comm[kind])
			(void)started(ncclCommDestroy(lane.comm[kind]), "ncclCommDestroy",
				      (enum k3_group)kind);
		lane.comm[kind] = NULL;
	}
	if (lane.order)
		starpu_data_unregister(lane.order);
	lane.order = NULL;
	set_codelets(false);
	lane.bytes = 0;
	lane.worker = -1;
	lane.alone = lane.wanted = false;
}

uint64_t
k3_lane_bytes(void)
{
	return lane.bytes;
}

bool
k3i_lane_owns(int worker)
{
	return lane.alone && worker == lane.worker;
}

void
k3i_lane_bind(struct starpu_task *task, unsigned last)
{
	STARPU_TASK_SET_HANDLE(task, lane.order, last);
	STARPU_TASK_SET_MODE(task, STARPU_RW, last);
	task->execute_on_a_specific_worker = 1;
	task->workerid = (unsigned)lane.worker;
}

#else

int
k3i_lane_prepare(enum k3_transport transport, enum k3_device device)
{
	(void)device;
	if (transport == K3_TRANSPORT_NONE)
		return K3_OK;
	k3_error("tasks", "--comm nccl: this build has no NCCL: configure --with-cuda --with-nccl "
			  "and a StarPU with CUDA are needed");
	return K3_ENODEV;
}

int
k3i_lane_choose(void)
{
	return K3_OK;
}

int
k3i_lane_start(const struct k3_mesh *mesh)
{
	(void)mesh;
	return K3_OK;
}

void
k3i_lane_stop(void)
{
}

uint64_t
k3_lane_bytes(void)
{
	return 0;
}

bool
k3i_lane_owns(int worker)
{
	(void)worker;
	return false;
}

void
k3i_lane_bind(struct starpu_task *task, unsigned last)
{
	(void)task;
	(void)last;
}

#endif
