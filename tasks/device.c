/* CUDA kernels behind the codelets.  Each CUDA worker has one stream, and its tasks follow each
 * other on it, so one scratch buffer serves them all.  The trap: it may only grow while nothing
 * runs; plans of a run have equal slots, hence nearly equal scratch, and it grows in the first
 * step alone. */
#include "device.h"

#include <starpu.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "codelets.h"
#include "convert.h"
#include "lane.h"
#include "trace_cuda.h"

int
k3_device_parse(enum k3_device *device, const char *text)
{
	static const char *const names[] = {"cpu", "cuda", "all"};

	for (int i = 0; i < 3; i++)
		if (strcmp(text, names[i]) == 0) {
			*device = (enum k3_device)i;
			return K3_OK;
		}
	k3_error("tasks", "--device %s: must be cpu, cuda or all", text);
	return K3_EINVAL;
}

#if defined(K3_HAVE_CUDA) && defined(STARPU_USE_CUDA)
#include <starpu_cuda.h>

#include "../codelets/cuda/kernels.h"

typedef size_t scratch_func(const void *args);

static struct k3_cuda workers[STARPU_NMAXWORKERS];
static size_t scratch_bytes;
static uint64_t scratch_made;
static int worker_status[STARPU_NMAXWORKERS];

static void
pointers(void **out, void *const *buffers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = (void *)STARPU_VECTOR_GET_PTR(buffers[i]);
}

#define X(op, arguments, stem, scratch)                                                            \
	static void run_##op(void *buffers[], void *cl_arg)                                        \
	{                                                                                          \
		const struct arguments *a = cl_arg;                                                \
		int id = starpu_worker_get_id_check();                                             \
		const struct k3_cuda *cuda = &workers[id];                                         \
		void *buf[a->n_buf + 1];                                                           \
                                                                                                   \
		pointers(buf, buffers, a->n_buf);                                                  \
		k3i_trace_cuda_before(id);                                                         \
		if (k3i_task_now()->plan->model->options.dtype == K3_BF16)                         \
			k3_##stem##_cuda_bf16(buf, a, cuda);                                       \
		else                                                                               \
			k3_##stem##_cuda_f32(buf, a, cuda);                                        \
		k3i_trace_cuda_after(id);                                                          \
	}
K3_CUDA_OP_MAP(X)
#undef X

#define SCRATCH_0(stem) NULL
#define SCRATCH_1(stem) (scratch_func *)(void (*)(void))k3_##stem##_cuda_scratch
static const struct {
	starpu_cuda_func_t run;
	scratch_func *scratch;
} kernels[K3_N_OPS] = {
#define X(op, arguments, stem, has_scratch) [K3_OP_##op] = {run_##op, SCRATCH_##has_scratch(stem)},
	K3_CUDA_OP_MAP(X)
#undef X
};

bool
k3_device_has_cuda(void)
{
	return true;
}

bool
k3_device_gpu(struct k3_gpu *gpu)
{
	static const enum cudaDeviceAttr wanted[] = {
		cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount,
		cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth};
	struct cudaDeviceProp properties;
	int got[5], n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
		return false;
	for (size_t i = 0; i < 5; i++)
		if (cudaDeviceGetAttribute(&got[i], wanted[i], 0) != cudaSuccess)
			return false;
	if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
		return false;
	/* clocks are in kHz */
	k3_gpu_describe(gpu, properties.name, got[0], got[1], got[2] * 1e-3, got[3] * 1e-3, got[4]);
	return true;
}

int
k3i_device_choose(enum k3_device device)
{
	for (int op = 0; op < K3_N_OPS; op++) {
		struct starpu_codelet *cl = k3_codelet((enum k3_op)op);
		if (!cl || k3_op_is_comm((enum k3_op)op))
			continue;
		bool has = device != K3_DEVICE_CPU && kernels[op].run;
		cl->cuda_funcs[0] = has ? kernels[op].run : NULL;
		cl->cuda_flags[0] = has ? STARPU_CUDA_ASYNC : 0;
		cl->where = !has		       ? STARPU_CPU
			    : device == K3_DEVICE_CUDA ? STARPU_CUDA
						       : STARPU_CPU | STARPU_CUDA;
	}
	return K3_OK;
}

static void
start_worker(void *arg)
{
	int id = starpu_worker_get_id_check();
	void *stream = starpu_cuda_get_local_stream(); /* StarPU warns of tasks that do not ask */

	(void)arg;
	k3_cuda_fini(&workers[id]);
	/* the lane's worker computes nothing */
	if (!k3i_lane_owns(id))
		worker_status[id] = k3_cuda_init(&workers[id], stream, scratch_bytes);
}

static void
stop_worker(void *arg)
{
	(void)arg;
	k3_cuda_fini(&workers[starpu_worker_get_id_check()]);
}

static int
start_workers(void)
{
	int ret = K3_OK;

	scratch_made++;
	starpu_execute_on_each_worker(start_worker, NULL, STARPU_CUDA);
	for (int i = 0; i < STARPU_NMAXWORKERS; i++)
		if (worker_status[i] != K3_OK)
			ret = worker_status[i];
	return ret;
}

int
k3i_device_start(enum k3_device device)
{
	if (device == K3_DEVICE_CPU)
		return K3_OK;
	if (starpu_cuda_worker_get_count() == 0) {
		k3_error("tasks",
			 "StarPU has no CUDA worker (is there a device? STARPU_NCUDA is %s)",
			 getenv("STARPU_NCUDA") ? getenv("STARPU_NCUDA") : "not set");
		return K3_ENODEV;
	}
	scratch_bytes = 0;
	memset(worker_status, 0, sizeof(worker_status));
	return start_workers();
}

void
k3i_device_stop(void)
{
	if (starpu_cuda_worker_get_count() > 0)
		starpu_execute_on_each_worker(stop_worker, NULL, STARPU_CUDA);
}

size_t
k3_device_scratch_bytes(const struct k3_plan *plan)
{
	size_t most = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		size_t bytes = kernels[t->op].scratch ? kernels[t->op].scratch(t->args) : 0;
		most = bytes > most ? bytes : most;
	}
	return most;
}

size_t
k3_device_fixed_bytes(void)
{
	return K3_CUDA_BLAS_BYTES + K3_CUDA_SUM_BYTES;
}

uint64_t
k3_device_scratch_made(void)
{
	return scratch_made;
}

int
k3i_device_reserve(const struct k3_plan *plan)
{
	size_t most;

	if (starpu_cuda_worker_get_count() == 0)
		return K3_OK;
	most = k3_device_scratch_bytes(plan);
	if (most <= scratch_bytes)
		return K3_OK;
	starpu_task_wait_for_all();
	scratch_bytes = most;
	return start_workers();
}

#else

bool
k3_device_has_cuda(void)
{
	return false;
}

bool
k3_device_gpu(struct k3_gpu *gpu)
{
	(void)gpu;
	return false;
}

int
k3i_device_choose(enum k3_device device)
{
	if (device == K3_DEVICE_CPU)
		return K3_OK;
	k3_error("tasks", "this build has no CUDA: configure --with-cuda and a StarPU with CUDA "
			  "are needed");
	return K3_ENODEV;
}

int
k3i_device_start(enum k3_device device)
{
	(void)device;
	return K3_OK;
}

void
k3i_device_stop(void)
{
}

size_t
k3_device_scratch_bytes(const struct k3_plan *plan)
{
	(void)plan;
	return 0;
}

size_t
k3_device_fixed_bytes(void)
{
	return 0;
}

uint64_t
k3_device_scratch_made(void)
{
	return 0;
}

int
k3i_device_reserve(const struct k3_plan *plan)
{
	(void)plan;
	return K3_OK;
}

#endif
