/* Calibration as a user runs it: k3_bench calibrate, chosen tiles, StarPU's models under schedulers
 * that believe them. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/status.h"
#include "../planner/machine.h"
#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_calibrate, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

#define SMALL "--model tiny --tokens 192 --tile-tokens 64 --accumulate 2 --lr 2e-3 --steps 4"

static char *
fingerprints(const char *environment, const char *more)
{
	struct program_result r = program_run(environment, "k3_train", "--data %s --fingerprint %s",
					      scratch_path("text.k3t"), more);
	cr_assert_eq(r.status, 0, "%s: status %d: %s", more, r.status, scratch_log());
	char *all = program_all(r.out, "fingerprint");
	cr_assert(strlen(all) >= 16, "no fingerprints in:\n%s", r.out);
	program_free(&r);
	return all;
}

/* Gives back what the run logged. */
static const char *
expect_prints(const char *want, const char *environment, const char *more)
{
	scratch_log();
	char *got = fingerprints(environment, more);

	cr_expect_str_eq(got, want, "%s %s: other bits", environment, more);
	free(got);
	return scratch_log();
}

TEST(schedulers_that_need_costs_take_the_plans_and_give_the_same_bits)
{
	static const char *const schedulers[] = {"dmdas", "modular-heft", "dmda"};

	program_dataset();
	char *want = fingerprints("STARPU_SCHED=eager STARPU_NCPU=1", SMALL);
	for (size_t i = 0; i < 3; i++) {
		char environment[400];
		snprintf(environment, sizeof(environment),
			 "STARPU_SILENT=0 STARPU_HOME=%s STARPU_NCPU=2 STARPU_SCHED=%s",
			 scratch_path("home"), schedulers[i]);
		const char *log = expect_prints(want, environment, SMALL);
		cr_expect(!strstr(log, "calibrated enough") && !strstr(log, "not finished calib"),
			  "%s: %s", schedulers[i], log);
	}
	free(want);
}

TEST(measured_models_give_the_same_bits_and_are_kept)
{
	static const char *const schedulers[] = {"dmdas", "modular-heft"};
	char environment[400];

	program_dataset();
	char *want = fingerprints("STARPU_SCHED=eager STARPU_NCPU=1", SMALL);
	for (size_t i = 0; i < 2; i++) {
		snprintf(environment, sizeof(environment),
			 "STARPU_HOME=%s STARPU_NCPU=2 STARPU_SCHED=%s", scratch_path("home"),
			 schedulers[i]);
		const char *log = expect_prints(want, environment, SMALL " --calibrate");
		const char *before = strstr(log, "models to go by: "),
			   *after = strstr(log, "models after this run: ");
		cr_assert(before && after, "%s", log);
		int known = atoi(before + strlen("models to go by: ")),
		    then = atoi(after + strlen("models after this run: "));
		/* more than fifty operations, each with a footprint at least */
		cr_expect(i == 0 ? known == 0 : known > 50, "%d entries before %s", known,
			  schedulers[i]);
		cr_expect_geq(then, 50);
	}
	free(want);
}

TEST(a_model_whose_gpus_disagree_is_measured_anew)
{
	char path[4400], host[128], *replay, *after;
	const char *data = getenv("K3_TEST_DATA");
	size_t bytes;

	program_dataset();
	snprintf(path, sizeof(path), "%s/perfmodel/k3_replay.host", data);
	cr_assert_eq(k3_fs_read(path, 1 << 20, &replay, &bytes), K3_OK);
	cr_assert_eq(k3_fs_mkdirs(scratch_path("home/.starpu/sampling/codelets/45")), K3_OK);
	/* no operation of this run: StarPU would read the GPUs' entries away itself */
	gethostname(host, sizeof(host));
	snprintf(path, sizeof(path), "home/.starpu/sampling/codelets/45/k3_hash_data.%s", host);
	scratch_write(path, replay, bytes);
	char environment[400];
	snprintf(environment, sizeof(environment), "STARPU_HOSTNAME=%s STARPU_HOME=%s", host,
		 scratch_path("home"));
	scratch_log();
	struct program_result r =
		program_run(environment, "k3_train", "--data %s " SMALL " --calibrate",
			    scratch_path("text.k3t"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 0, "%s", log);
	cr_expect(strstr(log, "footprint 82f8634b"), "%s", log);
	cr_expect(strstr(log, "6 measured anew"), "%s", log);
	program_free(&r);
	after = (char *)scratch_read(path, &bytes);
	/* the CPU's entry of that footprint is left */
	const char *first = strstr(after, "82f8634b");
	cr_expect(first && !strstr(first + 1, "82f8634b"));
	free(after);
	free(replay);
}

/* A machine file from a calibration on the smallest model. */
static const char *
calibrate(void)
{
	const char *path = scratch_path("machine.json");
	struct program_result r = program_run(
		"", "k3_bench", "calibrate --model tiny --tokens 64 --repeat 1 --machine %s", path);

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_expect_eq(strncmp(r.out, "table\tname\tsamples\t", 19), 0);
	program_free(&r);
	return path;
}

/* In fp32, where nothing is cast. */
TEST(a_calibration_measures_every_operation_that_one_rank_runs)
{
	const char *path = calibrate();
	struct k3_machine m, defaults;
	char host[128];

	k3_machine_init(&m, "", 1);
	k3_machine_init(&defaults, "", 1);
	cr_assert_eq(k3_machine_load(&m, path), K3_OK, "%s", scratch_log());
	gethostname(host, sizeof(host));
	cr_expect_str_eq(m.host, host);
	cr_expect_gt(m.task_us, 0.1);
	cr_expect_lt(m.task_us, 1000);
	cr_expect_gt(m.bytes_per_us, 500);
	for (size_t i = 0; i < K3_GEMM_SIZES; i++)
		cr_expect_gt(m.gemm_flops_per_us[i], 100);
#define X(id, name, family, args, kernel)                                                          \
	cr_expect(K3_OP_##id == K3_OP_CAST_PARAMS ||                                               \
			  memcmp(&m.rate[K3_OP_##id], &defaults.rate[K3_OP_##id],                  \
				 sizeof(struct k3_rate)) != 0,                                     \
		  "%s was not measured", #name);
	K3_COMPUTE_OP_MAP(X)
#undef X
}

TEST(a_calibration_refuses_what_it_does_not_know)
{
	static const char *const bad[] = {"--model nosuch", "--repeat 0", "--tokens x", "extra",
					  "--nosuch"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct program_result r = program_run("", "k3_bench", "calibrate %s --machine %s",
						      bad[i], scratch_path("no.json"));
		cr_expect_eq(r.status, 2, "%s: status %d", bad[i], r.status);
		cr_expect_neq(access(scratch_path("no.json"), F_OK), 0);
		program_free(&r);
	}
}

static json_t *
options_of(const char *folder)
{
	json_t *root = json_load_file(folder, 0, NULL);

	cr_assert_not_null(root, "%s", folder);
	return root;
}

TEST(chosen_tiles_are_said_stored_as_numbers_and_taken_again_on_resume)
{
	program_dataset();
	const char *machine = calibrate();
	struct program_result r = program_run(
		"STARPU_NCPU=2", "k3_train",
		"--model tiny --tokens 192 --data %s --tile-tokens auto --machine %s --steps 4 "
		"--stop-after 2 --fingerprint --save %s",
		scratch_path("text.k3t"), machine, scratch_path("ck"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 0, "%s", log);
	cr_expect(strstr(log, "chosen for "), "%s", log);
	program_free(&r);
	json_t *run = options_of(scratch_path("ck/step-000002/run.json")),
	       *o = json_object_get(run, "options");
	cr_expect(json_is_integer(json_object_get(o, "tile-tokens")));
	cr_expect_gt(json_integer_value(json_object_get(o, "kda-groups")), 0);
	cr_expect_gt(json_integer_value(json_object_get(o, "mla-groups")), 0);
	cr_expect_null(json_object_get(o, "machine"), "the machine is not the run's");
	char numbers[200];
	long long tile = json_integer_value(json_object_get(o, "tile-tokens"));
	/* the experts may be left as row blocks have them: no number says that */
	long long experts = json_integer_value(json_object_get(o, "expert-groups"));
	char groups[40] = "";
	if (experts)
		snprintf(groups, sizeof(groups), "--expert-groups %lld", experts);
	snprintf(numbers, sizeof(numbers),
		 "--model tiny --tokens 192 --steps 4 --kda-groups %lld --mla-groups %lld %s "
		 "--tile-tokens ",
		 json_integer_value(json_object_get(o, "kda-groups")),
		 json_integer_value(json_object_get(o, "mla-groups")), groups);
	snprintf(numbers + strlen(numbers), 24, tile ? "%lld" : "all", tile);
	json_decref(run);
	/* the resumed run has no machine file and the same bits as one with the numbers */
	char *straight = fingerprints("STARPU_NCPU=1", numbers);
	r = program_run("STARPU_NCPU=1", "k3_train", "--resume %s", scratch_path("ck"));
	log = scratch_log();
	cr_assert_eq(r.status, 0, "%s", log);
	cr_expect(!strstr(log, "chosen for"), "%s", log);
	char *rest = program_all(r.out, "fingerprint");
	cr_expect_str_eq(rest, straight + strlen(straight) - strlen(rest));
	free(rest);
	free(straight);
	program_free(&r);
	r = program_run("", "k3_train", "--resume %s --tile-tokens auto", scratch_path("ck"));
	cr_expect_eq(r.status, 2);
	cr_expect(strstr(scratch_log(), "auto"));
	program_free(&r);
}

TEST(the_number_of_workers_does_not_change_what_is_chosen)
{
	program_dataset();
	calibrate();
	char more[600];
	snprintf(more, sizeof(more),
		 "--model tiny --tokens 512 --steps 2 --tile-tokens auto --machine %s",
		 scratch_path("machine.json"));
	char *one = fingerprints("STARPU_NCPU=1", more);
	expect_prints(one, "STARPU_NCPU=2", more);
	free(one);
}

TEST(a_bad_machine_file_ends_every_program_with_status_two)
{
	static const char *const programs[] = {"k3_train", "k3_plan", "k3_eval", "k3_bench"};
	char args[4][300];

	program_dataset();
	scratch_write("bad.json", "{\"format\": 7}", 13);
	snprintf(args[0], sizeof(args[0]), "--model tiny --data %s", scratch_path("text.k3t"));
	snprintf(args[1], sizeof(args[1]), "--model tiny");
	snprintf(args[2], sizeof(args[2]), "--load %s --data %s", scratch_path(""),
		 scratch_path("text.k3t"));
	snprintf(args[3], sizeof(args[3]), "step --model tiny --tokens 64");
	for (size_t i = 0; i < 4; i++) {
		scratch_log();
		struct program_result r = program_run("", programs[i], "%s --machine %s", args[i],
						      scratch_path("bad.json"));
		const char *log = scratch_log();
		cr_expect_eq(r.status, 2, "%s: status %d, %s", programs[i], r.status, log);
		cr_expect(strstr(log, "bad.json") && strstr(log, "format"), "%s: %s", programs[i],
			  log);
		program_free(&r);
	}
}

TEST(k3_plan_tells_what_is_chosen_and_takes_groups)
{
	struct program_result r =
		program_run("", "k3_plan", "--model debug17 --tokens 1024 --tile-tokens auto");
	const char *log = scratch_log();

	cr_expect_eq(r.status, 0, "%s", log);
	cr_expect(strstr(log, "chosen for ") && strstr(log, "--tile-tokens "), "%s", log);
	program_free(&r);
	r = program_run("", "k3_plan", "--model debug17 --kda-groups 5");
	cr_expect_eq(r.status, 2, "more groups than heads");
	program_free(&r);
	r = program_run("", "k3_plan", "--model debug17 --tile-tokens automatic");
	cr_expect_eq(r.status, 2);
	program_free(&r);
}
