/* What a program cannot run with, it refuses: at once, with status 2 and a message that says what
 * was given and what is possible; nothing hangs, aborts or takes something else without a word.
 * A program that waits for ever is ended by program_run, with status 124. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"
#include "scratch.h"
#include "uses.h"

#define TEST(name)                                                                                 \
	Test(run_refused, name, .init = scratch_start, .fini = scratch_stop, .timeout = 400)

/* The number before " MiB are needed", rounded up; 0: it is not said. */
static unsigned
needed_mib(const char *log)
{
	const char *end = strstr(log, " MiB are needed");

	while (end && end > log && strchr("0123456789.", end[-1]))
		end--;
	return end ? (unsigned)ceil(atof(end) + 0.1) : 0;
}

/* StarPU would wait for ever.  What the message asks for is enough; a program that learns of its
 * plans one after the other may ask again. */
TEST(a_limit_of_main_memory_is_refused_by_every_program_and_what_is_asked_for_suffices)
{
	struct use use[N_USES];

	make_uses(use);
	for (int i = 0; i < N_USES; i++) {
		unsigned limit = 1, times = 0;
		char environment[64], said[120];
		const char *log;
		int status;
		for (;; times++) {
			snprintf(environment, sizeof(environment), "STARPU_LIMIT_CPU_MEM=%u",
				 limit);
			snprintf(said, sizeof(said), "may take %u.0 MiB of it (%s)", limit,
				 environment);
			status = run_use(&use[i], environment, "", &log);
			unsigned more = needed_mib(log);
			if (status != 2 || more <= limit || times == 6)
				break;
			cr_expect(strstr(log, said), "%s: no \"%s\": %s", use[i].program, said,
				  log);
			limit = more;
		}
		cr_expect(status == 0 && times > 0, "%s %s after %u: %d, %s", environment,
			  use[i].program, times, status, log);
	}
}

TEST(limits_by_numa_node_are_limits_of_main_memory)
{
	struct use use[N_USES];

	make_uses(use);
	for (int i = 0; i < N_USES; i++)
		expect_refused(&use[i], "STARPU_LIMIT_CPU_NUMA_MEM=1", "",
			       "may take 1.0 MiB of it (STARPU_LIMIT_CPU_NUMA_MEM=1)");
	expect_refused(&use[EVAL], "STARPU_USE_NUMA=1 STARPU_LIMIT_CPU_NUMA_0_MEM=1", "",
		       "may take 1.0 MiB of it (STARPU_LIMIT_CPU_NUMA_0_MEM=1)");
}

/* With a disk data have somewhere to go: the run is slow and right, or refused by what the workers
 * need at once. */
TEST(a_limit_of_main_memory_is_kept_with_a_disk)
{
	struct use use[N_USES];
	char environment[1200];
	const char *log;

	make_uses(use);
	struct program_result whole = program_run("", use[EVAL].program, "%s", use[EVAL].args);
	snprintf(environment, sizeof(environment),
		 "STARPU_NCPU=1 STARPU_DISK_SWAP=%s STARPU_DISK_SWAP_BACKEND=unistd "
		 "STARPU_DISK_SWAP_SIZE=64 STARPU_LIMIT_CPU_MEM=4",
		 scratch_path(""));
	struct program_result less =
		program_run(environment, use[EVAL].program, "%s", use[EVAL].args);
	cr_expect_eq(less.status, 0, "%d: %s", less.status, scratch_log());
	cr_expect_str_eq(less.out, whole.out);
	program_free(&less);
	program_free(&whole);
	strcat(environment, " STARPU_NCPU=2 STARPU_LIMIT_CPU_MEM=1");
	int status = run_use(&use[TRAIN], environment, "", &log);
	cr_expect(status == 2 && strstr(log, "the tasks of 2 workers need"), "%d: %s", status, log);
}

/* Also in a build that has no CUDA; STARPU_NCUDA=0 makes every machine one without a GPU. */
TEST(a_device_or_a_transport_that_is_not_there_is_refused_alike_by_every_program)
{
	static const struct {
		const char *more, *message;
		bool bench; /* k3_bench step has it too */
	} refused[] = {
		{"--device nope", "--device nope: must be cpu, cuda or all", true},
		{"--device cuda", " CUDA", true},
		{"--device all", " CUDA", true},
		{"--dtype fp16", "--dtype fp16: must be fp32 or bf16", true},
		{"--comm nope", "--comm nope: must be none or nccl", false},
		{"--comm nccl", "--comm nccl: ", false},
		{"--comm nccl --device cuda", " CUDA", false},
		{"--window -1", "--window -1: must be an integer from 0", true},
		{"--device cpu --device cpu", "--device is given twice", true},
	};
	struct use use[N_USES];

	make_uses(use);
	for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]); k++)
		for (int i = 0; i < VISION; i++)
			if (i != STEP || refused[k].bench)
				expect_refused(&use[i], "STARPU_NCUDA=0", refused[k].more,
					       refused[k].message);
}

TEST(options_that_contradict_each_other_are_refused_with_what_is_allowed)
{
	static const struct {
		int use;
		const char *more, *message;
	} refused[] = {
		{TRAIN, "--optimizer-dtype bf16 --dtype fp32",
		 "--optimizer-dtype bf16 needs --dtype bf16"},
		{TRAIN, "--optimizer-dtype fp8", "--optimizer-dtype fp8: must be fp32 or bf16"},
		{TRAIN, "--trace-tasks 5", "needs --trace DIR"},
		{TRAIN, "--max-patches 8", "--max-patches: the model is trained without its"},
		{TRAIN, "--vision perhaps --eval-every 2", "--vision perhaps: must be"},
		{TRAIN, "--vision perhaps --eval-every 2", "--eval-every needs --eval-data"},
		{TRAIN, "--kda-groups 9 --mla-groups 9", "(--kda-groups)"},
		{TRAIN, "--kda-groups 9 --mla-groups 9", "(--mla-groups)"},
		{TRAIN, "--stop-after 2 --save x",
		 "--stop-after 2: the run ends at step 1 (--steps)"},
		{EVAL, "--trace-tasks 5", "needs --trace DIR"},
		{VERIFY, "--trace-tasks 5", "needs --trace DIR"},
		{EVAL, "--tile-tokens 0", "--tile-tokens 0: must be a multiple of 64 up to"},
		{EVAL, "--tile-tokens -1", "--tile-tokens -1: must be a multiple of 64 up to"},
		{EVAL, "--tile-tokens 99999999999",
		 "must be a multiple of 64 up to 1073741824, or all"},
		{EVAL, "--tile-tokens ''", "--tile-tokens '': must be a multiple"},
		{EVAL, "--prompt the", "--data and --prompt are given: one at a time"},
		{WRITE, "--caption x.k3t", "--prompt and --caption are given: one at a time"},
		{EVAL, "--bytes 3 --seed 1", "--bytes: belongs to --prompt, and --data was given"},
		{EVAL, "--bytes 3 --seed 1", "--seed: belongs to --prompt, and --data was given"},
		{WRITE, "--tokens 64",
		 "--tokens: belongs to --data or --caption, and --prompt was"},
		{STEP, "--tile-tokens nope",
		 "must be a multiple of 64 up to 1073741824, all, or auto"},
		{STEP, "--scheduler nope", "--scheduler \"nope\": must be up to 64 of: all "},
		{STEP, "--scheduler eager,,lws", "--scheduler \"\": must be"},
		{STEP, "--documents 8,8", "--documents 8,8: in place of --tokens 64"},
		{STEP, "--compare-workers --workers 1", "--workers 1 is the same"},
		{STEP, "--memory 0.001 --activations keep", "bytes are missing"},
		{STEP, "--memory 0.001", "a smaller model (--layers, --vocab) would help"},
		{TRAIN, "--memory 0.001", "--optimizer-dtype bf16 ("},
		{STEP, "--workers 4096", "--workers 4096: at most "},
		{VISION, "--workers 4096", "--workers 4096: at most "},
		{STEP, "--trace /dev/null/x", "/dev/null/x"},
	};
	struct use use[N_USES];

	make_uses(use);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		expect_refused(&use[refused[i].use], "", refused[i].more, refused[i].message);
}

/* A file of the scratch folder that holds the first bytes of another. */
static const char *
cut_file(const char *name, const char *from, double share)
{
	size_t bytes;
	FILE *f = fopen(from, "r");

	cr_assert_not_null(f, "%s", from);
	cr_assert_eq(fseek(f, 0, SEEK_END), 0);
	bytes = (size_t)ftell(f);
	unsigned char *all = malloc(bytes + 1);
	rewind(f);
	cr_assert(all && fread(all, 1, bytes, f) == bytes);
	fclose(f);
	/* 1 is the whole, what is above it the whole without so many bytes */
	scratch_write(name, all,
		      share <= 1 ? (size_t)(share * (double)bytes) : bytes - (size_t)share + 1);
	free(all);
	return scratch_path(name);
}

TEST(golden_cases_that_are_cut_or_of_another_kind_are_refused)
{
	static const double shares[] = {0, 1e-5, 1e-3, 0.05, 0.5, 2};
	struct use use[N_USES];
	const char *log;

	make_uses(use);
	for (int i = VERIFY; i <= VERIFY_OPS; i++)
		for (size_t k = 0; k < sizeof(shares) / sizeof(shares[0]); k++) {
			struct use cut = {.program = "k3_verify"};
			snprintf(cut.args, sizeof(cut.args), "%s",
				 cut_file("cut.safetensors", use[i].args, shares[k]));
			int status = run_use(&cut, "", "", &log);
			cr_expect(status == 2 && strstr(log, "error"), "%s to %g: %d, %s",
				  use[i].args, shares[k], status, log);
		}
	const char *const others[] = {"text.k3t", "ck/step-000001/config.json",
				      "ck/step-000001/optimizer.safetensors", "ck", "nothing"};
	for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++) {
		struct use other = {.program = "k3_verify"};
		snprintf(other.args, sizeof(other.args), "%s", scratch_path(others[k]));
		expect_refused(&other, "", "", "error");
	}
}

TEST(checkpoints_that_are_cut_or_of_another_type_are_refused)
{
	static const char *const files[] = {"run.json", "config.json", "model.safetensors",
					    "optimizer.safetensors"};
	static const double shares[] = {0, 0.01, 0.5, 2};
	struct use use[N_USES], resume = {.program = "k3_train"};
	char path[600], name[64];
	const char *log;

	make_uses(use);
	snprintf(resume.args, sizeof(resume.args), "--resume %s", scratch_path("ck"));
	expect_refused(&resume, "", "--dtype bf16", "--dtype \"bf16\": the run to be resumed has");
	expect_refused(&resume, "", "--optimizer-dtype bf16", "the run to be resumed has \"fp32\"");
	expect_refused(&resume, "STARPU_NCUDA=0", "--device cuda", " CUDA");
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(name, sizeof(name), "ck/step-000001/%s", files[i]);
		snprintf(path, sizeof(path), "%s", scratch_path("whole"));
		cut_file("whole", scratch_path(name), 1);
		for (size_t k = 0; k < sizeof(shares) / sizeof(shares[0]); k++) {
			cut_file(name, path, shares[k]);
			int status = run_use(&resume, "", "", &log), want = 2;
			cr_expect_eq(status, want, "resume, %s to %g: %d, %s", files[i], shares[k],
				     status, log);
			/* what a program does not read it does not miss */
			status = run_use(&use[EVAL], "", "", &log), want = i == 1 || i == 2 ? 2 : 0;
			cr_expect_eq(status, want, "eval, %s to %g: %d, %s", files[i], shares[k],
				     status, log);
		}
		cut_file(name, path, 1);
	}
	cr_expect_eq(run_use(&resume, "", "", &log), 0, "%s", log);
}

/* Millions of handles would be made for nothing. */
TEST(a_model_whose_parameters_no_memory_holds_is_refused_before_its_handles_are_made)
{
	struct program_result r =
		program_run("", "k3_bench", "step --model Kimi-K3 --tokens 64 --check --limit 60");

	cr_expect(r.status == 2 && strstr(scratch_log(), "main memory: the machine has "), "%d: %s",
		  r.status, r.out);
	program_free(&r);
}

/* Before a minute of measuring. */
TEST(a_calibration_that_could_not_be_written_is_not_begun)
{
	struct program_result r =
		program_run("", "k3_bench", "calibrate --machine /dev/null/x/machine.json");

	cr_expect_eq(r.status, 2, "%d: %s", r.status, scratch_log());
	cr_expect_str_empty(r.out);
	program_free(&r);
	r = program_run("", "k3_bench", "calibrate --machine %s", scratch_path(""));
	cr_expect_eq(r.status, 2, "%d: %s", r.status, scratch_log());
	cr_expect_str_empty(r.out);
	program_free(&r);
}
