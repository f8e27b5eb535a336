/* What other StarPU programs met, tried with ours: schedulers, tiny tasks, silence, what is left. */
#include <criterion/criterion.h>
#include <malloc.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <starpu.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "../drivers/session.h"
#include "../tasks/usage.h"
#include "../tasks/watchdog.h"
#include "program.h"
#include "scratch.h"

#define TEST(name) Test(run_sched, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* ---- the same step under every kind of scheduler */

/* Schedulers by name, with eager first, whose bits the others must have. */
static void
same_bits(const char *schedulers, size_t n)
{
	struct program_result r = program_run(
		"", "k3_bench",
		"step --model tiny --tokens 128 --tile-tokens 64 --accumulate 2 --fingerprint "
		"--check --scheduler %s",
		schedulers);

	cr_assert_eq(r.status, 0, "%s\n%s", r.out, scratch_log());
	static const char *const columns[] = {"same", "status"}, *const all[] = {"yes", "ok"};
	for (size_t c = 0; c < 2; c++) {
		char *column = program_all(r.out, columns[c]), *word = strtok(column, " ");
		size_t rows = 0;
		for (; word; word = strtok(NULL, " "), rows++)
			cr_expect_str_eq(word, all[c], "row %zu of\n%s", rows, r.out);
		cr_expect_eq(rows, n, "%s", r.out);
		free(column);
	}
	char *names = program_all(r.out, "scheduler");
	for (char *p = names; *p; p++)
		*p = *p == ' ' ? ',' : *p;
	cr_expect_str_eq(names, schedulers, "others ran than were asked for");
	free(names);
	program_free(&r);
}

TEST(two_whole_steps_have_the_same_bits_with_and_without_priorities)
{
	same_bits("eager,lws,ws,prio", 4);
}

TEST(two_whole_steps_have_the_same_bits_under_schedulers_with_cost_models)
{
	same_bits("eager,dmda,dmdas,dmdar", 4);
}

TEST(two_whole_steps_have_the_same_bits_under_modular_and_heterogeneous_schedulers)
{
	same_bits("eager,heteroprio,modular-heft", 3);
}

TEST(another_seed_has_another_fingerprint)
{
	char *print[2];

	for (int i = 0; i < 2; i++) {
		struct program_result r = program_run(
			"", "k3_bench",
			"step --model tiny --tokens 64 --fingerprint --check --seed %d", i);
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		print[i] = program_column(r.out, "fingerprint");
		program_free(&r);
	}
	cr_assert_eq(strlen(print[0]), 16);
	cr_assert_str_neq(print[0], print[1]);
	free(print[0]);
	free(print[1]);
}

/* ---- many tiny tasks */

enum { CHAINS = 50, LENGTH = 200, TIMES = 20 };
static atomic_uint n_run;

static void
link_run(void *buffers[], void *arg)
{
	uint64_t *x = (uint64_t *)STARPU_VARIABLE_GET_PTR(buffers[0]);

	*x = k3_fnv1a(*x, &arg, sizeof(arg));
	atomic_fetch_add(&n_run, 1);
}

static struct starpu_codelet link_codelet = {
	.name = "link", .cpu_funcs = {link_run}, .nbuffers = 1, .modes = {STARPU_RW}};

TEST(ten_thousand_tiny_tasks_end_in_order_twenty_times)
{
	struct k3_runtime *runtime;
	starpu_data_handle_t handle[CHAINS];
	uint64_t value[CHAINS], expected = 0;

	unsetenv("STARPU_NCPU"); /* all cores */
	cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_OK);
	for (uintptr_t i = 0; i < LENGTH; i++) {
		void *arg = (void *)i;
		expected = k3_fnv1a(expected, &arg, sizeof(arg));
	}
	for (int times = 0; times < TIMES; times++) {
		atomic_store(&n_run, 0);
		for (int c = 0; c < CHAINS; c++) {
			value[c] = 0;
			starpu_variable_data_register(&handle[c], STARPU_MAIN_RAM,
						      (uintptr_t)&value[c], sizeof(value[c]));
		}
		for (uintptr_t i = 0; i < LENGTH; i++)
			for (int c = 0; c < CHAINS; c++) {
				struct starpu_task *task = starpu_task_create();
				task->cl = &link_codelet;
				task->handles[0] = handle[c];
				task->cl_arg = (void *)i;
				task->cl_arg_size = sizeof(i);
				cr_assert_eq(starpu_task_submit(task), 0);
			}
		k3_runtime_drain(runtime);
		cr_assert_eq(atomic_load(&n_run), CHAINS * LENGTH);
		for (int c = 0; c < CHAINS; c++) {
			starpu_data_unregister(handle[c]);
			cr_assert_eq(value[c], expected, "chain %d", c);
		}
	}
	k3_runtime_destroy(runtime);
}

/* ---- silence */

static void
nap(void *buffers[], void *arg)
{
	(void)buffers;
	usleep((useconds_t)(uintptr_t)arg);
}

static struct starpu_codelet nap_codelet = {.name = "nap", .cpu_funcs = {nap}};

/* What is logged while n tasks of so many microseconds run one after the other. */
static const char *
log_of_naps(const char *timeout_us, int n, uintptr_t us)
{
	struct k3_runtime *runtime;

	setenv("STARPU_WATCHDOG_TIMEOUT", timeout_us, 1);
	setenv("STARPU_NCPU", "1", 1);
	cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_OK);
	for (int i = 0; i < n; i++) {
		struct starpu_task *task = starpu_task_create();
		task->cl = &nap_codelet;
		task->cl_arg = (void *)us;
		task->cl_arg_size = sizeof(us);
		cr_assert_eq(starpu_task_submit(task), 0);
	}
	k3_runtime_destroy(runtime);
	return scratch_log();
}

TEST(a_task_that_is_stuck_is_told_of_and_the_run_goes_on)
{
	const char *log = log_of_naps("200000", 2, 900000);

	cr_assert(strstr(log, "no task has ended for 0.2 s, 2 wait or run"), "%s", log);
}

TEST(tasks_that_end_in_time_are_not_told_of)
{
	const char *log = log_of_naps("800000", 40, 50000);

	cr_assert_null(strstr(log, "no task has ended"), "%s", log);
}

TEST(the_watchdog_waits_two_minutes_unless_the_user_says_otherwise)
{
	static const char *const set[] = {NULL, "5000000"};

	for (int i = 0; i < 2; i++) {
		struct k3_runtime *runtime;
		unsetenv("STARPU_WATCHDOG_TIMEOUT");
		if (set[i])
			setenv("STARPU_WATCHDOG_TIMEOUT", set[i], 1);
		cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_OK);
		cr_assert_str_eq(getenv("STARPU_WATCHDOG_TIMEOUT"), set[i] ? set[i] : "120000000");
		k3_runtime_destroy(runtime);
	}
}

TEST(versions_with_known_faults_are_named_and_old_ones_refused)
{
	static const struct {
		int version[3], refuse, named;
	} cases[] = {
		{{1, 2, 99}, 1, 1}, {{1, 3, 9}, 1, 1},	{{1, 3, 10}, 0, 0}, {{1, 3, 99}, 0, 0},
		{{1, 4, 0}, 0, 1},  {{1, 4, 10}, 0, 1}, {{1, 4, 11}, 0, 0}, {{2, 0, 0}, 0, 0},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const int *v = cases[i].version;
		int refuse = -1;
		const char *text = k3_starpu_fault(v[0], v[1], v[2], &refuse);
		cr_expect_eq(refuse, cases[i].refuse, "%d.%d.%d", v[0], v[1], v[2]);
		cr_expect_eq(text != NULL, cases[i].named, "%d.%d.%d", v[0], v[1], v[2]);
	}
}

/* ---- what is left, and how long tasks are */

/* A session's life: values, one microbatch and its update, the end. */
static void
live(void)
{
	int32_t ids[128], labels[128], docs[128];
	const double hyper[K3_HYPER_LEN] = {
		[K3_HYPER_VALID] = 128, [K3_HYPER_INV_N] = 1.0 / 128, [K3_HYPER_STEP] = 1};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_layout layout = {.n_tokens = 128, .doc_ids = docs};
	struct k3_host_batch batch = {.ids = ids, .labels = labels};
	struct k3_plan_options options;
	const struct k3_plan *plan;
	struct k3_session s;
	struct k3_config config;

	for (int i = 0; i < 128; i++) {
		ids[i] = labels[i] = (i * 7) % 300;
		docs[i] = 1;
	}
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	k3_plan_options_init(&options);
	options.tile_tokens = 64;
	cr_assert_eq(k3_session_open(&s, &config, &options, NULL), K3_OK);
	cr_assert_eq(k3_session_init(&s, 0), K3_OK);
	cr_assert_eq(k3_plan_cache_get(s.cache, &layout, &what, 1, &plan), K3_OK);
	cr_assert_eq(k3_submit_plan(s.store, plan, &batch, hyper), K3_OK);
	cr_assert_eq(k3_session_optimizer(&s, 0, &plan), K3_OK);
	cr_assert_eq(k3_submit_plan(s.store, plan, NULL, NULL), K3_OK);
	k3_session_close(&s);
}

TEST(a_session_that_is_closed_leaves_no_memory_behind)
{
	size_t used[6];

	/* StarPU keeps something of its own the first times; what comes on top each time is ours */
	for (int i = 0; i < 6; i++) {
		live();
		malloc_trim(0);
		struct mallinfo2 m = mallinfo2();
		used[i] = m.uordblks + m.hblkhd;
	}
	/* the model's parameters, gradients and moments alone are some MB */
	cr_assert(used[5] <= used[2] + 3 * 16384, "%zu bytes held after three runs, %zu after six",
		  used[2], used[5]);
}

TEST(training_tells_how_long_tasks_are_and_warns_of_short_ones)
{
	struct program_result r = program_run(
		"", "k3_train", "--model tiny --data %s --tokens 128 --steps 2", program_dataset());
	const char *log = scratch_log();
	const char *line = NULL;
	double mean_ms = -1;

	cr_assert_eq(r.status, 0, "%s", log);
	/* the last one is measured, the first was estimated */
	for (const char *at = log; (at = strstr(at, " tasks of ")); at++)
		line = at;
	cr_assert(line && sscanf(line, " tasks of %lf ms", &mean_ms) == 1, "%s", log);
	cr_expect(mean_ms > 0 && mean_ms < 60, "%g", mean_ms);
	cr_expect_eq(strstr(log, "larger tiles or more tokens help") != NULL, mean_ms < 1, "%s",
		     log);
	program_free(&r);
}

TEST(usage_counts_tasks_and_their_time)
{
	struct k3_runtime *runtime;
	struct k3_usage usage;

	setenv("STARPU_NCPU", "2", 1);
	cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_OK);
	k3_usage_begin();
	for (int i = 0; i < 8; i++) {
		struct starpu_task *task = starpu_task_create();
		task->cl = &nap_codelet;
		task->cl_arg = (void *)(uintptr_t)50000;
		task->cl_arg_size = sizeof(uintptr_t);
		cr_assert_eq(starpu_task_submit(task), 0);
	}
	k3_runtime_drain(runtime);
	k3_usage_read(&usage);
	cr_expect_eq(usage.tasks, 8);
	cr_expect_eq(usage.workers, 2);
	/* naps never end early, and eight of them on two workers take four naps' time */
	cr_expect_geq(usage.kernels_s, 0.4);
	cr_expect_geq(usage.wall_s, 0.2);
	cr_expect_geq(k3_usage_mean_task_ms(&usage), 50);
	cr_expect_leq(k3_usage_share(&usage), 1.001);
	cr_expect_leq(fabs(k3_usage_share(&usage) - usage.kernels_s / 2 / usage.wall_s), 1e-12);
	k3_usage_read(&usage);
	cr_expect_eq(usage.tasks, 0, "reading sets to zero");
	k3_runtime_destroy(runtime);
}
