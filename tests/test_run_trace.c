/* Traces of real runs: every task that StarPU ran is there, whatever ends the program. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/status.h"
#include "../drivers/session.h"
#include "../tasks/trace_starpu.h"
#include "golden.h"
#include "paje.h"
#include "program.h"
#include "scratch.h"
#include "trace_case.h"

#define TEST(name) Test(run_trace, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

#define SMALL "--model tiny --tokens 128 --tile-tokens 64 --accumulate 2"
/* A search path that finds viewers which fail first: pictures take seconds. */
static const char *
no_pictures(void)
{
	static const char *const names[] = {"bin/vite", "bin/rsvg-convert"};
	static char path[9000];

	mkdir(scratch_path("bin"), 0700);
	for (size_t i = 0; i < 2; i++) {
		scratch_write(names[i], "#!/bin/sh\nexit 1\n", 17);
		chmod(scratch_path(names[i]), 0700);
	}
	snprintf(path, sizeof(path), "PATH=%s:$PATH", scratch_path("bin"));
	return path;
}

/* Lines of a table whose column is this, "" for all. */
static size_t
lines_with(const char *table, const char *column, const char *value)
{
	char *all = program_all(table, column);
	size_t n = 0;

	for (char *save = NULL, *one = strtok_r(all, " ", &save); one;
	     one = strtok_r(NULL, " ", &save))
		n += !*value || strcmp(one, value) == 0;
	free(all);
	return n;
}

/* k3.paje and tasks.tsv of a folder tell the same about both workers; all tasks have ended. */
static size_t
expect_sound(const char *folder)
{
	char name[64];
	struct paje p;

	snprintf(name, sizeof(name), "%s/tasks.tsv", folder);
	char *tsv = trace_case_file(name);
	snprintf(name, sizeof(name), "%s/k3.paje", folder);
	paje_read(&p, name);
	size_t all = lines_with(tsv, "op", "");
	cr_assert_eq(lines_with(tsv, "state", "done"), all);
	for (int w = 0; w < 2; w++) {
		snprintf(name, sizeof(name), "cpu%d", w);
		size_t n = lines_with(tsv, "worker", name), states = paje_count(&p, name);
		cr_assert_eq(n, states, "%s: %zu tasks, %zu states", name, n, states);
	}
	cr_assert_eq(lines_with(tsv, "worker", "cpu0") + lines_with(tsv, "worker", "cpu1"), all);
	paje_free(&p);
	free(tsv);
	return all;
}

/* Number behind a word in a text. */
static size_t
number_after(const char *text, const char *word)
{
	const char *p = strstr(text, word);

	cr_assert_not_null(p, "no \"%s\" in:\n%s", word, text);
	return strtoul(p + strlen(word), NULL, 10);
}

TEST(every_task_of_a_training_run_is_in_the_trace_under_its_step)
{
	program_dataset();
	struct program_result r =
		program_run(no_pictures(), "k3_train", SMALL " --data %s --steps 3 --trace %s",
			    scratch_path("text.k3t"), scratch_path("t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	size_t all = expect_sound("t");
	char *summary = trace_case_file("t/summary.txt"), *tsv = trace_case_file("t/tasks.tsv");
	cr_assert_eq(number_after(summary, "bytes a task; "), all);
	size_t one = lines_with(tsv, "step", "1"), setup = lines_with(tsv, "pass", "setup");
	cr_assert(one > 100 && setup > 10, "%zu and %zu tasks", one, setup);
	cr_assert_eq(lines_with(tsv, "step", "2"), one, "steps of one layout have the same tasks");
	cr_assert_eq(lines_with(tsv, "step", "3"), one);
	cr_assert_eq(all, 3 * one + setup);
	/* both microbatches have the same tasks but the load of the step's scalars */
	size_t m0 = lines_with(tsv, "microbatch", "0"), m1 = lines_with(tsv, "microbatch", "1");
	cr_assert_eq(m0, m1 + lines_with(tsv, "op", "step_load"), "%zu and %zu", m0, m1);
	free(summary);
	free(tsv);
}

TEST(tracing_changes_no_bit_and_is_not_stored_for_a_resumed_run)
{
	program_dataset();
	struct program_result a = program_run(no_pictures(), "k3_train",
					      SMALL " --data %s --steps 3 --fingerprint",
					      scratch_path("text.k3t")),
			      b = program_run(no_pictures(), "k3_train",
					      SMALL
					      " --data %s --steps 3 --stop-after 2 --fingerprint "
					      "--trace %s --trace-tasks 64 --save %s",
					      scratch_path("text.k3t"), scratch_path("t"),
					      scratch_path("ck"));
	cr_assert(a.status == 0 && b.status == 0, "%s", scratch_log());
	char *x = program_all(a.out, "fingerprint"), *y = program_all(b.out, "fingerprint");
	cr_assert(strlen(y) == 33 && strncmp(x, y, 33) == 0, "\"%s\" and \"%s\"", x, y);
	program_free(&b);
	cr_assert_eq(rename(scratch_path("t"), scratch_path("old")), 0);
	b = program_run(no_pictures(), "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(b.status, 0, "%s", scratch_log());
	cr_assert_neq(access(scratch_path("t"), F_OK), 0, "the resumed run was traced");
	program_free(&b);
	b = program_run(no_pictures(), "k3_train", "--resume %s --trace %s",
			scratch_path("ck/step-000002"), scratch_path("again"));
	cr_assert_eq(b.status, 0, "%s", scratch_log());
	char *tsv = trace_case_file("again/tasks.tsv");
	cr_assert(lines_with(tsv, "step", "3") > 100);
	free(tsv);
	free(x);
	free(y);
	program_free(&a);
	program_free(&b);
}

TEST(verify_traces_each_file_in_a_folder_of_its_name)
{
	char one[4200], two[4200];

	snprintf(one, sizeof(one), "%s", golden_path("golden/text_tiny"));
	snprintf(two, sizeof(two), "%s", golden_path("golden/kda_ops_d32"));
	struct program_result r = program_run(no_pictures(), "k3_verify", "--trace %s %s %s",
					      scratch_path("t"), one, two);
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	cr_assert(expect_sound("t/text_tiny") > 100);
	cr_assert(expect_sound("t/kda_ops_d32") > 10);
}

TEST(eval_traces_too)
{
	program_dataset();
	struct program_result r =
		program_run(no_pictures(), "k3_train", SMALL " --data %s --steps 1 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run(no_pictures(), "k3_eval", "--load %s --data %s --tokens 128 --trace %s",
			scratch_path("ck"), scratch_path("text.k3t"), scratch_path("t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	cr_assert(expect_sound("t") > 100);
	char *svg = trace_case_file("t/trace.svg");
	cr_assert(strstr(svg, ">whole run: "));
	free(svg);
}

TEST(a_trace_into_a_file_is_refused_before_anything_runs)
{
	program_dataset();
	scratch_log();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 1 --trace %s",
			    scratch_path("text.k3t"), scratch_path("text.k3t"));
	cr_assert_eq(r.status, 2);
	cr_assert_str_empty(r.out);
	cr_assert(strstr(scratch_log(), "text.k3t: Not a directory"));
	program_free(&r);
}

/* One microbatch; blocks of 16 rows of the vocabulary, and a task of the head holds them all,
 * twice. */
static void
run_head(uint32_t vocab)
{
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_session s;
	int32_t rows[3 * 64];
	struct k3_layout layout = {.n_tokens = 64, .doc_ids = rows + 128};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_host_batch batch = {.ids = rows, .labels = rows + 64};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / 64, [K3_HYPER_VALID] = 64};
	struct k3_plan *plan;

	k3_plan_options_init(&o);
	o.block_bytes = 4096;
	for (int i = 0; i < 64; i++) {
		rows[i] = rows[64 + i] = 7 * i % 300;
		rows[128 + i] = 1;
	}
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_config_set_vocab(&config, vocab), K3_OK);
	cr_assert_eq(k3_session_open(&s, &config, &o,
				     &(struct k3_runtime_options){.trace_dir = scratch_path("t")}),
		     K3_OK, "%s", scratch_log());
	cr_assert_eq(k3_session_init(&s, 1), K3_OK);
	cr_assert_eq(k3_plan_microbatch(&plan, s.model, &layout, &what), K3_OK);
	k3_runtime_step(s.runtime, 1, 0);
	cr_assert_eq(k3_submit_plan(s.store, plan, &batch, hyper), K3_OK);
	k3_runtime_drain(s.runtime);
	/* the trace needs nothing of the plan any more */
	k3_plan_destroy(plan);
	k3_session_close(&s);
}

/* The most data of a task in the trace. */
static size_t
most_data(void)
{
	char *tsv = trace_case_file("t/tasks.tsv"), *all = program_all(tsv, "data"), *save = NULL;
	size_t most = 0;

	for (char *one = strtok_r(all, " ", &save); one; one = strtok_r(NULL, " ", &save)) {
		size_t n = strtoul(one, NULL, 10);
		most = n > most ? n : most;
	}
	free(all);
	free(tsv);
	return most;
}

TEST(tasks_with_64_256_and_1024_data_are_traced_and_converted)
{
	setenv("PATH", "/nowhere", 1);
	for (uint32_t want = 64; want <= 1024; want *= 4) {
		run_head(8 * want);
		expect_sound("t");
		size_t most = most_data();
		cr_assert(most >= want && most < 2 * want, "%zu data, expected %u", most, want);
	}
}

/* One microbatch of a session. */
static void
run_once(struct k3_session *s)
{
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / 64, [K3_HYPER_VALID] = 64};
	int32_t rows[3 * 64];
	struct k3_layout layout = {.n_tokens = 64, .doc_ids = rows + 128};
	struct k3_host_batch batch = {.ids = rows, .labels = rows + 64};
	struct k3_plan *plan;

	for (int i = 0; i < 64; i++) {
		rows[i] = rows[64 + i] = 7 * i % 100;
		rows[128 + i] = 1;
	}
	cr_assert_eq(k3_plan_microbatch(&plan, s->model, &layout, &what), K3_OK);
	k3_runtime_step(s->runtime, 1, 0);
	cr_assert_eq(k3_submit_plan(s->store, plan, &batch, hyper), K3_OK);
	k3_runtime_drain(s->runtime);
	k3_plan_destroy(plan);
}

TEST(a_trace_begins_later_and_its_shares_need_no_files)
{
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_session s;
	struct k3_trace_share cpu, gpu;

	k3_plan_options_init(&o);
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_session_open(&s, &config, &o, NULL), K3_OK, "%s", scratch_log());
	cr_assert_eq(k3_session_init(&s, 1), K3_OK);
	for (size_t i = 0; i < 2; i++) {
		cr_assert_eq(k3_runtime_trace_start(s.runtime, NULL), K3_OK, "%s", scratch_log());
		cr_assert_eq(k3_runtime_trace_start(s.runtime, NULL), K3_EEXIST);
		run_once(&s);
		cr_assert_eq(k3_runtime_trace_share(s.runtime, false, &cpu), K3_OK);
		cr_assert_eq(k3_runtime_trace_share(s.runtime, true, &gpu), K3_OK);
		cr_assert_eq(k3_runtime_trace_finish(s.runtime), K3_OK);
		cr_assert(cpu.workers == 2 && cpu.tasks > 50, "%zu tasks of %u workers", cpu.tasks,
			  cpu.workers);
		cr_assert(cpu.kernels > 0 && cpu.kernels <= 1 && cpu.runtime >= 0 &&
			  cpu.kernels + cpu.runtime <= 1 + 1e-9);
		cr_assert(gpu.workers == 0 && gpu.tasks == 0);
		cr_assert_null(k3_runtime_trace(s.runtime));
	}
	k3_session_close(&s);
}

TEST(a_full_ring_is_reported_and_the_newest_steps_are_whole)
{
	program_dataset();
	scratch_log();
	struct program_result r = program_run(
		no_pictures(), "k3_train",
		"--model tiny --tokens 64 --data %s --steps 4 --trace %s --trace-tasks 700",
		scratch_path("text.k3t"), scratch_path("t"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 0, "%s", log);
	cr_assert_eq(expect_sound("t"), 700);
	cr_assert(strstr(log, "warning: trace: 700 tasks of "), "%s", log);
	cr_assert(strstr(log, "incomplete"), "%s", log);
	char *svg = trace_case_file("t/trace.svg");
	cr_assert(strstr(svg, ">step 4: "), "%s", svg);
	free(svg);
	program_free(&r);
}

TEST(termination_ends_a_run_with_a_whole_trace)
{
	char command[4096];
	struct stat st;
	int status;

	program_dataset();
	snprintf(command, sizeof(command),
		 "exec %s " SMALL " --data %s --steps 100000 --trace %s >%s",
		 program_path("k3_train"), scratch_path("text.k3t"), scratch_path("t"),
		 scratch_path("table"));
	pid_t pid = fork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 40000; i++) {
		if (stat(scratch_path("table"), &st) == 0 && st.st_size > 300)
			break;
		usleep(1000);
	}
	kill(pid, SIGTERM);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d: %s", status,
		  scratch_log());
	size_t n = expect_sound("t");
	char *summary = trace_case_file("t/summary.txt");
	cr_assert_eq(number_after(summary, "bytes a task; "), n);
	free(summary);
}

/* ---- a task that never ends, in a child */

static void
sleep_for_ever(void *buffers[], void *cl_arg)
{
	(void)buffers;
	(void)cl_arg;
	scratch_write("hanging", "x", 1);
	for (;;)
		pause();
}

static void
do_nothing(void *buffers[], void *cl_arg)
{
	(void)buffers;
	(void)cl_arg;
}

static void
submit_own(struct k3_runtime *runtime, struct starpu_codelet *cl, enum k3_op op)
{
	struct k3_task what = {.op = (uint16_t)op, .layer = 3, .tile = 0, .group = 1};
	struct starpu_task *task = starpu_task_create();

	task->cl = cl;
	k3i_trace_starpu_attach(task, k3_trace_submit(k3_runtime_trace(runtime), &what));
	if (starpu_task_submit(task) != 0)
		_exit(9);
}

static void
hang(void)
{
	static struct starpu_codelet sleeper = {.cpu_funcs = {sleep_for_ever}, .name = "sleeper"},
				     quick = {.cpu_funcs = {do_nothing}, .name = "quick"};
	struct k3_runtime *runtime;

	setenv("STARPU_NCPU", "2", 1);
	if (k3_runtime_create(&runtime, &(struct k3_runtime_options){
						.trace_dir = scratch_path("t")}) != K3_OK)
		_exit(9);
	k3_runtime_step(runtime, 5, 0);
	for (int i = 0; i < 20; i++)
		submit_own(runtime, &quick, K3_OP_EMBED_FWD);
	k3_runtime_drain(runtime);
	submit_own(runtime, &sleeper, K3_OP_KDA_CHUNK_FWD);
	k3_runtime_drain(runtime);
	_exit(0);
}

/* Starts a child that hangs; it is told by a signal, or by StarPU's watchdog (0). @return the
 * signal that ended it. */
static int
end_hanging(int number)
{
	struct stat st;
	int status;

	if (!number) {
		setenv("STARPU_WATCHDOG_TIMEOUT", "2000000", 1);
		setenv("STARPU_WATCHDOG_CRASH", "1", 1);
	}
	pid_t child = fork();
	if (child == 0)
		hang();
	for (int i = 0; i < 40000 && stat(scratch_path("hanging"), &st) != 0; i++)
		usleep(1000);
	usleep(200000);
	if (number)
		kill(child, number);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFSIGNALED(status), "status %d: %s", status, scratch_log());
	return WTERMSIG(status);
}

/* Twenty quick tasks, and one that runs from its start to the end of the file. */
static void
expect_hanging(void)
{
	const struct paje_state *last = NULL;
	struct paje p;

	paje_read(&p, "t/k3.paje");
	cr_assert_eq(paje_count(&p, "cpu0") + paje_count(&p, "cpu1"), 21);
	for (size_t i = 0; i < p.n_states; i++)
		if (strcmp(p.state[i].value, "kda_chunk_fwd s5 m0 l3 t0 g1") == 0)
			last = &p.state[i];
	cr_assert_not_null(last, "the hung task is not in the trace");
	cr_assert(last->end == p.end && last->end - last->begin > 100, "from %g to %g of %g",
		  last->begin, last->end, p.end);
	paje_free(&p);
	char *tsv = trace_case_file("t/tasks.tsv");
	cr_assert_eq(lines_with(tsv, "state", "running"), 1, "%s", tsv);
	cr_assert_eq(lines_with(tsv, "state", "done"), 20, "%s", tsv);
	free(tsv);
}

TEST(a_watchdog_that_aborts_a_hung_run_leaves_a_trace_that_ends_with_the_hung_task)
{
	cr_assert_eq(end_hanging(0), SIGABRT);
	expect_hanging();
}

TEST(terminating_a_hung_run_leaves_a_trace_that_ends_with_the_hung_task)
{
	cr_assert_eq(end_hanging(SIGTERM), SIGTERM);
	expect_hanging();
}

TEST(aborting_a_hung_run_leaves_a_trace_that_ends_with_the_hung_task)
{
	cr_assert_eq(end_hanging(SIGABRT), SIGABRT);
	expect_hanging();
}
