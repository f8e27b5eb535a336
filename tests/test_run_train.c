/* k3_train, k3_eval: bits, memory, checkpoints, resuming, refusals; as a user runs them. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_train, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

#define SMALL "--model tiny --tokens 192 --tile-tokens 64 --accumulate 2 --lr 2e-3"

/* Fingerprints of a run. */
static char *
prints(const char *environment, const char *more)
{
	struct program_result r =
		program_run(environment, "k3_train", SMALL " --data %s --fingerprint %s",
			    scratch_path("text.k3t"), more);
	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	char *all = program_all(r.out, "fingerprint");
	cr_assert(strlen(all) >= 16, "no fingerprints in:\n%s", r.out);
	program_free(&r);
	return all;
}

static void
same_prints(const char *environment, const char *more)
{
	program_dataset();
	char *a = prints("STARPU_SCHED=eager STARPU_NCPU=1", "--steps 5"),
	     *b = prints(environment, more);
	cr_assert_str_eq(a, b, "%s %s: other bits", environment, more);
	free(a);
	free(b);
}

TEST(repetition_gives_the_same_bits)
{
	same_prints("STARPU_SCHED=eager STARPU_NCPU=1", "--steps 5");
}

TEST(two_workers_under_lws_give_the_same_bits)
{
	same_prints("STARPU_SCHED=lws STARPU_NCPU=2", "--steps 5");
}

TEST(two_workers_under_random_give_the_same_bits)
{
	same_prints("STARPU_SCHED=random STARPU_NCPU=2", "--steps 5");
}

TEST(two_workers_under_prio_with_a_window_give_the_same_bits)
{
	same_prints("STARPU_SCHED=prio STARPU_NCPU=2", "--steps 5 --window 50");
}

TEST(two_workers_under_dmdas_give_the_same_bits)
{
	same_prints("STARPU_SCHED=dmdas STARPU_NCPU=2", "--steps 5");
}

/* The first line must not wait for the second step, whose line would then tell of no time at all.  A
 * busy machine may hold up the reader once, not eight times. */
TEST(the_first_two_lines_tell_of_a_step_each)
{
	double best = 0;

	program_dataset();
	for (int i = 0; i < 8 && best < 0.05; i++) {
		struct program_result r = program_run("", "k3_train", SMALL " --data %s --steps 2",
						      scratch_path("text.k3t"));
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		char *ms = program_all(r.out, "step_ms"), *second = strchr(ms, ' ');
		cr_assert_not_null(second, "%s", r.out);
		double ratio = atof(second) / atof(ms);
		best = ratio > best ? ratio : best;
		free(ms);
		program_free(&r);
	}
	cr_expect_geq(best, 0.05, "the second step took %g of the first one's time", best);
}

TEST(another_seed_gives_other_bits)
{
	program_dataset();
	char *a = prints("", "--steps 2"), *b = prints("", "--steps 2 --seed 1");
	cr_assert_str_neq(a, b);
	free(a);
	free(b);
}

/* The last n fingerprints of a text of blank-separated ones. */
static const char *
tail(const char *all, size_t n)
{
	return all + strlen(all) - (17 * n - 1);
}

TEST(five_steps_and_a_resumed_run_equal_ten_straight)
{
	char more[512];

	program_dataset();
	char *straight = prints("", "--steps 10");
	snprintf(more, sizeof(more), "--steps 10 --stop-after 5 --save %s", scratch_path("ck"));
	char *first = prints("", more);
	cr_assert_eq(strncmp(straight, first, strlen(first)), 0, "the first five steps differ");
	struct program_result r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *second = program_all(r.out, "fingerprint"), *step = program_column(r.out, "step");
	cr_assert_str_eq(tail(straight, 5), second, "the resumed steps differ");
	cr_assert_str_eq(step, "10");
	free(straight);
	free(first);
	free(second);
	free(step);
	program_free(&r);
}

TEST(a_changed_option_is_refused_with_both_values_on_resume)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 4 --stop-after 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	scratch_log();
	r = program_run("", "k3_train", "--resume %s --lr 0.125", scratch_path("ck"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 2);
	cr_assert(strstr(log, "0.125") && strstr(log, "0.002"), "both values are expected in: %s",
		  log);
	cr_assert_str_empty(r.out);
	program_free(&r);
}

TEST(a_transport_between_gpus_is_refused_without_one)
{
	program_dataset();
	struct program_result r = program_run("", "k3_train", SMALL " --data %s --comm nccl",
					      scratch_path("text.k3t"));

	cr_assert_eq(r.status, 2);
	cr_assert(strstr(scratch_log(), "--comm nccl: "));
	cr_assert_str_empty(r.out);
	program_free(&r);
}

TEST(changed_data_is_refused_on_resume)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 4 --stop-after 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	r = program_run("", "k3_data", "tokens --bytes %s %s -o %s", scratch_path("doc0"),
			scratch_path("doc1"), scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(scratch_log(), "checksum"));
	program_free(&r);
}

/* Kills a run at a moment of its save after step 4 and resumes: the checkpoint of step 2 or 4 must
 * be whole. */
static void
kill_while_saving(useconds_t delay_us)
{
	char command[2048], marker[4200];
	struct stat st;
	int status;

	program_dataset();
	char *straight = prints("", "--steps 8");
	snprintf(command, sizeof(command),
		 "exec %s " SMALL
		 " --data %s --steps 8 --save-every 2 --fingerprint --save %s >/dev/null",
		 program_path("k3_train"), scratch_path("text.k3t"), scratch_path("ck"));
	pid_t pid = fork();
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	snprintf(marker, sizeof(marker), "%s", scratch_path("ck/step-000002/COMPLETE"));
	for (int i = 0; i < 40000 && stat(marker, &st) != 0; i++)
		usleep(1000);
	cr_assert_eq(stat(marker, &st), 0, "no checkpoint came");
	snprintf(marker, sizeof(marker), "%s", scratch_path("ck/.step-000004.partial"));
	for (int i = 0; i < 40000 && stat(marker, &st) != 0 && kill(pid, 0) == 0; i++)
		usleep(200);
	cr_assert_eq(stat(marker, &st), 0, "the second save was not seen");
	usleep(delay_us);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	struct program_result r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *after = program_all(r.out, "fingerprint");
	/* killed around the save of step 4: at least the last four steps are done again */
	cr_assert(strlen(after) >= 4 * 17 - 1, "too few steps after the kill: %s", after);
	cr_assert_str_eq(straight + strlen(straight) - strlen(after), after,
			 "other bits after a kill at %u us", delay_us);
	free(after);
	free(straight);
	program_free(&r);
}

TEST(a_kill_when_a_save_begins_loses_nothing)
{
	kill_while_saving(0);
}

TEST(a_kill_one_millisecond_into_a_save_loses_nothing)
{
	kill_while_saving(1000);
}

TEST(a_kill_three_milliseconds_into_a_save_loses_nothing)
{
	kill_while_saving(3000);
}

TEST(a_kill_ten_milliseconds_into_a_save_loses_nothing)
{
	kill_while_saving(10000);
}

TEST(a_kill_thirty_milliseconds_into_a_save_loses_nothing)
{
	kill_while_saving(30000);
}

TEST(a_folder_without_its_marker_does_not_count)
{
	char marker[4200];

	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 4 --save-every 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	snprintf(marker, sizeof(marker), "%s", scratch_path("ck/step-000004/COMPLETE"));
	cr_assert_eq(unlink(marker), 0);
	r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	char *steps = program_all(r.out, "step");
	cr_assert_str_eq(steps, "3 4");
	free(steps);
	program_free(&r);
}

TEST(a_terminated_run_ends_with_a_checkpoint)
{
	struct program_result r;

	program_dataset();
	r = program_run(
		"", "k3_train",
		SMALL " --data %s --steps 100000 --save %s & p=$!; sleep 3; kill -TERM $p; wait $p",
		scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 128", scratch_path("ck"),
			scratch_path("text.val.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
}

TEST(the_loss_falls_and_evaluation_agrees_with_the_checkpoint)
{
	program_dataset();
	struct program_result r = program_run(
		"", "k3_train", SMALL " --data %s --eval-data %s --steps 30 --save %s",
		scratch_path("text.k3t"), scratch_path("text.val.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *losses = program_all(r.out, "loss_nats"), *last = program_column(r.out, "loss_nats");
	double begin = atof(losses), end = atof(last);
	cr_assert(begin > 4 && end < begin - 1.5, "the loss went from %g to %g", begin, end);
	const char *said = strstr(scratch_log(), "held-out loss ");
	cr_assert_not_null(said);
	double told = atof(said + strlen("held-out loss "));
	free(losses);
	free(last);
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 192 --tile-tokens 64",
			scratch_path("ck"), scratch_path("text.val.k3t"));
	cr_assert_eq(r.status, 0);
	char *loss = program_column(r.out, "loss_nats"),
	     *accuracy = program_column(r.out, "accuracy");
	cr_assert(fabs(atof(loss) - told) < 1e-4, "%s and %g", loss, told);
	cr_assert(atof(accuracy) > 0 && atof(accuracy) <= 1);
	free(loss);
	free(accuracy);
	program_free(&r);
}

TEST(generation_prints_prompt_and_bytes_and_repeats_itself)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 3 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	r = program_run("", "k3_eval",
			"--load %s --prompt 'the graph' --bytes 70 --temperature 0.8",
			scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_assert_eq(strncmp(r.out, "the graph", 9), 0);
	struct program_result again = program_run(
		"", "k3_eval", "--load %s --prompt 'the graph' --bytes 70 --temperature 0.8",
		scratch_path("ck"));
	cr_assert_str_eq(r.out, again.out);
	program_free(&r);
	program_free(&again);
}

TEST(handles_hold_at_most_the_bound_and_nearly_reach_it)
{
	static const char *const schedulers[] = {"eager", "random", "lws", "dmdas"};
	double best = 0;

	program_dataset();
	for (size_t i = 0; i < 4; i++) {
		char environment[64];
		snprintf(environment, sizeof(environment), "STARPU_SCHED=%s STARPU_NCPU=2",
			 schedulers[i]);
		scratch_log();
		struct program_result r =
			program_run(environment, "k3_train", SMALL " --data %s --steps 3",
				    scratch_path("text.k3t"));
		cr_assert_eq(r.status, 0);
		const char *log = scratch_log(), *bound = strstr(log, "at most "),
			   *held = strstr(log, "layouts planned");
		cr_assert(bound && held, "%s", log);
		double most = atof(bound + 8), now = atof(strstr(held, "; ") + 2);
		cr_assert(now <= most + 0.05, "%s: %g MiB held, the bound is %g", schedulers[i],
			  now, most);
		best = now / most > best ? now / most : best;
		program_free(&r);
	}
	cr_assert(best >= 0.9, "only %.3g of the bound was reached", best);
}

TEST(recomputing_gives_the_same_bits_and_saves_what_the_plan_says)
{
	static const char *const policy[] = {"--activations keep", "--activations recompute",
					     "--activations 1-2:recompute"};
	double most[3], held[3];
	char *print[3];

	program_dataset();
	for (size_t i = 0; i < 3; i++) {
		scratch_log();
		struct program_result r = program_run("STARPU_NCPU=2", "k3_train",
						      "--model tiny --tokens 512 --tile-tokens 64 "
						      "--accumulate 2 --steps 3 --fingerprint "
						      "--data %s %s",
						      scratch_path("text.k3t"), policy[i]);
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		const char *log = scratch_log();
		most[i] = program_logged(log, "at most ");
		held[i] = program_logged(strstr(log, "layouts planned"), "; ");
		print[i] = program_all(r.out, "fingerprint");
		cr_expect(held[i] <= most[i] + 0.05, "%s: %g of %g MiB", policy[i], held[i],
			  most[i]);
		program_free(&r);
	}
	for (size_t i = 1; i < 3; i++) {
		cr_expect_str_eq(print[i], print[0], "%s", policy[i]);
		double planned = most[0] - most[i], saved = held[0] - held[i];
		cr_expect(planned > 0 && fabs(saved - planned) <= 0.1 * planned,
			  "%s: saved %g MiB, the plan says %g", policy[i], saved, planned);
	}
	for (size_t i = 0; i < 3; i++)
		free(print[i]);
}

TEST(a_limit_of_memory_is_kept_by_recomputing_or_refused_before_the_start)
{
	program_dataset();
	scratch_log();
	struct program_result r = program_run("STARPU_NCPU=2", "k3_train",
					      "--model tiny --tokens 512 --tile-tokens 64 "
					      "--steps 2 --data %s --memory 0.02",
					      scratch_path("text.k3t"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 0, "%s", log);
	cr_expect(strstr(log, "recompute"), "%s", log);
	cr_expect(program_logged(log, "at most ") <= 0.02 * 1024, "%s", log);
	program_free(&r);
	r = program_run("", "k3_train", "--model tiny --tokens 512 --data %s --memory 0.001",
			scratch_path("text.k3t"));
	log = scratch_log();
	cr_assert_eq(r.status, 2, "%s", log);
	cr_expect(strstr(log, "bytes are missing"), "%s", log);
	cr_expect_eq(strlen(r.out), 0);
	program_free(&r);
}

TEST(a_vocabulary_smaller_than_the_data_is_refused_with_both_numbers)
{
	program_dataset();
	struct program_result r = program_run("", "k3_train", "--model tiny --vocab 128 --data %s",
					      scratch_path("text.k3t"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 2);
	cr_assert(strstr(log, "260") && strstr(log, "128"), "%s", log);
	program_free(&r);
}

TEST(a_data_set_that_is_too_short_is_refused_with_both_counts)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", "--model tiny --tokens 1000000 --data %s",
			    scratch_path("text.k3t"));
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(scratch_log(), "1000000"));
	program_free(&r);
}

TEST(a_tile_that_is_no_multiple_of_64_is_refused)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", "--model tiny --tile-tokens 100 --data %s",
			    scratch_path("text.k3t"));
	cr_assert_eq(r.status, 2);
	program_free(&r);
}

/* Exploding weights make the loss infinite: nothing is updated, the step is named, no checkpoint is
 * written. */
TEST(a_step_that_is_not_finite_ends_the_run_with_its_number)
{

	program_dataset();
	struct program_result r =
		program_run("", "k3_train",
			    SMALL " --data %s --steps 50 --lr 1000 --clip 0 --warmup 0 --decay 0 "
				  "--weight-decay 1000 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 2, "an option given twice is refused");
	program_free(&r);
	r = program_run("", "k3_train",
			"--model tiny --tokens 192 --data %s --steps 50 --lr 1000 --clip 0 "
			"--warmup 0 --decay 0 "
			"--weight-decay 1000 --save %s",
			scratch_path("text.k3t"), scratch_path("ck"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 1, "status %d: %s", r.status, log);
	cr_assert(strstr(log, "not finite") && strstr(log, "step "), "%s", log);
	cr_assert_eq(rmdir(scratch_path("ck")), 0, "a checkpoint was written");
	program_free(&r);
}

TEST(one_token_and_two_token_microbatches_train)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", "--model tiny --tokens 1 --steps 2 --data %s",
			    scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_train", "--model tiny --tokens 2 --steps 2 --data %s",
			scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
}

TEST(the_small_preset_and_the_first_layers_of_another_run)
{
	program_dataset();
	struct program_result r = program_run(
		"", "k3_train", "--model small --vocab 260 --tokens 96 --steps 2 --data %s",
		scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_train",
			"--model debug17 --layers 2 --vocab 260 --tokens 96 --steps 1 --data %s",
			scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
}

TEST(sign_and_no_balance_train)
{
	program_dataset();
	char *sign = prints("", "--steps 3 --balance sign"),
	     *none = prints("", "--steps 3 --balance none");
	cr_assert_str_neq(sign, none);
	free(sign);
	free(none);
}

TEST(a_folder_that_cannot_be_made_is_refused_before_the_first_step)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 2 --save %s/below",
			    scratch_path("text.k3t"), scratch_path("doc0"));
	cr_assert_eq(r.status, 2);
	cr_assert_str_empty(r.out);
	program_free(&r);
}

TEST(a_run_that_is_refused_leaves_no_folder)
{
	static const char *const refused[][2] = {
		{"", "--memory 0.0001"},
		{"", "--optimizer-dtype bf16"},
		{"STARPU_LIMIT_CPU_MEM=1", ""},
		{"STARPU_NCPU=none", ""},
	};

	program_dataset();
	size_t files = scratch_files();
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct program_result r = program_run(
			refused[i][0], "k3_train", SMALL " --data %s --steps 2 --save %s %s",
			scratch_path("text.k3t"), scratch_path("ck"), refused[i][1]);
		cr_expect(r.status == 2 && !*r.out, "%s %s: status %d: %s", refused[i][0],
			  refused[i][1], r.status, scratch_log());
		cr_expect_eq(scratch_files(), files, "%s %s", refused[i][0], refused[i][1]);
		program_free(&r);
	}
}

/* StarPU aborts at some of them and waits for ever under others. */
TEST(numbers_of_the_environment_that_starpu_does_not_take_are_refused)
{
	static const char *const refused[][2] = {
		{"STARPU_NCPU=two", "STARPU_NCPU=two "},
		{"STARPU_NCPU=-1", "STARPU_NCPU=-1 "},
		{"STARPU_NCPU=", "STARPU_NCPU= "},
		{"STARPU_NCPU=0", "STARPU_NCPU 0"},
		{"STARPU_NCUDA=1.5", "STARPU_NCUDA=1.5 "},
		{"STARPU_NWORKER_PER_CUDA=0", "STARPU_NWORKER_PER_CUDA=0 "},
		{"STARPU_CUDA_THREAD_PER_WORKER=yes", "STARPU_CUDA_THREAD_PER_WORKER=yes "},
		{"STARPU_LIMIT_CUDA_MEM=abc", "STARPU_LIMIT_CUDA_MEM=abc "},
		{"STARPU_LIMIT_CPU_MEM=-5", "STARPU_LIMIT_CPU_MEM=-5 "},
		{"STARPU_LIMIT_CPU_MEM=1", "may take 1.0 MiB"},
	};

	program_dataset();
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		struct program_result r =
			program_run(refused[i][0], "k3_train", SMALL " --data %s --steps 1",
				    scratch_path("text.k3t"));
		const char *log = scratch_log();
		cr_expect(r.status == 2 && !*r.out && strstr(log, refused[i][1]),
			  "%s: status %d: %s", refused[i][0], r.status, log);
		program_free(&r);
	}
}

TEST(a_folder_with_checkpoints_of_another_run_is_refused)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	r = program_run("", "k3_train", SMALL " --data %s --steps 2 --seed 1 --save %s",
			scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(scratch_log(), "another run"));
	program_free(&r);
}

TEST(a_run_is_resumed_from_another_folder)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 4 --stop-after 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	cr_assert_eq(chdir("/"), 0);
	r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	char *steps = program_all(r.out, "step");
	cr_assert_str_eq(steps, "3 4");
	free(steps);
	program_free(&r);
}

/* A dataset whose ids go up to 69999; the model has 320. */
TEST(a_data_set_with_more_tokens_than_the_model_is_refused_by_every_evaluation)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_data", "tokens --bytes %s -o %s --vocab 70000",
			    scratch_path("doc0"), scratch_path("big.k3t"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	r = program_run("", "k3_train", SMALL " --data %s --eval-data %s --steps 2 --save %s",
			scratch_path("text.k3t"), scratch_path("big.k3t"), scratch_path("ck"));
	const char *log = scratch_log();
	cr_assert(r.status == 2 && !*r.out, "status %d: %s", r.status, log);
	cr_assert(strstr(log, "70000") && strstr(log, "320"), "%s", log);
	program_free(&r);
	r = program_run("", "k3_train", SMALL " --data %s --steps 2 --save %s",
			scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s", scratch_path("ck"),
			scratch_path("big.k3t"));
	log = scratch_log();
	cr_assert(r.status == 2 && !*r.out && strstr(log, "70000"), "status %d: %s", r.status, log);
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s", scratch_path("ck"),
			scratch_path("doc0"));
	cr_assert(r.status == 2 && !*r.out, "status %d: %s", r.status, scratch_log());
	program_free(&r);
}

TEST(held_out_data_that_do_not_exist_are_refused_before_the_first_step)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --eval-data %s --steps 2",
			    scratch_path("text.k3t"), scratch_path("nothing.k3t"));
	cr_assert(r.status == 2 && !*r.out, "status %d: %s", r.status, scratch_log());
	program_free(&r);
}

TEST(a_line_that_cannot_be_written_ends_the_run)
{
	program_dataset();
	struct program_result r = program_run(
		"", "k3_train", SMALL " --data %s --steps 2 >/dev/full", scratch_path("text.k3t"));
	cr_assert_eq(r.status, 1);
	cr_assert_not_null(strstr(scratch_log(), "could not be written"));
	program_free(&r);
}

/* Resumes with `from` replaced by `to` in run.json; must be refused with the message. */
static void
resume_refused(const char *json, const char *from, const char *to, const char *message)
{
	const char *at = strstr(json, from);
	char *edited;
	size_t length;
	FILE *out = open_memstream(&edited, &length);

	cr_assert_not_null(at, "run.json holds no %s", from);
	fwrite(json, 1, (size_t)(at - json), out);
	fputs(to, out);
	fputs(at + strlen(from), out);
	fclose(out);
	scratch_write("ck/step-000002/run.json", edited, length);
	free(edited);
	scratch_log();
	struct program_result r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	const char *log = scratch_log();
	cr_assert(r.status == 2 && !*r.out && strstr(log, message), "%s: status %d, not %s: %s", to,
		  r.status, message, log);
	program_free(&r);
}

TEST(numbers_of_run_json_that_cannot_be_are_refused)
{
	program_dataset();
	struct program_result r =
		program_run("", "k3_train", SMALL " --data %s --steps 4 --stop-after 2 --save %s",
			    scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0);
	program_free(&r);
	size_t n;
	char *json = (char *)scratch_read("ck/step-000002/run.json", &n);
	resume_refused(json, "\"format\": 1", "\"format\": 2", "must hold format 1");
	resume_refused(json, "\"options\"", "\"other\"", "must hold format 1");
	resume_refused(json, "\"step\": \"2\"", "\"step\": \"0\"", "state.step is 0");
	resume_refused(json, "\"step\": \"2\"", "\"step\": \"5\"", "state.step is 5");
	resume_refused(json, "\"step\": \"2\"", "\"step\": \"-1\"", "state.step must be");
	resume_refused(json, "\"epoch\": \"0\"", "\"epoch\": \"18446744073709551616\"",
		       "state.epoch must be");
	resume_refused(json, "\"balance\": \"quantile\"", "\"balance\": null", "options.balance");
	resume_refused(json, "\"accumulate\": 2", "\"accumulate\": 0", "accumulate");
	resume_refused(json, "\"steps\": 4", "\"steps\": 9223372036854775807", "options.steps");
	resume_refused(json, "\"decay\": 0", "\"decay\": 1e300, \"x\": 0", "options.decay");
	free(json);
}

/* The folder exists, but its checkpoint's path would be cut off, and the folder itself removed. */
TEST(a_path_that_is_too_long_for_a_checkpoint_removes_nothing)
{
	char path[5000];

	program_dataset();
	size_t n = (size_t)snprintf(path, sizeof(path), "%s", scratch_path("deep"));
	while (n < 4095) {
		size_t part = 4095 - n - 1 < 200 ? 4095 - n - 1 : 200;
		path[n++] = '/';
		memset(path + n, 'd', part);
		n += part;
		if (4095 - n == 1)
			break;
	}
	path[n] = 0;
	FILE *script = fopen(scratch_path("run.sh"), "w");
	fprintf(script, "exec %s " SMALL " --data %s --steps 1 --save %s\n",
		program_path("k3_train"), scratch_path("text.k3t"), path);
	fclose(script);
	char command[4096];
	snprintf(command, sizeof(command), "sh %s >/dev/null", scratch_path("run.sh"));
	int status = system(command);
	const char *log = scratch_log();
	struct stat st;
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 0, "%s", log);
	cr_assert_not_null(strstr(log, "too long"), "%s", log);
	cr_assert_eq(stat(path, &st), 0, "the folder was removed");
}

/* The shell allows files of 8 blocks only, so the plan of a step does not fit. */
TEST(an_export_that_cannot_be_completed_leaves_no_file)
{
	struct program_result r = program_run("trap '' XFSZ; ulimit -f 8;", "k3_plan",
					      "--model tiny --json %s", scratch_path("plan.json"));
	struct stat st;

	cr_assert_eq(r.status, 1, "status %d: %s", r.status, scratch_log());
	cr_assert_neq(stat(scratch_path("plan.json"), &st), 0, "half a plan was left");
	program_free(&r);
}
