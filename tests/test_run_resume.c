/* What a run can be resumed from, and what may be said then: refusals name what is there, what was
 * asked for and what would do. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_resume, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

/* Six steps of a schedule of eight, with checkpoints of steps 2, 4 and 6 in ck. */
static void
make_run(void)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train",
			    "--model tiny --tokens 64 --data %s --steps 8 --stop-after 6 "
			    "--save-every 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
}

/* Status of "k3_name --OPTION ck/FOLDER MORE"; *log is what it said. */
static int
run(const char *name, const char *option, const char *folder, const char *more, const char **log)
{
	char path[300];

	snprintf(path, sizeof(path), "ck/%s", folder);
	scratch_log();
	struct program_result r =
		program_run("", name, "--%s %s %s", option, scratch_path(path), more);
	*log = scratch_log();
	program_free(&r);
	return r.status;
}

static int
resume(const char *folder, const char *more, const char **log)
{
	return run("k3_train", "resume", folder, more, log);
}

TEST(a_stop_behind_what_is_done_is_refused_with_both_steps)
{
	const char *log;

	make_run();
	cr_expect_eq(resume("", "--stop-after 3", &log), 2);
	cr_expect(strstr(log, "--stop-after 3: ") && strstr(log, "step-000006 is of step 6") &&
			  strstr(log, "allowed are 6 to --steps, 8"),
		  "%s", log);
	cr_expect(!strstr(log, "done already"), "%s", log);
	cr_expect_eq(resume("step-000002", "--stop-after 3", &log), 0, "%s", log);
}

TEST(a_stop_at_what_is_done_says_so_and_is_no_fault)
{
	const char *log;

	make_run();
	cr_expect_eq(resume("", "--stop-after 6", &log), 0, "%s", log);
	cr_expect(strstr(log, "step 6 is done already, and --stop-after asks for no more"), "%s",
		  log);
	cr_expect(!strstr(log, "all 6 steps"), "%s", log);
	cr_expect_eq(resume("", "", &log), 0, "%s", log);
	cr_expect_eq(resume("", "", &log), 0, "%s", log);
	cr_expect(strstr(log, "all 8 steps are done already"), "%s", log);
}

TEST(a_stop_behind_the_end_of_the_schedule_is_refused)
{
	const char *log;

	make_run();
	cr_expect_eq(resume("", "--stop-after 9", &log), 2);
	cr_expect(strstr(log, "--stop-after 9: the run ends at step 8 (--steps)"), "%s", log);
}

/* The list of the refusal stands in --help too, and every option of it is taken. */
TEST(what_may_change_is_listed_and_taken)
{
	static const struct {
		const char *option,
			*value; /* value: a file of the scratch folder when it has one */
	} changes[] = {
		{"--stop-after", "6"},	   {"--save-every", "3"},  {"--eval-every", "2"},
		{"--fingerprint", ""},	   {"--window", "20"},	   {"--memory", "1"},
		{"--calibrate", ""},	   {"--device", "cpu"},	   {"--comm", "none"},
		{"--activations", "keep"}, {"--trace-tasks", "9"},
	};
	static const char *const paths[] = {"--save", "--eval-data", "--eval-log", "--trace",
					    "--machine"};
	const char *log, *begin;
	char list[600], more[2000] = "";

	make_run();
	cr_assert_eq(resume("", "--lr 0.5 --tokens 32", &log), 2);
	begin = strstr(log, "a resumed run may change only ");
	cr_assert(begin && strstr(log, "--lr 0.5: the run to be resumed has 0.0008\n") &&
			  strstr(log, "--tokens 32: "),
		  "%s", log);
	begin += strlen("a resumed run may change only ");
	snprintf(list, sizeof(list), "%.*s", (int)strcspn(begin, "\n"), begin);
	cr_expect(!strstr(begin, "may change only "), "told once: %s", log);
	struct program_result help = program_run("", "k3_train", "--help");
	cr_expect(strstr(help.out, list), "no \"%s\" in %s", list, help.out);
	program_free(&help);

	size_t listed = 1;
	for (const char *at = list; (at = strstr(at + 1, " --"));)
		listed++;
	cr_expect_eq(listed,
		     sizeof(changes) / sizeof(changes[0]) + sizeof(paths) / sizeof(paths[0]), "%s",
		     list);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		cr_expect(strstr(list, changes[i].option), "%s not in %s", changes[i].option, list);
		/* they only check and end: the checkpoint is of step 6 */
		snprintf(more + strlen(more), sizeof(more) - strlen(more), " %s %s",
			 changes[i].option, changes[i].value);
	}
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		cr_expect(strstr(list, paths[i]), "%s not in %s", paths[i], list);
		if (strcmp(paths[i], "--machine") != 0)
			snprintf(more + strlen(more), sizeof(more) - strlen(more), " %s %s",
				 paths[i],
				 scratch_path(strcmp(paths[i], "--eval-data") == 0 ? "text.val.k3t"
										   : paths[i] + 2));
	}
	cr_expect_eq(resume("", more, &log), 0, "%s: %s", more, log);
	cr_expect_eq(resume("", "--machine /dev/null/x", &log), 2);
	cr_expect(strstr(log, "/dev/null/x") && !strstr(log, "may change"), "%s", log);
}

/* Takes the last bytes of a checkpoint's file away. */
static void
cut(const char *step, const char *file, size_t bytes)
{
	char name[300];
	size_t n;

	snprintf(name, sizeof(name), "ck/%s/%s", step, file);
	free(scratch_read(name, &n));
	cr_assert_eq(truncate(scratch_path(name), (off_t)(n - bytes)), 0);
}

TEST(a_checkpoint_that_was_cut_is_refused_with_the_newest_whole_one_before_it)
{
	static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
					    "run.json", "config.json"};
	const char *log;
	char name[100];
	size_t n;

	make_run();
	cut("step-000004", "model.safetensors", 1);
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(name, sizeof(name), "ck/step-000006/%s", files[i]);
		unsigned char *whole = scratch_read(name, &n);
		cut("step-000006", files[i], 2);
		cr_expect_eq(resume("", "", &log), 2, "%s", files[i]);
		cr_expect(strstr(log, files[i]) && strstr(log, "step-000006 is not whole") &&
				  strstr(log, "--resume ") && strstr(log, "/ck/step-000002\n"),
			  "%s", log);
		bool weights = i == 0 || i == 3;
		cr_expect_eq(run("k3_eval", "load", "", "--prompt the --bytes 1", &log),
			     weights ? 2 : 0, "%s: %s", files[i], log);
		cr_expect_eq(!!strstr(log, "--load "), weights, "%s", log);
		scratch_write(name, whole, n);
		free(whole);
	}
	/* what is advised works */
	cr_expect_eq(resume("step-000002", "--stop-after 3", &log), 0, "%s", log);
}

TEST(a_missing_file_of_a_checkpoint_is_named_and_that_no_other_is_whole)
{
	const char *log;

	make_run();
	cr_assert_eq(unlink(scratch_path("ck/step-000006/optimizer.safetensors")), 0);
	cut("step-000004", "optimizer.safetensors", 4);
	cut("step-000002", "run.json", 4);
	cr_expect_eq(resume("step-000006", "", &log), 2);
	cr_expect(strstr(log, "step-000006/optimizer.safetensors: No such file"), "%s", log);
	cr_expect(strstr(log, "holds no older one that is"), "%s", log);
}

/* The run's own words and the checkpoint's must be of one model. */
TEST(an_edited_config_is_refused_with_both_values)
{
	const char *log;
	size_t n;

	make_run();
	char *text = (char *)scratch_read("ck/step-000006/config.json", &n);
	char *copy = malloc(n + 1);
	memcpy(copy, text, n);
	copy[n] = 0;
	char *eps = strstr(copy, "\"rms_norm_eps\": 1e-5");
	cr_assert_not_null(eps, "%s", copy);
	eps[strlen("\"rms_norm_eps\": 1e-")] = '6';
	scratch_write("ck/step-000006/config.json", copy, n);
	cr_expect_eq(resume("", "", &log), 2);
	cr_expect(strstr(log, "config.json: text_config.rms_norm_eps is 1e-6") &&
			  strstr(log, "--model tiny has 1e-5"),
		  "%s", log);
	scratch_write("ck/step-000006/config.json", text, n);
	cr_expect_eq(resume("", "", &log), 0, "%s", log);
	free(copy);
	free(text);
}

/* The other way round: the file that --model named was edited after the run began. */
TEST(an_edited_model_file_is_refused_with_both_values)
{
	const char *log;
	size_t n;

	make_run();
	char *text = (char *)scratch_read("ck/step-000006/config.json", &n);
	scratch_write("m.json", text, n);
	struct program_result r = program_run(
		"", "k3_train",
		"--model %s --tokens 64 --data %s --steps 4 --stop-after 2 --save %s",
		scratch_path("m.json"), scratch_path("text.k3t"), scratch_path("ck/own"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	cr_expect_eq(resume("own", "--stop-after 3", &log), 0, "%s", log);
	char *copy = malloc(n + 1);
	memcpy(copy, text, n);
	copy[n] = 0;
	char *scale = strstr(copy, "\"routed_scaling_factor\": ");
	cr_assert_not_null(scale);
	scale[strlen("\"routed_scaling_factor\": ")] = '7';
	scratch_write("m.json", copy, n);
	cr_expect_eq(resume("own", "", &log), 2);
	cr_expect(strstr(log, "text_config.routed_scaling_factor is "), "%s", log);
	free(copy);
	free(text);
}
