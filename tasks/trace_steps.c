/* Steps of a snapshot, and which of them a picture shows.
 *
 * A step lasts from its first task to the first of the next, so what the host does between steps
 * counts; before tasks of no step (a held-out loss) it ends with its own last task.  The trap:
 * submission runs ahead, so loads of the next step come early and begin nothing. */
#include <stdlib.h>

#include "trace_record.h"

struct list {
	struct k3i_step *step;
	size_t n, cap;
};

static bool
push(struct list *l, int32_t step, int64_t from)
{
	if (l->n == l->cap) {
		l->cap = l->cap ? 2 * l->cap : 64;
		struct k3i_step *more = realloc(l->step, l->cap * sizeof(*more));
		if (!more)
			return false;
		l->step = more;
	}
	l->step[l->n++] = (struct k3i_step){.step = step, .from = from, .to = -1, .complete = true};
	return true;
}

/* Steps by their beginnings. */
static bool
find(const struct k3_trace *trace, struct list *l)
{
	int32_t now = -1;

	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		if (!k3i_trace_switches(trace, s, now))
			continue;
		if (now >= 0 && k3i_record(trace, s)->step >= 0)
			l->step[l->n - 1].to = s->start;
		now = k3i_record(trace, s)->step;
		if (now >= 0 && !push(l, now, s->start))
			return false;
	}
	return true;
}

static struct k3i_step *
of(struct list *l, int32_t step)
{
	for (size_t i = l->n; i-- > 0;)
		if (l->step[i].step == step)
			return &l->step[i];
	return NULL;
}

/* Tasks of each step, its end when no other follows, and time in tasks while it was the newest. */
static void
fill(const struct k3_trace *trace, struct list *l)
{
	size_t at = 0;

	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		struct k3i_step *own = of(l, k3i_record(trace, s)->step);
		if (!own)
			continue;
		own->n_tasks++;
		own->complete = own->complete && !s->open;
		if (own + 1 == l->step + l->n || own[1].from != own->to)
			own->to = s->end > own->to ? s->end : own->to;
	}
	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		if (!k3i_counts(trace, s->worker))
			continue;
		while (at + 1 < l->n && l->step[at + 1].from <= s->start)
			at++;
		for (size_t k = at; k < l->n && l->step[k].from < s->end; k++) {
			struct k3i_step *p = &l->step[k];
			int64_t from = s->start > p->from ? s->start : p->from;
			int64_t to = s->end < p->to ? s->end : p->to;
			p->kernels += to > from ? to - from : 0;
		}
	}
}

struct k3i_step *
k3i_trace_steps(const struct k3_trace *trace, size_t *n)
{
	uint64_t recorded = trace->n_recorded;
	size_t kept = recorded < trace->capacity ? (size_t)recorded : trace->capacity;
	struct list l = {0};

	*n = 0;
	if (!find(trace, &l)) {
		free(l.step);
		return NULL;
	}
	fill(trace, &l);
	if (l.n > 0 && recorded > trace->capacity)
		l.step[0].complete = false; /* older records of it made room */
	for (size_t i = 0; i < kept; i++) {
		struct k3i_step *own =
			trace->ring[i].state == K3I_WAITING ? of(&l, trace->ring[i].step) : NULL;
		if (own)
			own->complete = false;
	}
	*n = l.n;
	return l.step;
}

/* From the first to the last task of a layer, in the first microbatch that has it: its forward
 * pass, or what is recomputed and its backward pass. */
static struct k3i_window
layer_window(const struct k3_trace *trace, int32_t step, int layer, bool forward)
{
	struct k3i_window w = {INT64_MAX, -1};
	int32_t microbatch = INT32_MIN;

	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		const struct k3_trace_record *r = k3i_record(trace, s);
		bool back = r->pass == K3_PASS_BACKWARD || r->pass == K3_PASS_RECOMPUTE;
		if (r->step != step || r->layer != layer ||
		    !(forward ? r->pass == K3_PASS_FORWARD : back))
			continue;
		if (microbatch == INT32_MIN)
			microbatch = r->microbatch;
		if (r->microbatch != microbatch)
			continue;
		w.from = s->start < w.from ? s->start : w.from;
		w.to = s->end > w.to ? s->end : w.to;
	}
	return w;
}

bool
k3i_trace_view(const struct k3_trace *trace, struct k3i_view *view)
{
	size_t n;
	struct k3i_step *step = k3i_trace_steps(trace, &n);
	int most = -1;

	*view = (struct k3i_view){.step = {.step = -1}, .layer = -1};
	if (trace->n_spans == 0) {
		free(step);
		return false;
	}
	view->step.from = trace->span[0].start;
	view->step.to = trace->end_ns;
	while (n > 0 && !step[n - 1].complete)
		n--;
	if (n > 0) {
		view->step = step[n - 1];
	} else {
		view->step.n_tasks = (uint32_t)trace->n_spans;
		for (size_t i = 0; i < trace->n_spans; i++)
			view->step.kernels += k3i_counts(trace, trace->span[i].worker)
						      ? trace->span[i].end - trace->span[i].start
						      : 0;
	}
	free(step);
	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3_trace_record *r = k3i_record(trace, &trace->span[i]);
		if (r->step == view->step.step && r->pass == K3_PASS_FORWARD && r->layer > most)
			most = r->layer;
	}
	for (int l = most / 2; l <= most && view->layer < 0; l++) {
		view->forward = layer_window(trace, view->step.step, l, true);
		if (view->forward.to > view->forward.from)
			view->layer = l;
	}
	view->backward = layer_window(trace, view->step.step, view->layer, false);
	return view->step.to > view->step.from;
}
