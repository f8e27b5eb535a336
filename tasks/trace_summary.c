/* The summary: where the time of the workers went.
 *
 * Everything is counted inside the steps (the whole trace when there is none), clipped at their
 * ends, so that families and idle add up to workers x wall.  Devices' streams and CPU workers are
 * counted apart, each with the tasks that ran there.  Idle is split by what could have run:
 * while tasks were ready and a worker idle, the runtime is to blame (scheduler, locks, wake-up);
 * while none was, the graph is, or the host.  From a task's end until the runtime has seen it and
 * released what waited for it, something counts as ready: on a stream that is the time of polling.
 * Percentiles are of nearest rank. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "trace_record.h"

enum { SHOWN_STEPS = 10 };

struct event {
	int64_t time;
	int8_t ready, busy; /* changes */
};

struct count {
	int64_t ns;
	size_t n;
};

/* CPU workers, or devices' streams. */
struct kind {
	uint32_t workers;
	size_t n_tasks; /* that ended */
	int64_t kernels, starved, overhead;
	struct count family[K3_N_FAMILIES];
	int64_t *length; /* [n_tasks] ascending */
	double mean;
};
enum { CPU, DEVICE, KINDS };
static const char *const kind_name[] = {"cpu", "gpu"};

struct sums {
	const struct k3_trace *trace;
	struct k3i_step *part; /* what is counted */
	size_t n_parts;
	bool whole; /* no step: everything */
	int64_t wall;
	struct kind kind[KINDS];
	struct count *worker;
};

/* ns of [from, to] inside the parts; *at only grows when calls come by `from`. */
static int64_t
inside(const struct sums *x, size_t *at, int64_t from, int64_t to)
{
	int64_t ns = 0;

	while (*at + 1 < x->n_parts && x->part[*at].to <= from)
		++*at;
	for (size_t k = *at; k < x->n_parts && x->part[k].from < to; k++) {
		int64_t a = from > x->part[k].from ? from : x->part[k].from;
		int64_t b = to < x->part[k].to ? to : x->part[k].to;
		ns += b > a ? b - a : 0;
	}
	return ns;
}

static int
by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* At equal times: readiness, ends, starts, so that a task which runs at once never waited. */
static int
by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	if (x->time != y->time)
		return x->time > y->time ? 1 : -1;
	return y->ready - x->ready;
}

/* Sums over tasks. */
static void
add_tasks(struct sums *x)
{
	size_t at = 0;

	for (size_t i = 0; i < x->trace->n_spans; i++) {
		const struct k3i_span *s = &x->trace->span[i];
		struct kind *k = &x->kind[x->trace->worker[s->worker].device];
		int family = k3_op_family(k3i_record(x->trace, s)->op);
		int64_t ns = inside(x, &at, s->start, s->end);
		if (s->start < x->part[at].from && ns == 0)
			continue; /* before the first step, or between two */
		if (s->start >= x->part[at].to)
			continue;
		k->family[family].ns += ns;
		k->family[family].n++;
		x->worker[s->worker].ns += ns;
		x->worker[s->worker].n++;
		k->kernels += ns;
		if (!s->open)
			k->length[k->n_tasks++] = s->end - s->start;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		struct kind *k = &x->kind[kind];
		double sum = 0;
		for (size_t i = 0; i < k->n_tasks; i++)
			sum += (double)k->length[i];
		k->mean = k->n_tasks ? sum / (double)k->n_tasks : 0;
		qsort(k->length, k->n_tasks, sizeof(*k->length), by_value);
	}
}

/* Splits the idle time of a kind: a sweep over readiness, starts and ends of its tasks. */
static bool
split_idle(struct sums *x, int kind)
{
	const struct k3_trace *t = x->trace;
	struct kind *k = &x->kind[kind];
	struct event *e = malloc((5 * t->n_spans + 1) * sizeof(*e));
	int64_t ready = 0, idle = k->workers;
	size_t n = 0, at = 0;

	if (!e)
		return false;
	for (size_t i = 0; i < t->n_spans; i++) {
		const struct k3i_span *s = &t->span[i];
		int64_t since = s->open ? s->start : k3i_record(t, s)->ready_ns;
		int32_t late = s->open ? 0 : k3i_record(t, s)->released_ns;
		if (t->worker[s->worker].device != (kind == DEVICE))
			continue;
		if (since < 0 || since > s->start)
			since = s->start;
		e[n++] = (struct event){since, 1, 0};
		e[n++] = (struct event){s->start, -1, 1};
		e[n++] = (struct event){s->end, late > 0, -1};
		if (late > 0)
			e[n++] = (struct event){s->end + late, -1, 0};
	}
	qsort(e, n, sizeof(*e), by_time);
	for (size_t i = 0; i < n; i++) {
		ready += e[i].ready;
		idle -= e[i].busy;
		int64_t ns = i + 1 < n ? inside(x, &at, e[i].time, e[i + 1].time) : 0;
		int64_t both = ready < idle ? ready : idle;
		if (both > 0)
			k->overhead += both * ns;
	}
	free(e);
	k->starved = x->wall * k->workers - k->kernels - k->overhead;
	if (k->starved < 0)
		k->starved = 0; /* tasks that overlap on one worker */
	return true;
}

static bool
collect(struct sums *x, const struct k3_trace *trace)
{
	memset(x, 0, sizeof(*x));
	x->trace = trace;
	x->part = k3i_trace_steps(trace, &x->n_parts);
	if (x->n_parts == 0) {
		free(x->part);
		x->part = calloc(1, sizeof(*x->part));
		if (!x->part)
			return false;
		x->n_parts = 1;
		x->whole = true;
		if (trace->n_spans > 0)
			*x->part = (struct k3i_step){
				.step = -1, .from = trace->span[0].start, .to = trace->end_ns + 1};
	}
	x->worker = calloc(trace->n_workers, sizeof(*x->worker));
	for (int k = 0; k < KINDS; k++) {
		x->kind[k].length = malloc((trace->n_spans + 1) * sizeof(*x->kind[k].length));
		if (!x->worker || !x->kind[k].length)
			return false;
	}
	for (uint32_t w = 0; w < trace->n_workers; w++)
		x->kind[trace->worker[w].device].workers++;
	for (size_t i = 0; i < x->n_parts; i++)
		x->wall += x->part[i].to - x->part[i].from;
	add_tasks(x);
	return split_idle(x, CPU) && split_idle(x, DEVICE);
}

static void
release(struct sums *x)
{
	free(x->part);
	free(x->worker);
	for (int k = 0; k < KINDS; k++)
		free(x->kind[k].length);
}

static double
ms(int64_t ns)
{
	return (double)ns * 1e-6;
}

static double
percent(int64_t ns, int64_t of)
{
	return of > 0 ? 100 * (double)ns / (double)of : 0;
}

/* Nearest rank: the smallest length that p of all do not exceed. */
static double
rank_ms(const struct kind *k, size_t numerator, size_t denominator)
{
	size_t rank = (numerator * k->n_tasks + denominator - 1) / denominator;

	return k->n_tasks ? ms(k->length[rank > 0 ? rank - 1 : 0]) : 0;
}

/* Two lines of a kind; `what` names it when there are two. */
static void
print_kind(const struct sums *x, const struct kind *k, const char *what, FILE *f)
{
	int64_t all = x->wall * k->workers;

	fprintf(f, "%s x wall: kernels %.2f %%, idle %.2f %%", what, percent(k->kernels, all),
		percent(k->overhead + k->starved, all));
	fprintf(f, " (%.2f %% no task was ready, %.2f %% while one was)\n",
		percent(k->starved, all), percent(k->overhead, all));
	fprintf(f,
		"task length ms: mean %.3f, median %.3f, p5 %.3f, p95 %.3f, longest %.3f; "
		"ready and idle %.1f us a task\n",
		k->mean * 1e-6, rank_ms(k, 1, 2), rank_ms(k, 5, 100), rank_ms(k, 95, 100),
		rank_ms(k, 1, 1), k->n_tasks ? ms(k->overhead) * 1e3 / (double)k->n_tasks : 0);
}

static void
print_head(const struct sums *x, FILE *f)
{
	const struct kind *cpu = &x->kind[CPU], *device = &x->kind[DEVICE];

	fprintf(f, "trace: %zu tasks on %" PRIu32 " workers in %.1f ms",
		cpu->n_tasks + device->n_tasks, x->trace->n_workers, ms(x->wall));
	if (!x->whole)
		fprintf(f, ", steps %" PRId32 " to %" PRId32, x->part[0].step,
			x->part[x->n_parts - 1].step);
	fputc('\n', f);
	if (device->workers > 0)
		print_kind(x, device, "gpu streams", f);
	if (cpu->workers > 0)
		print_kind(x, cpu, device->workers > 0 ? "cpu workers" : "workers", f);
	if (device->workers == 0 && cpu->n_tasks && cpu->mean < 1e6)
		fprintf(f, "the mean task is below 1 ms: larger tiles or fewer groups waste less "
			   "on scheduling (doc/tracing.md)\n");
}

static void
print_families(const struct sums *x, int kind, FILE *f)
{
	const struct kind *k = &x->kind[kind];

	if (k->workers == 0)
		return;
	fprintf(f, "\n%-10s %10s %12s %8s %10s%s%s\n", "family", "tasks", "time_ms", "share_%",
		"mean_ms", x->kind[DEVICE].workers > 0 ? "   on " : "",
		x->kind[DEVICE].workers > 0 ? kind_name[kind] : "");
	for (int i = 0; i < K3_N_FAMILIES; i++)
		if (k->family[i].n > 0)
			fprintf(f, "%-10s %10zu %12.3f %8.2f %10.3f\n",
				k3_family_name((enum k3_family)i), k->family[i].n,
				ms(k->family[i].ns), percent(k->family[i].ns, x->wall * k->workers),
				ms(k->family[i].ns) / (double)k->family[i].n);
}

static void
print_tables(const struct sums *x, FILE *f)
{
	size_t first = x->n_parts > SHOWN_STEPS ? x->n_parts - SHOWN_STEPS : 0;

	print_families(x, DEVICE, f);
	print_families(x, CPU, f);
	fprintf(f, "\n%-10s %10s %12s %12s %8s\n", "worker", "tasks", "busy_ms", "idle_ms",
		"idle_%");
	for (uint32_t w = 0; w < x->trace->n_workers; w++)
		fprintf(f, "%-10s %10zu %12.3f %12.3f %8.2f\n", x->trace->worker[w].name,
			x->worker[w].n, ms(x->worker[w].ns), ms(x->wall - x->worker[w].ns),
			percent(x->wall - x->worker[w].ns, x->wall));
	if (x->whole)
		return;
	fprintf(f, "\n%-10s %10s %12s %10s%s\n", "step", "tasks", "wall_ms", "kernels_%",
		first > 0 ? "   (the last ones)" : "");
	for (size_t i = first; i < x->n_parts; i++) {
		const struct k3i_step *p = &x->part[i];
		fprintf(f, "%-10" PRId32 " %10" PRIu32 " %12.3f %10.2f%s\n", p->step, p->n_tasks,
			ms(p->to - p->from),
			percent(p->kernels, (p->to - p->from) * x->trace->n_counted),
			p->complete ? "" : "   incomplete");
	}
}

int
k3_trace_share(struct k3_trace *trace, bool device, struct k3_trace_share *share)
{
	struct sums x;
	bool ok;

	k3i_trace_snapshot(trace);
	ok = collect(&x, trace);
	const struct kind *k = &x.kind[device ? DEVICE : CPU];
	double all = (double)x.wall * (double)k->workers;
	*share = (struct k3_trace_share){
		.workers = k->workers,
		.tasks = k->n_tasks,
		.wall_s = 1e-9 * (double)x.wall,
		.kernels = all > 0 ? (double)k->kernels / all : 0,
		.runtime = all > 0 ? (double)k->overhead / all : 0,
	};
	release(&x);
	return ok ? K3_OK : K3_ENOMEM;
}

char *
k3i_trace_summary(struct k3_trace *trace)
{
	uint64_t recorded = trace->n_recorded;
	uint64_t kept = recorded < trace->capacity ? recorded : trace->capacity;
	struct sums x;
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	bool ok = f && collect(&x, trace);

	if (ok) {
		print_head(&x, f);
		print_tables(&x, f);
		fprintf(f,
			"\nfiles: k3.paje %" PRIu64 " bytes, tasks.tsv %" PRIu64
			" bytes: %.0f bytes a task; %" PRIu64 " tasks submitted, %" PRIu64
			" in the files\n",
			trace->paje_bytes, trace->tsv_bytes,
			kept ? (double)(trace->paje_bytes + trace->tsv_bytes) / (double)kept : 0,
			recorded + trace->n_lost, kept);
	}
	if (f && fclose(f) != 0)
		ok = false;
	if (f)
		release(&x);
	if (!ok) {
		free(text);
		text = NULL;
	}
	return text;
}
