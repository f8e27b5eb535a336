/* Traces whose process a signal ends, or one process that has two. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/status.h"
#include "fixture.h"
#include "paje.h"
#include "scratch.h"
#include "trace_case.h"

#define TEST(name)                                                                                 \
	Test(trace_signal, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

TEST(two_traces_at_once_do_not_share_the_signals)
{
	static const char *const names[] = {"cpu0"};
	struct k3_trace *a = trace_case(0, true), *b;
	struct k3_trace_options o = {.dir = scratch_path("u"),
				     .n_workers = 1,
				     .worker_name = names,
				     .now_ns = NULL,
				     .signals = true};

	cr_assert_eq(k3_trace_create(&b, &o), K3_EEXIST);
	k3_trace_destroy(a);
	cr_assert_eq(k3_trace_create(&b, &o), K3_OK);
	k3_trace_destroy(b);
}

static volatile sig_atomic_t seen;

static void
remember(int number)
{
	seen = number;
}

/* A child that records, has a task running, and gets a signal; `handler` was there before. */
static int
child_dies(int number, void (*handler)(int))
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		signal(number, handler);
		struct k3_trace *t = trace_case(0, true);
		trace_case_ran(t, K3_OP_EMBED_FWD, K3_PASS_FORWARD, -1, 0, 0, 1000, 2000);
		k3_trace_start(trace_case_submit(t, K3_OP_MLA_ATTN_FWD, K3_PASS_FORWARD, 1, 0, 1),
			       0, 3000000);
		trace_case_ran(t, K3_OP_EMBED_BWD, K3_PASS_BACKWARD, -1, 1, 0, 4000, 5000);
		trace_case_now(9000);
		if (number == SIGABRT)
			abort();
		raise(number);
		_exit(seen == number ? 7 : 8);
	}
	cr_assert_eq(waitpid(child, &status, 0), child);
	return status;
}

static void
expect_hung_task(void)
{
	struct paje p;

	paje_read(&p, "t/k3.paje");
	cr_assert_eq(paje_count(&p, "cpu0"), 2);
	trace_case_expect(&p, "cpu0", 1, "mla_attn_fwd l1 t0 g1", 3, 9);
	trace_case_expect(&p, "cpu1", 0, "embed_bwd", 4, 5);
	paje_free(&p);
	char *tsv = trace_case_file("t/tasks.tsv");
	cr_assert_eq(fixture_count(tsv, "\n"), 4, "%s", tsv);
	free(tsv);
}

TEST(an_abort_leaves_a_trace_that_ends_with_the_hung_task)
{
	int status = child_dies(SIGABRT, SIG_DFL);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	expect_hung_task();
}

TEST(a_termination_leaves_a_trace_that_ends_with_the_hung_task)
{
	int status = child_dies(SIGTERM, SIG_DFL);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	expect_hung_task();
}

TEST(a_handler_that_was_there_before_is_called_and_the_program_goes_on)
{
	int status = child_dies(SIGTERM, remember);

	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	expect_hung_task();
}

TEST(an_ignored_interrupt_stays_ignored)
{
	int status = child_dies(SIGINT, SIG_IGN);

	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 8);
	expect_hung_task();
}

TEST(a_crash_leaves_a_trace_too)
{
	int status = child_dies(SIGSEGV, SIG_DFL);

	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	expect_hung_task();
}

TEST(an_abort_handler_that_was_there_before_is_called)
{
	int status = child_dies(SIGABRT, _exit);

	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == SIGABRT);
	expect_hung_task();
}
