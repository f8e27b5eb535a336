/* The records in order of time, as they are at one moment.
 *
 * It allocates nothing, and a signal handler may take it while workers go on.  The trap: a record
 * changes under the snapshot, so its times are copied once and not read again. */
#include "trace_record.h"

static bool
later(const struct k3i_span *a, const struct k3i_span *b)
{
	return a->start > b->start || (a->start == b->start && a->record > b->record);
}

static void
sift(struct k3i_span *span, size_t i, size_t n)
{
	struct k3i_span moved = span[i];

	for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
		if (child + 1 < n && later(&span[child + 1], &span[child]))
			child++;
		if (!later(&span[child], &moved))
			break;
		span[i] = span[child];
		i = child;
	}
	span[i] = moved;
}

/* Heap sort: in place, no recursion, no bad case. */
static void
sort(struct k3i_span *span, size_t n)
{
	for (size_t i = n / 2; i-- > 0;)
		sift(span, i, n);
	for (size_t i = n; i-- > 1;) {
		struct k3i_span last = span[i];
		span[i] = span[0];
		span[0] = last;
		sift(span, 0, i);
	}
}

void
k3i_trace_snapshot(struct k3_trace *trace)
{
	uint64_t recorded = atomic_load_explicit(&trace->n_recorded, memory_order_acquire);
	size_t n = recorded < trace->capacity ? (size_t)recorded : trace->capacity;
	int64_t now = trace->now_ns(), last = 0;

	trace->n_spans = trace->n_open = trace->n_waiting = 0;
	for (size_t i = 0; i < n; i++) {
		const struct k3_trace_record *r = &trace->ring[i];
		uint8_t state = atomic_load_explicit(&r->state, memory_order_acquire);
		struct k3i_span s = {r->start_ns, r->end_ns, (uint32_t)i, r->worker, false};
		trace->n_waiting += state == K3I_WAITING;
		if (state < K3I_RUNNING || s.worker < 0 || (uint32_t)s.worker >= trace->n_workers ||
		    s.start < 0 || s.start > now)
			continue;
		/* what ended after `now` was read, or did not end: runs at `now` */
		if (state == K3I_RUNNING || s.end > now) {
			s.open = state == K3I_RUNNING;
			s.end = now;
		}
		if (s.end < s.start)
			s.end = s.start;
		last = s.end > last ? s.end : last;
		trace->n_open += s.open;
		trace->span[trace->n_spans++] = s;
	}
	trace->end_ns = last;
	sort(trace->span, trace->n_spans);
}

bool
k3i_trace_switches(const struct k3_trace *trace, const struct k3i_span *span, int32_t step)
{
	const struct k3_trace_record *r = k3i_record(trace, span);

	if (r->op == K3_OP_BATCH_LOAD || r->op == K3_OP_VIT_LOAD || r->op == K3_OP_STEP_LOAD)
		return false;
	return r->step > step || (r->step < 0 && step >= 0);
}
