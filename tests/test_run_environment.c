/* Variables of StarPU's that it would abort at, wait for ever with or pass over are refused with status
 * 2 by every program; those that have a meaning are taken. */
#include <criterion/criterion.h>
#include <string.h>

#include "program.h"
#include "scratch.h"
#include "uses.h"

#define TEST(name)                                                                                 \
	Test(run_environment, name, .init = scratch_start, .fini = scratch_stop, .timeout = 400)

TEST(what_starpu_would_abort_at_or_pass_over_is_refused_by_every_program)
{
	static const char *const refused[][2] = {
		{"STARPU_SCHED=nope", "STARPU_SCHED=nope (environment): this StarPU has no such "
				      "scheduler; it has "},
		{"STARPU_NCPU=99999", "STARPU_NCPU=99999 (environment): must be"},
		{"STARPU_WORKERS_CPUID=here", "STARPU_WORKERS_CPUID=here (environment): must be "
					      "numbers or ranges"},
	};
	struct use use[N_USES];

	make_uses(use);
	for (int i = 0; i < N_USES; i++)
		for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]); k++)
			expect_refused(&use[i], refused[k][0], "", refused[k][1]);
}

TEST(calibrate_refuses_an_environment_before_its_first_row)
{
	struct program_result r = program_run("STARPU_SCHED=nope", "k3_bench",
					      "calibrate --machine %s", scratch_path("m.json"));

	cr_expect_eq(r.status, 2, "%d", r.status);
	cr_expect_str_empty(r.out, "%s", r.out);
	cr_expect(strstr(scratch_log(), "STARPU_SCHED=nope (environment)"), "%s", scratch_log());
	program_free(&r);
}

TEST(variables_that_starpu_would_abort_at_or_pass_over_are_refused)
{
	static const char *const refused[][2] = {
		{"STARPU_SCHED=", "STARPU_SCHED= (environment): this StarPU has no"},
		{"STARPU_SCHED=help", "STARPU_SCHED=help "},
		{"STARPU_SCHED=Eager", " eager "},
		{"STARPU_SCHED=foo STARPU_SCHED_LIB=/dev/null", "nor STARPU_SCHED_LIB=/dev/null "},
		{"STARPU_NCPU=9999", "CPU workers are possible here"},
		{"STARPU_NCPUS=x", "STARPU_NCPUS=x "},
		{"STARPU_RESERVE_NCPU=60000", "no worker"},
		{"STARPU_WORKERS_CPUID=", "STARPU_WORKERS_CPUID= "},
		{"STARPU_WORKERS_CPUID=-1", "STARPU_WORKERS_CPUID=-1 "},
		{"STARPU_WORKERS_CPUID=1-0", "STARPU_WORKERS_CPUID=1-0 "},
		{"STARPU_WORKERS_CPUID=99999", "STARPU_WORKERS_CPUID=99999 "},
		{"STARPU_WORKERS_CPUID=0-99999", "STARPU_WORKERS_CPUID=0-99999 "},
		{"STARPU_WORKERS_CPUID=0,x", "STARPU_WORKERS_CPUID=0,x "},
		{"STARPU_WORKERS_COREID=0.5", "STARPU_WORKERS_COREID=0.5 "},
		{"STARPU_MAIN_THREAD_CPUID=77777", "STARPU_MAIN_THREAD_CPUID=77777 "},
		{"STARPU_MAIN_THREAD_COREID=77777", "STARPU_MAIN_THREAD_COREID=77777 "},
		{"STARPU_PREFETCH=x", "STARPU_PREFETCH=x "},
		{"STARPU_PREFETCH=4294967296", "STARPU_PREFETCH=4294967296 "},
		{"STARPU_CUDA_PIPELINE=abc", "STARPU_CUDA_PIPELINE=abc "},
		{"STARPU_WORKER_TREE=x", "STARPU_WORKER_TREE=x "},
		{"STARPU_SCHED=dmda STARPU_SCHED_BETA=x", "STARPU_SCHED_BETA=x "},
		{"STARPU_SCHED_GAMMA=nan", "STARPU_SCHED_GAMMA=nan "},
		{"STARPU_BACKOFF_MIN=2147483647", "STARPU_BACKOFF_MIN=2147483647 "},
		{"STARPU_WATCHDOG_TIMEOUT=0", "STARPU_WATCHDOG_TIMEOUT=0 "},
		{"STARPU_LIMIT_CPU_NUMA_7_MEM=x", "STARPU_LIMIT_CPU_NUMA_7_MEM=x "},
		{"STARPU_LIMIT_CUDA_0_MEM=-1", "STARPU_LIMIT_CUDA_0_MEM=-1 "},
		{"STARPU_HOME=/dev/null XDG_CACHE_HOME=/dev/null", "can write"},
		{"STARPU_PERF_MODEL_DIR=/dev/null/x", "STARPU_PERF_MODEL_DIR=/dev/null/x "},
	};
	struct use use[N_USES];

	make_uses(use);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		expect_refused(&use[TRAIN], refused[i][0], "", refused[i][1]);
}

/* What has a meaning is taken, with a word where it is hardly meant. */
TEST(variables_that_have_a_meaning_are_taken)
{
	static const char *const taken[][2] = {
		{"STARPU_WORKERS_CPUID='0, 0 0-'", ""},
		{"STARPU_WORKERS_COREID=0-0", ""},
		{"STARPU_MAIN_THREAD_CPUID=0", ""},
		{"STARPU_NCUDA=5", "STARPU_NCUDA=5 (environment): no GPU is used"},
		{"STARPU_NCUDA=0", ""},
		{"STARPU_SCHED=heft", "scheduler dmda"},
		{"STARPU_LIMIT_CPU_MEM=0", ""},
		{"STARPU_SCHED=eager STARPU_SCHED_LIB=/dev/null", "scheduler eager"},
	};
	struct use use[N_USES];
	const char *log;

	make_uses(use);
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
		int status = run_use(&use[TRAIN], taken[i][0], "", &log);
		cr_expect(status == 0 && strstr(log, taken[i][1]), "%s: status %d: %s", taken[i][0],
			  status, log);
	}
}
