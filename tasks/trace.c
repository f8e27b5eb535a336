/* Records and their order in time.
 *
 * The ring and the array that sorts it are mapped once, as large as they may get; pages are touched
 * as tasks come, so a short run pays for what it uses.  Snapshots need no memory, and a signal
 * handler can take one while workers go on.  The traps: a record may change under the snapshot, so
 * its times are copied once and nothing is read again; and a handler must find a record either
 * whole or free, so the state is stored last. */
#include "trace_record.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"

static void *
map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

char *
k3i_trace_path(const struct k3_trace *trace, const char *name)
{
	size_t bytes = strlen(trace->dir) + strlen(name) + 2;
	char *path = malloc(bytes);

	if (path)
		snprintf(path, bytes, "%s/%s", trace->dir, name);
	return path;
}

static int
check(const struct k3_trace_options *o)
{
	int ret;

	if (o->n_workers < 1 || o->n_workers > INT16_MAX) {
		k3_error("tasks", "a trace of %u workers: 1 to %d are possible", o->n_workers,
			 INT16_MAX);
		return K3_EINVAL;
	}
	if (!o->dir)
		return K3_OK;
	K3_TRY(k3_fs_mkdirs(o->dir));
	if (access(o->dir, W_OK | X_OK) != 0) {
		k3_error("tasks", "--trace %s: cannot be written: %s", o->dir, strerror(errno));
		ret = K3_EIO;
	}
out:
	return ret;
}

static int
set_paths(struct k3_trace *t, const char *dir)
{
	t->dir = strdup(dir);
	t->paje = t->dir ? k3i_trace_path(t, "k3.paje") : NULL;
	t->tsv = t->dir ? k3i_trace_path(t, "tasks.tsv") : NULL;
	t->part = t->dir ? k3i_trace_path(t, ".part") : NULL;
	return t->paje && t->tsv && t->part ? K3_OK : K3_ENOMEM;
}

int
k3_trace_create(struct k3_trace **trace, const struct k3_trace_options *options)
{
	struct k3_trace *t = NULL;
	int ret;

	*trace = NULL;
	K3_TRY(check(options));
	t = calloc(1, sizeof(*t));
	K3_TRY(t ? K3_OK : K3_ENOMEM);
	t->rank = options->rank;
	t->n_workers = options->n_workers;
	t->now_ns = options->now_ns;
	t->step = t->microbatch = -1;
	t->capacity = options->most_tasks ? options->most_tasks : K3_TRACE_MOST_TASKS;
	K3_TRY(options->dir ? set_paths(t, options->dir) : K3_OK);
	t->worker = calloc(t->n_workers, sizeof(*t->worker));
	t->ring = map(t->capacity * sizeof(*t->ring));
	t->span = map(t->capacity * sizeof(*t->span));
	if (!t->worker || !t->ring || !t->span)
		K3_TRY(K3_ENOMEM);
	for (uint32_t w = 0; w < t->n_workers; w++) {
		snprintf(t->worker[w].name, sizeof(t->worker[w].name), "%s",
			 options->worker_name[w]);
		t->worker[w].device = options->is_device && options->is_device[w];
		t->n_counted += t->worker[w].device;
	}
	if (t->n_counted == 0)
		t->n_counted = t->n_workers;
	if (options->signals)
		K3_TRY(k3i_trace_signals_take(t));
	*trace = t;
	t = NULL;
out:
	k3_trace_destroy(t);
	return ret;
}

void
k3_trace_destroy(struct k3_trace *trace)
{
	if (!trace)
		return;
	if (trace->signals)
		k3i_trace_signals_return(trace);
	if (trace->ring)
		munmap(trace->ring, trace->capacity * sizeof(*trace->ring));
	if (trace->span)
		munmap(trace->span, trace->capacity * sizeof(*trace->span));
	free(trace->worker);
	free(trace->dir);
	free(trace->paje);
	free(trace->tsv);
	free(trace->part);
	free(trace);
}

void
k3_trace_step(struct k3_trace *trace, int32_t step, int32_t microbatch)
{
	if (!trace)
		return;
	trace->step = step;
	trace->microbatch = microbatch;
}

struct k3_trace_record *
k3_trace_submit(struct k3_trace *trace, const struct k3_task *task)
{
	uint64_t i = atomic_load_explicit(&trace->n_recorded, memory_order_relaxed);
	struct k3_trace_record *r = &trace->ring[i % trace->capacity];
	uint8_t state = atomic_load_explicit(&r->state, memory_order_acquire);

	if (state == K3I_WAITING || state == K3I_RUNNING) {
		trace->n_lost++;
		return NULL;
	}
	atomic_store_explicit(&r->state, K3I_FREE, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	r->ready_ns = r->start_ns = r->end_ns = -1;
	r->flops = task->flops;
	r->step = trace->step;
	r->microbatch = trace->microbatch;
	r->tile = task->tile;
	r->group = task->group;
	r->n_data = task->n_buffers;
	r->released_ns = 0;
	r->layer = task->layer;
	r->worker = -1;
	r->op = task->op;
	r->pass = task->pass;
	atomic_store_explicit(&r->state, K3I_WAITING, memory_order_release);
	atomic_store_explicit(&trace->n_recorded, i + 1, memory_order_release);
	return r;
}

void
k3_trace_cancel(struct k3_trace *trace, struct k3_trace_record *record)
{
	if (!record)
		return;
	K3_ASSERT(record == &trace->ring[(trace->n_recorded - 1) % trace->capacity]);
	atomic_store_explicit(&record->state, K3I_FREE, memory_order_release);
	atomic_fetch_sub(&trace->n_recorded, 1);
}

void
k3_trace_start(struct k3_trace_record *record, int worker, int64_t now_ns)
{
	record->worker = (int16_t)worker;
	record->start_ns = now_ns;
	atomic_store_explicit(&record->state, K3I_RUNNING, memory_order_release);
}

void
k3_trace_end(struct k3_trace_record *record, int worker, int64_t ready_ns, int64_t start_ns,
	     int64_t end_ns, int64_t released_ns)
{
	int64_t late = released_ns - end_ns;

	record->worker = (int16_t)worker;
	record->ready_ns = ready_ns;
	record->start_ns = start_ns;
	record->end_ns = end_ns;
	record->released_ns = late < 0 ? 0 : late > INT32_MAX ? INT32_MAX : (int32_t)late;
	atomic_store_explicit(&record->state, K3I_DONE, memory_order_release);
}

void
k3_trace_rescale(struct k3_trace *trace, int worker, int64_t from_ns, double factor)
{
	uint64_t recorded = trace->n_recorded;
	size_t n = recorded < trace->capacity ? (size_t)recorded : trace->capacity;

	for (size_t i = 0; i < n; i++) {
		struct k3_trace_record *r = &trace->ring[i];
		if (r->state != K3I_DONE || r->worker != worker)
			continue;
		r->start_ns = from_ns + llrint((double)(r->start_ns - from_ns) * factor);
		r->end_ns = from_ns + llrint((double)(r->end_ns - from_ns) * factor);
	}
}

/* What is not in the files, for people. */
static void
report(const struct k3_trace *t)
{
	uint64_t recorded = t->n_recorded, submitted = recorded + t->n_lost;
	uint64_t replaced = recorded > t->capacity ? recorded - t->capacity : 0;

	if (replaced || t->n_lost)
		k3_warn("tasks",
			"trace: %llu tasks of %llu are in it; %llu older ones made room and %llu "
			"found none (--trace-tasks %zu)",
			(unsigned long long)(recorded - replaced), (unsigned long long)submitted,
			(unsigned long long)replaced, (unsigned long long)t->n_lost, t->capacity);
	if (t->n_open || t->n_waiting)
		k3_warn("tasks", "trace: %zu tasks have no end and %zu did not start", t->n_open,
			t->n_waiting);
}

int
k3_trace_write(struct k3_trace *trace)
{
	struct k3i_window all = {0, INT64_MAX};
	int failed;

	while (!k3i_trace_lock())
		usleep(1000);
	k3i_trace_snapshot(trace);
	failed = k3i_trace_write_paje(trace, trace->paje, all, &trace->paje_bytes);
	if (!failed)
		failed = k3i_trace_write_tsv(trace, trace->tsv, &trace->tsv_bytes);
	k3i_trace_unlock();
	if (failed) {
		k3_error("tasks", "the trace could not be written to %s: %s", trace->dir,
			 strerror(failed));
		return K3_EIO;
	}
	report(trace);
	return K3_OK;
}

/* The summary goes to people line by line, so that each is marked as a message. */
static void
show(char *text)
{
	char *save = NULL;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		k3_info("tasks", "%s", line);
}

int
k3_trace_finish(struct k3_trace *trace)
{
	char *text = NULL, *path = NULL;
	int ret;

	if (!trace->dir)
		return K3_OK;
	K3_TRY(k3_trace_write(trace));
	text = k3i_trace_summary(trace);
	path = k3i_trace_path(trace, "summary.txt");
	K3_TRY(text && path ? K3_OK : K3_ENOMEM);
	K3_TRY(k3_fs_write_atomic(path, text, strlen(text)));
	show(text);
	k3i_trace_render(trace);
out:
	free(text);
	free(path);
	return ret;
}
