#include "trace_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/status.h"
#include "scratch.h"

static int64_t clock_ns;

static int64_t
ns(double us)
{
	return llround(us * 1e3);
}

static int64_t
clock_now(void)
{
	return clock_ns;
}

void
trace_case_now(double us)
{
	clock_ns = ns(us);
}

struct k3_trace *
trace_case_device(const char *dir)
{
	static const char *const names[] = {"cpu0", "gpu1"};
	static const bool device[] = {false, true};
	struct k3_trace_options o = {.dir = dir,
				     .n_workers = 2,
				     .worker_name = names,
				     .is_device = device,
				     .now_ns = clock_now};
	struct k3_trace *trace;

	clock_ns = INT64_MAX;
	cr_assert_eq(k3_trace_create(&trace, &o), K3_OK, "%s", scratch_log());
	return trace;
}

struct k3_trace *
trace_case(size_t most_tasks, bool signals)
{
	static const char *const names[] = {"cpu0", "cpu1"};
	struct k3_trace_options o = {.dir = scratch_path("t"),
				     .most_tasks = most_tasks,
				     .n_workers = 2,
				     .worker_name = names,
				     .now_ns = clock_now,
				     .signals = signals};
	struct k3_trace *trace;

	clock_ns = INT64_MAX;
	cr_assert_eq(k3_trace_create(&trace, &o), K3_OK, "%s", scratch_log());
	return trace;
}

struct k3_trace_record *
trace_case_submit(struct k3_trace *trace, enum k3_op op, enum k3_pass pass, int layer, int tile,
		  int group)
{
	struct k3_task task = {.op = (uint16_t)op,
			       .pass = (uint8_t)pass,
			       .layer = (int16_t)layer,
			       .tile = tile,
			       .group = group,
			       .n_access = 4,
			       .n_buffers = 3,
			       .name = "a name that does not live long",
			       .flops = 1000};

	return k3_trace_submit(trace, &task);
}

void
trace_case_ran(struct k3_trace *trace, enum k3_op op, enum k3_pass pass, int layer, int worker,
	       double ready, double start, double end)
{
	struct k3_trace_record *r = trace_case_submit(trace, op, pass, layer, -1, -1);

	cr_assert_not_null(r);
	k3_trace_start(r, worker, ns(start));
	k3_trace_end(r, worker, ns(ready), ns(start), ns(end), ns(end));
}

void
trace_case_released(struct k3_trace *trace, int worker, double ready, double start, double end,
		    double released)
{
	struct k3_trace_record *r =
		trace_case_submit(trace, K3_OP_EMBED_FWD, K3_PASS_FORWARD, 0, -1, -1);

	cr_assert_not_null(r);
	k3_trace_start(r, worker, ns(start));
	k3_trace_end(r, worker, ns(ready), ns(start), ns(end), ns(released));
}

void
trace_case_two_steps(struct k3_trace *trace)
{
	k3_trace_step(trace, -1, -1);
	trace_case_ran(trace, K3_OP_PARAM_INIT, K3_PASS_SETUP, -1, 0, 0, 1000, 9000);
	k3_trace_step(trace, 1, 0);
	/* cpu0: 1 ms each, back to back; ready 0.5 ms before they start while cpu1 is idle */
	for (int i = 0; i < 10; i++)
		trace_case_ran(trace, K3_OP_KDA_PROJ_FWD, K3_PASS_FORWARD, 0, 0,
			       10000 + 1000 * i - 500, 10000 + 1000 * i, 11000 + 1000 * i);
	/* the load of the next step begins nothing */
	k3_trace_step(trace, 2, 0);
	trace_case_ran(trace, K3_OP_BATCH_LOAD, K3_PASS_FORWARD, -1, 1, 20000, 20000, 22000);
	trace_case_ran(trace, K3_OP_MLA_ATTN_FWD, K3_PASS_FORWARD, 1, 0, 30000, 30000, 50000);
	trace_case_ran(trace, K3_OP_MLA_ATTN_BWD, K3_PASS_BACKWARD, 1, 1, 40000, 40000, 50000);
}

char *
trace_case_file(const char *name)
{
	size_t bytes;

	return (char *)scratch_read(name, &bytes);
}

void
trace_case_expect(const struct paje *p, const char *container, size_t n, const char *value,
		  double begin, double end)
{
	const struct paje_state *s = paje_nth(p, container, n);

	cr_assert_not_null(s, "%s has no state %zu", container, n);
	cr_assert_str_eq(s->value, value);
	cr_assert(fabs(s->begin - begin) < 1e-9 && fabs(s->end - end) < 1e-9,
		  "%s: from %.9g to %.9g, expected %.9g to %.9g", value, s->begin, s->end, begin,
		  end);
}
