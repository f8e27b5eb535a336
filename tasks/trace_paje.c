/* k3.paje and tasks.tsv from a snapshot.
 *
 * Paje wants all events in order of time.  Spans come by start; the end of each is kept with its
 * worker until the next start is not before it.  The traps: the last task of each worker needs its
 * end too; a task that is still running must have none; and two tasks that overlap on one worker
 * (a device that runs several at once) end the earlier one's state.  The file gets its name when it
 * is whole, so whatever stands there can be read. */
#include <errno.h>
#include <stdio.h>

#include "../common/colors.h"
#include "trace_record.h"

enum { NEVER = -1 };

static const char header[] =
	"%EventDef PajeDefineContainerType 0\n%  Alias string\n%  Type string\n%  Name string\n"
	"%EndEventDef\n"
	"%EventDef PajeDefineStateType 1\n%  Alias string\n%  Type string\n%  Name string\n"
	"%EndEventDef\n"
	"%EventDef PajeDefineEntityValue 2\n%  Alias string\n%  Type string\n%  Name string\n"
	"%  Color color\n%EndEventDef\n"
	"%EventDef PajeCreateContainer 3\n%  Time date\n%  Alias string\n%  Type string\n"
	"%  Container string\n%  Name string\n%EndEventDef\n"
	"%EventDef PajeDestroyContainer 4\n%  Time date\n%  Name string\n%  Type string\n"
	"%EndEventDef\n"
	"%EventDef PajeSetState 5\n%  Time date\n%  Type string\n%  Container string\n"
	"%  Value string\n%EndEventDef\n"
	"0 Rank 0 \"Rank\"\n"
	"0 Steps Rank \"Steps\"\n"
	"0 Worker Rank \"Worker\"\n"
	"1 Step Steps \"Step\"\n"
	"1 Task Worker \"Task\"\n"
	"2 idle Task \"idle\" \"0.930 0.930 0.930\"\n"
	"2 none Step \"outside of steps\" \"0.930 0.930 0.930\"\n";

/* ms with all nanoseconds */
static void
put_time(struct k3i_out *out, int64_t ns)
{
	k3i_out_fixed(out, ns, 6);
}

static void
put_color(struct k3i_out *out, unsigned rgb)
{
	k3i_out_text(out, " \"");
	for (int shift = 16; shift >= 0; shift -= 8) {
		k3i_out_fixed(out, (int64_t)(rgb >> shift & 255) * 1000 / 255, 3);
		k3i_out_text(out, shift ? " " : "\"\n");
	}
}

/* "r0w1": a container's alias names the rank, so that the files of ranks can be joined. */
static void
put_alias(struct k3i_out *out, const struct k3_trace *t, char letter, int64_t number)
{
	const char kind[] = {letter, 0};

	k3i_out_text(out, "r");
	k3i_out_int(out, t->rank);
	k3i_out_text(out, kind);
	if (number >= 0)
		k3i_out_int(out, number);
}

static void
container(struct k3i_out *out, const struct k3_trace *t, int64_t time, char letter, int64_t number,
	  const char *name)
{
	k3i_out_text(out, "3 ");
	put_time(out, time);
	k3i_out_text(out, " ");
	put_alias(out, t, letter, number);
	k3i_out_text(out, letter == 'n' ? " Rank 0" : letter == 'w' ? " Worker " : " Steps ");
	if (letter != 'n')
		put_alias(out, t, 'n', NEVER);
	k3i_out_text(out, " \"");
	k3i_out_text(out, name);
	if (letter == 'n')
		k3i_out_int(out, t->rank);
	k3i_out_text(out, "\"\n");
}

static void
container_end(struct k3i_out *out, const struct k3_trace *t, int64_t time, char letter,
	      int64_t number)
{
	k3i_out_text(out, "4 ");
	put_time(out, time);
	k3i_out_text(out, " ");
	put_alias(out, t, letter, number);
	k3i_out_text(out, letter == 'n' ? " Rank\n" : letter == 'w' ? " Worker\n" : " Steps\n");
}

static void
state(struct k3i_out *out, const struct k3_trace *t, int64_t time, char letter, int64_t number)
{
	k3i_out_text(out, "5 ");
	put_time(out, time);
	k3i_out_text(out, letter == 'w' ? " Task " : " Step ");
	put_alias(out, t, letter, number);
	k3i_out_text(out, " ");
}

/* Ends, in order, what has ended by `time`. */
static void
end_tasks(struct k3i_out *out, struct k3_trace *t, int64_t time)
{
	for (;;) {
		uint32_t next = t->n_workers;
		for (uint32_t w = 0; w < t->n_workers; w++)
			if (t->worker[w].until != NEVER && t->worker[w].until <= time &&
			    (next == t->n_workers || t->worker[w].until < t->worker[next].until))
				next = w;
		if (next == t->n_workers)
			return;
		state(out, t, t->worker[next].until, 'w', next);
		k3i_out_text(out, "idle\n");
		t->worker[next].until = NEVER;
	}
}

/* Each task is a value of its own: its name tells where it belongs, its colour the family. */
static void
task(struct k3i_out *out, struct k3_trace *t, const struct k3i_span *s, int64_t time)
{
	const struct k3_trace_record *r = k3i_record(t, s);

	k3i_out_text(out, "2 ");
	put_alias(out, t, 't', s->record);
	k3i_out_text(out, " Task \"");
	k3i_out_name(out, r);
	k3i_out_text(out, "\"");
	put_color(out, k3_family_color[k3_op_family(r->op)]);
	state(out, t, time, 'w', s->worker);
	put_alias(out, t, 't', s->record);
	k3i_out_text(out, "\n");
	t->worker[s->worker].until = s->open ? NEVER : s->end;
}

static void
step(struct k3i_out *out, const struct k3_trace *t, int32_t number, int64_t time)
{
	if (number >= 0) {
		k3i_out_text(out, "2 ");
		put_alias(out, t, 's', number);
		k3i_out_text(out, " Step \"step ");
		k3i_out_int(out, number);
		k3i_out_text(out, "\"");
		put_color(out, number % 2 ? 0x9aa5b1 : 0xc3ccd5);
	}
	state(out, t, time, 'p', NEVER);
	if (number >= 0)
		put_alias(out, t, 's', number);
	else
		k3i_out_text(out, "none");
	k3i_out_text(out, "\n");
}

int
k3i_trace_write_paje(struct k3_trace *trace, const char *path, struct k3i_window window,
		     uint64_t *bytes)
{
	struct k3i_out *out = &trace->out;
	int64_t begin = window.from, end = window.to < trace->end_ns ? window.to : trace->end_ns;
	int32_t now_step = -1;

	k3i_out_open(out, trace->part);
	k3i_out_text(out, header);
	container(out, trace, begin, 'n', NEVER, "rank ");
	container(out, trace, begin, 'p', NEVER, "steps");
	step(out, trace, -1, begin);
	for (uint32_t w = 0; w < trace->n_workers; w++) {
		container(out, trace, begin, 'w', w, trace->worker[w].name);
		state(out, trace, begin, 'w', w);
		k3i_out_text(out, "idle\n");
		trace->worker[w].until = NEVER;
	}
	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		int64_t time = s->start > begin ? s->start : begin;
		if (s->end < begin || s->start > end)
			continue;
		end_tasks(out, trace, time);
		if (k3i_trace_switches(trace, s, now_step))
			step(out, trace, now_step = k3i_record(trace, s)->step, time);
		task(out, trace, s, time);
	}
	end_tasks(out, trace, end);
	for (uint32_t w = 0; w < trace->n_workers; w++)
		container_end(out, trace, end, 'w', w);
	container_end(out, trace, end, 'p', NEVER);
	container_end(out, trace, end, 'n', NEVER);
	return k3i_trace_publish(trace, path, bytes);
}

static const char *
pass_name(uint8_t pass)
{
	static const char *const names[] = {
		[K3_PASS_FORWARD] = "forward",	   [K3_PASS_BACKWARD] = "backward",
		[K3_PASS_OPTIMIZER] = "optimizer", [K3_PASS_SETUP] = "setup",
		[K3_PASS_RECOMPUTE] = "recompute",
	};

	_Static_assert(sizeof(names) / sizeof(names[0]) == K3_N_PASSES, "a pass has no name");
	return pass < K3_N_PASSES ? names[pass] : "unknown";
}

/* Fields up to the worker. */
static void
put_identity(struct k3i_out *out, const struct k3_trace_record *r)
{
	const int32_t where[] = {r->step, r->microbatch, r->layer, r->tile, r->group};

	k3i_out_name(out, r);
	k3i_out_text(out, "\t");
	k3i_out_text(out, k3_op_name(r->op));
	k3i_out_text(out, "\t");
	k3i_out_text(out, k3_family_name(k3_op_family(r->op)));
	k3i_out_text(out, "\t");
	k3i_out_text(out, pass_name(r->pass));
	for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
		k3i_out_text(out, "\t");
		k3i_out_int(out, where[i]);
	}
	k3i_out_text(out, "\t");
	k3i_out_int(out, r->n_data);
	k3i_out_text(out, "\t");
	k3i_out_int(out, r->flops < 9e18 ? (int64_t)r->flops : INT64_MAX);
	k3i_out_text(out, "\t");
}

static void
put_us(struct k3i_out *out, int64_t ns)
{
	if (ns < 0)
		k3i_out_text(out, "nan");
	else
		k3i_out_fixed(out, ns, 3);
}

int
k3i_trace_write_tsv(struct k3_trace *trace, const char *path, uint64_t *bytes)
{
	struct k3i_out *out = &trace->out;
	uint64_t recorded = trace->n_recorded;
	size_t n = recorded < trace->capacity ? (size_t)recorded : trace->capacity;

	k3i_out_open(out, trace->part);
	k3i_out_text(out, "name\top\tfamily\tpass\tstep\tmicrobatch\tlayer\ttile\tgroup\tdata\t"
			  "flops\tstate\tworker\tready_us\tstart_us\tend_us\n");
	for (size_t i = 0; i < trace->n_spans; i++) {
		const struct k3i_span *s = &trace->span[i];
		put_identity(out, k3i_record(trace, s));
		k3i_out_text(out, s->open ? "running\t" : "done\t");
		k3i_out_text(out, trace->worker[s->worker].name);
		k3i_out_text(out, "\t");
		put_us(out, s->open ? -1 : k3i_record(trace, s)->ready_ns);
		k3i_out_text(out, "\t");
		put_us(out, s->start);
		k3i_out_text(out, "\t");
		put_us(out, s->open ? -1 : s->end);
		k3i_out_text(out, "\n");
	}
	for (size_t i = 0; i < n; i++) {
		const struct k3_trace_record *r = &trace->ring[i];
		if (atomic_load_explicit(&r->state, memory_order_acquire) != K3I_WAITING)
			continue;
		put_identity(out, r);
		k3i_out_text(out, "waiting\tnone\tnan\tnan\tnan\n");
	}
	return k3i_trace_publish(trace, path, bytes);
}
