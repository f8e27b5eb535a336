/* NCCL behind the communication codelets: the worker that carries them. */
#include "lane.h"

#include <starpu.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
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
#include <starpu_cuda.h>

#include "communicators.h"
#include "lane_call.h"
#include "trace_cuda.h"

static struct {
	bool wanted;
	bool alone; /* the worker is the lane's */
	int worker; /* -1: not chosen yet */
	starpu_data_handle_t order;
	struct k3i_communicators comms;
} lane = {.worker = -1};

/* In a task nothing can be returned.  The other ranks must not wait for this one. */
static void
failed(const struct k3_comm_call *call, int result, const char *what, const char *file, int line)
{
	k3_error("tasks", "%s:%d: %s: %s (%d): %s", file, line, what,
		 ncclGetErrorString((ncclResult_t)result), result, ncclGetLastError(call->comm));
	k3i_communicators_abort(&lane.comms);
	abort();
}

static void
run(void *buffers[], void *cl_arg)
{
	const struct k3_task *t = k3i_task_now();
	int id = starpu_worker_get_id_check();
	const struct k3_mesh *mesh = &lane.comms.mesh;
	ncclComm_t comm = lane.comms.comm[k3_mesh_comm_kind(mesh, t->comm)];
	void *buf[t->n_access + 1];

	(void)cl_arg;
	k3i_pointers(t, buf, buffers);
	k3i_trace_cuda_before(id);
	k3i_lane_call(buf, t, mesh, comm, starpu_cuda_get_local_stream(), failed);
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

int
k3i_lane_start(const struct k3_mesh *mesh)
{
	int ret;

	if (!lane.wanted)
		return K3_OK;
	if (cudaSetDevice(starpu_worker_get_devid(lane.worker)) != cudaSuccess) {
		k3_error("tasks", "device %d: %s", starpu_worker_get_devid(lane.worker),
			 cudaGetErrorString(cudaGetLastError()));
		return K3_ENODEV;
	}
	ret = k3i_communicators_open(&lane.comms, mesh);
	if (ret == K3_OK)
		k3_info("tasks", "communication by NCCL on worker %d%s, rank %u of %u", lane.worker,
			lane.alone ? ", its own" : "", mesh->rank, k3_mesh_ranks(mesh));
	return ret;
}

void
k3i_lane_stop(void)
{
	k3i_communicators_close(&lane.comms);
	if (lane.order)
		starpu_data_unregister(lane.order);
	lane.order = NULL;
	set_codelets(false);
	lane.worker = -1;
	lane.alone = lane.wanted = false;
}

uint64_t
k3_lane_bytes(void)
{
	return lane.comms.bytes;
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
