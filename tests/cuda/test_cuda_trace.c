/* Times of tasks on a device, through StarPU, against events that the tasks record themselves. */
#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <starpu.h>
#include <starpu_cuda.h>
#include <string.h>

#include "../../common/status.h"
#include "../../tasks/trace_cuda.h"
#include "../../tasks/trace_record.h"
#include "../../tasks/trace_starpu.h"
#include "../scratch.h"
#include "cuda_case.h"

static void
start(void)
{
	scratch_start();
	cuda_case_need_device();
	cr_assert_eq(starpu_init(NULL), 0);
}

static void
stop(void)
{
	starpu_shutdown();
	scratch_stop();
}

#define TEST(name) Test(cuda_trace, name, .init = start, .fini = stop, .timeout = 120)

/* Copies of sizes from 1 to 256 MiB: from 1 us to some 0.1 ms. */
enum { TASKS = 40, MOST = 256 };
struct copy {
	cudaEvent_t from, to;
	size_t bytes;
	struct k3_trace_record *record;
};
static char *memory;

/* As a codelet's wrapper does it (tasks/device.c). */
static void
run(void *buffers[], void *arg)
{
	struct copy *c = arg;
	cudaStream_t stream = starpu_cuda_get_local_stream();
	int worker = starpu_worker_get_id_check();

	(void)buffers;
	k3i_trace_cuda_before(worker);
	K3_CUDA_CHECK(cudaEventRecord(c->from, stream));
	K3_CUDA_CHECK(cudaMemcpyAsync(memory, memory + ((size_t)MOST << 20), c->bytes,
				      cudaMemcpyDeviceToDevice, stream));
	K3_CUDA_CHECK(cudaEventRecord(c->to, stream));
	k3i_trace_cuda_after(worker);
}

static void
submit(struct k3_trace *trace, struct copy *c)
{
	static struct starpu_codelet codelet = {
		.where = STARPU_CUDA, .cuda_funcs = {run}, .cuda_flags = {STARPU_CUDA_ASYNC}};
	struct k3_task what = {.op = K3_OP_EMBED_FWD, .pass = K3_PASS_FORWARD};
	struct starpu_task *task = starpu_task_create();

	task->cl = &codelet;
	task->cl_arg = c;
	task->cl_arg_size = sizeof(*c);
	c->record = k3_trace_submit(trace, &what);
	k3i_trace_starpu_attach(task, c->record);
	cr_assert_eq(starpu_task_submit(task), 0);
}

/* Both events of n copies. */
static void
events_create(struct copy *copy, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		K3_CUDA_CHECK(cudaEventCreate(&copy[i].from));
		K3_CUDA_CHECK(cudaEventCreate(&copy[i].to));
	}
}

/* What the copies took by their own events, us. */
static double
own_us(const struct copy *copy, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++) {
		float ms;
		K3_CUDA_CHECK(cudaEventElapsedTime(&ms, copy[i].from, copy[i].to));
		sum += 1e3 * (double)ms;
	}
	return sum;
}

static int64_t
now_ns(void)
{
	return (int64_t)(starpu_timing_now() * 1e3);
}

/* Slack for the tie of both clocks and the events' half microsecond. */
static const int64_t slack_ns = 50000;

TEST(tasks_are_as_long_as_their_own_events_say_and_never_overlap)
{
	struct k3_trace *trace;
	struct copy copy[TASKS];
	int64_t begin, end, last = 0;

	K3_CUDA_CHECK(cudaMalloc((void **)&memory, (size_t)2 * MOST << 20));
	cr_assert_eq(k3i_trace_starpu_create(&trace, NULL, 0), K3_OK, "%s", scratch_log());
	for (size_t i = 0; i < TASKS; i++)
		copy[i].bytes = (size_t)1 << (20 + i % 9);
	events_create(copy, TASKS);
	begin = now_ns();
	for (size_t i = 0; i < TASKS; i++)
		submit(trace, &copy[i]);
	starpu_task_wait_for_all();
	end = now_ns();
	k3i_trace_starpu_end(trace);
	k3i_trace_snapshot(trace);
	cr_assert_eq(trace->n_spans, TASKS);
	for (size_t i = 0; i < TASKS; i++) {
		const struct k3i_span *s = &trace->span[i];
		cr_expect(s->start >= begin - slack_ns && s->end <= end + slack_ns,
			  "from %.1f to %.1f us of a run of %.1f us",
			  1e-3 * (double)(s->start - begin), 1e-3 * (double)(s->end - begin),
			  1e-3 * (double)(end - begin));
		cr_expect(s->start >= last && s->end > s->start, "task %zu begins %.3f us early", i,
			  1e-3 * (double)(last - s->start));
		last = s->end;
	}
	for (size_t i = 0; i < TASKS; i++) {
		const struct k3_trace_record *r = copy[i].record;
		double own = own_us(&copy[i], 1), got = 1e-3 * (double)(r->end_ns - r->start_ns);
		/* two launches more lie between the outer events when the stream was idle */
		cr_expect(got > own - 2 && got < own + 60, "%zu bytes took %.1f us, not %.1f",
			  copy[i].bytes, own, got);
		cr_expect(r->released_ns >= 0 && r->ready_ns <= r->start_ns + slack_ns);
		K3_CUDA_CHECK(cudaEventDestroy(copy[i].from));
		K3_CUDA_CHECK(cudaEventDestroy(copy[i].to));
	}
	k3i_trace_starpu_destroy(trace);
	K3_CUDA_CHECK(cudaFree(memory));
}

TEST(a_second_trace_is_as_good_as_the_first)
{
	enum { COPIES = 8 };
	struct copy copy[COPIES];
	struct k3_trace_share share;
	struct k3_trace *trace;

	K3_CUDA_CHECK(cudaMalloc((void **)&memory, (size_t)2 * MOST << 20));
	events_create(copy, COPIES);
	for (int turn = 0; turn < 3; turn++) {
		cr_assert_eq(k3i_trace_starpu_create(&trace, NULL, 0), K3_OK);
		for (int i = 0; i < COPIES; i++) {
			copy[i].bytes = (size_t)MOST << 20;
			submit(trace, &copy[i]);
			if (turn == 2) /* the stream idles before each */
				starpu_task_wait_for_all();
		}
		starpu_task_wait_for_all();
		k3i_trace_starpu_end(trace);
		cr_assert_eq(k3_trace_share(trace, true, &share), K3_OK);
		cr_expect_eq(share.tasks, COPIES);
		double own = own_us(copy, COPIES),
		       busy = 1e6 * share.kernels * share.wall_s * share.workers;
		cr_expect(busy > own - 2 * COPIES && busy < own + 60 * COPIES && share.kernels <= 1,
			  "turn %d: busy %.1f us, %.3f of all, by own events %.1f us", turn, busy,
			  share.kernels, own);
		cr_expect(share.runtime >= 0 && share.kernels + share.runtime <= 1 + 1e-9,
			  "turn %d: %.3f + %.3f", turn, share.kernels, share.runtime);
		k3i_trace_starpu_destroy(trace);
	}
	K3_CUDA_CHECK(cudaFree(memory));
}
