/* StarPU launches tasks of a stream ahead and looks for their ends by polling, so its times are those
 * of the polling.  Here an event is recorded before and after what a task launches, and read when
 * StarPU knows of the task's end, so nothing waits.  Between both lie the task's kernels and, when the
 * stream had nothing else to do, the host's way from launch to launch.
 *
 * The traps: a device's clock is not the host's, so both are tied at the beginning and at the end of a
 * trace, and what lies between is scaled; and the time between two events is a float of milliseconds,
 * too coarse over minutes, so the origin follows. */
#include "trace_cuda.h"

#include <starpu.h>

#include "trace.h"

#if defined(K3_HAVE_CUDA) && defined(STARPU_USE_CUDA)
#include <math.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <starpu_cuda.h>

#include "../codelets/cuda/cuda.h"
#include "../common/log.h"

/* StarPU launches fewer tasks ahead on one worker; of more than that no times are taken. */
enum { PENDING = 16, TRIES = 16 };
static const double origin_lasts_ms = 1000;

/* A task between its launch and its end. */
struct pending {
	const struct starpu_task *task;
	cudaEvent_t before, after;
};

struct stream {
	bool on;
	cudaStream_t stream;
	cudaEvent_t origin;
	double origin_ns, tied_ns; /* on the host's clock; tied_ns: that of the first origin */
	int64_t last_ns;	   /* end of the last task */
	struct pending pending[PENDING];
	unsigned first, n;
	double factor; /* of the device's time since tied_ns, known at the end */
};

static struct stream streams[STARPU_NMAXWORKERS];
static int64_t (*host_ns)(void);

static double
elapsed_ms(cudaEvent_t from, cudaEvent_t to)
{
	float ms;

	K3_CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
	return (double)ms;
}

/* The host's time of an event: the tightest of some attempts. */
static double
tie(cudaStream_t stream, cudaEvent_t *event)
{
	double host = 0, least = INFINITY;
	cudaEvent_t spare;

	K3_CUDA_CHECK(cudaEventCreate(&spare));
	for (int i = 0; i < TRIES; i++) {
		int64_t from = host_ns();
		K3_CUDA_CHECK(cudaEventRecord(spare, stream));
		K3_CUDA_CHECK(cudaEventSynchronize(spare));
		int64_t took = host_ns() - from;
		if ((double)took >= least)
			continue;
		cudaEvent_t best = spare;
		spare = *event;
		*event = best;
		least = (double)took;
		host = (double)from + 0.5 * least;
	}
	K3_CUDA_CHECK(cudaEventDestroy(spare));
	return host;
}

static void
start_worker(void *arg)
{
	struct stream *s = &streams[starpu_worker_get_id_check()];

	(void)arg;
	memset(s, 0, sizeof(*s));
	s->stream = starpu_cuda_get_local_stream();
	K3_CUDA_CHECK(cudaEventCreate(&s->origin));
	for (int i = 0; i < PENDING; i++) {
		K3_CUDA_CHECK(cudaEventCreate(&s->pending[i].before));
		K3_CUDA_CHECK(cudaEventCreate(&s->pending[i].after));
	}
	s->tied_ns = s->origin_ns = tie(s->stream, &s->origin);
	s->on = true;
}

static void
stop_worker(void *arg)
{
	struct stream *s = &streams[starpu_worker_get_id_check()];
	cudaEvent_t last;

	(void)arg;
	if (!s->on)
		return;
	K3_CUDA_CHECK(cudaEventCreate(&last));
	double host = tie(s->stream, &last);
	double device = s->origin_ns + 1e6 * elapsed_ms(s->origin, last);
	s->factor = device > s->tied_ns ? (host - s->tied_ns) / (device - s->tied_ns) : 1;
	s->on = false;
	K3_CUDA_CHECK(cudaEventDestroy(last));
	K3_CUDA_CHECK(cudaEventDestroy(s->origin));
	for (int i = 0; i < PENDING; i++) {
		K3_CUDA_CHECK(cudaEventDestroy(s->pending[i].before));
		K3_CUDA_CHECK(cudaEventDestroy(s->pending[i].after));
	}
}

void
k3i_trace_cuda_start(int64_t (*now_ns)(void))
{
	host_ns = now_ns;
	if (starpu_cuda_worker_get_count() > 0)
		starpu_execute_on_each_worker(start_worker, NULL, STARPU_CUDA);
}

void
k3i_trace_cuda_stop(struct k3_trace *trace)
{
	if (starpu_cuda_worker_get_count() == 0)
		return;
	starpu_execute_on_each_worker(stop_worker, NULL, STARPU_CUDA);
	for (int w = 0; w < STARPU_NMAXWORKERS; w++) {
		struct stream *s = &streams[w];
		if (s->factor <= 0)
			continue;
		k3_debug("tasks",
			 "trace: the clock of worker %d ran off by %.3g parts in a million", w,
			 1e6 * (s->factor - 1));
		k3_trace_rescale(trace, w, llrint(s->tied_ns), s->factor);
		s->factor = 0;
	}
}

void
k3i_trace_cuda_before(int worker)
{
	struct stream *s = &streams[worker];

	if (!s->on || s->n == PENDING)
		return;
	struct pending *p = &s->pending[(s->first + s->n) % PENDING];
	p->task = starpu_task_get_current();
	K3_CUDA_CHECK(cudaEventRecord(p->before, s->stream));
}

void
k3i_trace_cuda_after(int worker)
{
	struct stream *s = &streams[worker];

	if (!s->on || s->n == PENDING)
		return;
	K3_CUDA_CHECK(cudaEventRecord(s->pending[(s->first + s->n) % PENDING].after, s->stream));
	s->n++;
}

bool
k3i_trace_cuda_times(int worker, const struct starpu_task *task, int64_t *start, int64_t *end)
{
	struct stream *s = &streams[worker];
	struct pending *p = &s->pending[s->first];

	if (!s->on || s->n == 0 || p->task != task)
		return false;
	s->first = (s->first + 1) % PENDING;
	s->n--;
	double since_ms = elapsed_ms(s->origin, p->before);
	double from_ns = s->origin_ns + 1e6 * since_ms;
	double to_ns = from_ns + 1e6 * elapsed_ms(p->before, p->after);
	*start = llrint(from_ns);
	if (*start < s->last_ns)
		*start = s->last_ns; /* a stream runs one task at a time: roundings */
	*end = llrint(to_ns);
	if (*end < *start)
		*end = *start;
	s->last_ns = *end;
	if (since_ms > origin_lasts_ms) {
		cudaEvent_t old = s->origin;
		s->origin = p->after;
		s->origin_ns = to_ns;
		p->after = old;
	}
	return true;
}

#else

void
k3i_trace_cuda_start(int64_t (*now_ns)(void))
{
	(void)now_ns;
}

void
k3i_trace_cuda_stop(struct k3_trace *trace)
{
	(void)trace;
}

void
k3i_trace_cuda_before(int worker)
{
	(void)worker;
}

void
k3i_trace_cuda_after(int worker)
{
	(void)worker;
}

bool
k3i_trace_cuda_times(int worker, const struct starpu_task *task, int64_t *start, int64_t *end)
{
	(void)worker;
	(void)task;
	(void)start;
	(void)end;
	return false;
}

#endif
