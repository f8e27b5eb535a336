/* CUDA kernels behind the codelets.  Each CUDA worker has one stream, and its tasks follow each
 * other on it, so one scratch buffer serves them all.  The trap: it may only grow while nothing
 * runs; plans of a run have equal slots, hence nearly equal scratch, and it grows in the first
 * step alone. */
#include "device.h"

#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

#define X(op, arguments, stem, scratch)                                                            \
	static void run_##op(void *buffers[], void *cl_arg)                                        \
	{                                                                                          \
		const struct arguments *a = cl_arg;                                                \
		int id = starpu_worker_get_id_check();                                             \
		const struct k3_cuda *cuda = &workers[id];                                         \
		const struct k3_task *t = k3i_task_now();                                          \
		void *buf[a->n_buf + 1];                                                           \
                                                                                                   \
		k3i_pointers(t, buf, buffers);                                                     \
		k3i_trace_cuda_before(id);                                                         \
		if (t->plan->model->options.dtype == K3_BF16)                                      \
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

/* What CUDA tells of the devices. */
enum { MOST_GPUS = 64 };
struct facts {
	int n;
	struct k3_gpu first;
	uint64_t memory_bytes[MOST_GPUS];
};

static void
look(struct facts *facts)
{
	static const enum cudaDeviceAttr wanted[] = {
		cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount,
		cudaDevAttrClockRate, cudaDevAttrMemoryClockRate, cudaDevAttrGlobalMemoryBusWidth};
	struct cudaDeviceProp properties;
	int got[5], n = 0;

	facts->n = 0;
	if (cudaGetDeviceCount(&n) != cudaSuccess)
		return;
	for (size_t i = 0; i < 5; i++)
		if (cudaDeviceGetAttribute(&got[i], wanted[i], 0) != cudaSuccess)
			return;
	for (int i = 0; i < n && i < MOST_GPUS; i++) {
		if (cudaGetDeviceProperties(&properties, i) != cudaSuccess)
			return;
		facts->memory_bytes[i] = properties.totalGlobalMem;
		if (i == 0) /* clocks are in kHz */
			k3_gpu_describe(&facts->first, properties.name, got[0], got[1],
					got[2] * 1e-3, got[3] * 1e-3, got[4]);
		facts->n = i + 1;
	}
}

/* Asked once, by a child process: a process that has asked CUDA cannot give it to children of its
 * own (k3_bench step runs each row in one). */
static const struct facts *
device_facts(void)
{
	static struct facts facts;
	static bool asked;
	int ends[2];
	pid_t child;
	size_t got = 0;

	if (asked)
		return &facts;
	asked = true;
	if (pipe(ends) != 0)
		return &facts;
	fflush(NULL);
	child = fork();
	if (child == 0) {
		look(&facts);
		_exit(write(ends[1], &facts, sizeof(facts)) != (ssize_t)sizeof(facts));
	}
	close(ends[1]);
	for (ssize_t n = 1; child > 0 && n > 0 && got<sizeof(facts); got += n> 0 ? (size_t)n : 0)
		n = read(ends[0], (char *)&facts + got, sizeof(facts) - got);
	close(ends[0]);
	if (child > 0)
		waitpid(child, NULL, 0);
	if (got < sizeof(facts))
		facts.n = 0;
	return &facts;
}

bool
k3_device_gpu(struct k3_gpu *gpu)
{
	const struct facts *facts = device_facts();

	if (facts->n > 0)
		*gpu = facts->first;
	return facts->n > 0;
}

/* MiB that a variable of the environment grants; -1: it does not say. */
static long long
granted_mib(const char *name)
{
	const char *text = getenv(name);
	char *end;
	long long mib = text ? strtoll(text, &end, 10) : -1;

	return text && end != text && mib >= 0 ? mib : -1;
}

uint64_t
k3_device_memory_limit(void)
{
	const struct facts *facts = device_facts();
	uint64_t least = 0;

	for (int i = 0; i < facts->n; i++) {
		uint64_t bytes = facts->memory_bytes[i] / 10 * 9;
		long long mib;
		char own[64];
		snprintf(own, sizeof(own), "STARPU_LIMIT_CUDA_%d_MEM", i);
		mib = granted_mib(own);
		if (mib < 0)
			mib = granted_mib("STARPU_LIMIT_CUDA_MEM");
		if (mib >= 0)
			bytes = (uint64_t)mib << 20;
		if (!least || bytes < least)
			least = bytes;
	}
	return least;
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
		/* initial values are made in one place: a GPU's logarithms round otherwise than a
		 * core's, and data that share a handle would travel from task to task */
		bool alone = device == K3_DEVICE_CUDA || op == K3_OP_PARAM_INIT;
		cl->where = !has ? STARPU_CPU : alone ? STARPU_CUDA : STARPU_CPU | STARPU_CUDA;
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

/* StarPU takes the GPUs that there are, and says so only when it may speak. */
static void
warn_fewer_gpus(void)
{
	const char *asked = getenv("STARPU_NCUDA");
	unsigned n = 0;

	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++)
		n += starpu_node_get_kind(node) == STARPU_CUDA_RAM;
	if (asked && atol(asked) > (long)n)
		k3_warn("tasks",
			"STARPU_NCUDA=%s (environment): the run has %u, all that StarPU found",
			asked, n);
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
	warn_fewer_gpus();
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

uint64_t
k3_device_memory_limit(void)
{
	return 0;
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
