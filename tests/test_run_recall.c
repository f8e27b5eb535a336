/* What a small model remembers across tiles, and what the loss mask does to training, through the
 * programs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/k3t.h"
#include "../common/status.h"
#include "fixture.h"
#include "program.h"
#include "scratch.h"

#define TEST(name, seconds)                                                                        \
	Test(run_recall, name, .init = scratch_start, .fini = scratch_stop, .timeout = seconds)

enum { TEXT_TOKENS = 62, DOC_TOKENS = TEXT_TOKENS + 2 };

/* Documents of the same text; the loss of document i counts on its last 20 tokens if counted[i]. */
static void
twins(const char *name, size_t n, const bool *counted)
{
	const struct k3_k3t_ids ids = {260, 256, 257, 258, 259};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &ids), K3_OK);
	for (size_t doc = 0; doc < n; doc++) {
		for (size_t i = 0; i < TEXT_TOKENS; i++) {
			uint32_t token = (uint32_t)fixture_uniform(7, i, 0, 256);
			bool counts = counted[doc] && i >= TEXT_TOKENS - 20;
			cr_assert_eq(k3_k3t_writer_put(w, &token, &counts, 1), K3_OK);
		}
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

static void
first_step(const char *data, int accumulate, double *loss, double *norm)
{
	struct program_result r = program_run(
		"", "k3_train", "--model recall --data %s --tokens %d --accumulate %d --steps 1",
		scratch_path(data), 2 * DOC_TOKENS, accumulate);

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	*loss = program_number(r.out, "loss_nats");
	*norm = program_number(r.out, "grad_norm");
	program_free(&r);
}

/* Equal documents have equal gradients, so the mean over labels is the same whether one of them
 * counts or all; a mean over tokens would be 2 or 4 times as small. */
TEST(a_step_divides_by_its_labels_not_by_its_tokens, 100)
{
	double all[2], one[2], apart[2];

	twins("all.k3t", 4, (const bool[]){true, true, true, true});
	twins("one.k3t", 4, (const bool[]){false, true, false, false});
	first_step("all.k3t", 2, &all[0], &all[1]);
	first_step("one.k3t", 2, &one[0], &one[1]);
	twins("two.k3t", 2, (const bool[]){true, false});
	first_step("two.k3t", 1, &apart[0], &apart[1]);
	cr_assert(all[0] > 1 && all[1] > 0, "loss %g, norm %g", all[0], all[1]);
	for (int i = 0; i < 2; i++) {
		cr_assert_float_eq(one[i], all[i], 1e-4 * all[i], "%g, not %g", one[i], all[i]);
		cr_assert_float_eq(apart[i], all[i], 1e-4 * all[i], "%g, not %g", apart[i], all[i]);
	}
}

/* Steps, losses and labels of the table; its last line is what k3_eval prints. */
TEST(the_table_of_evaluations_goes_on_after_resuming, 100)
{
	size_t bytes;

	twins("x.k3t", 4, (const bool[]){true, false, true, true});
	struct program_result r = program_run(
		"", "k3_train",
		"--model recall --data %s --eval-data %s --eval-every 2 --eval-log %s --tokens 128 "
		"--steps 5 --stop-after 3 --save %s",
		scratch_path("x.k3t"), scratch_path("x.k3t"), scratch_path("log.tsv"),
		scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	char *table = (char *)scratch_read("log.tsv", &bytes);
	table = realloc(table, bytes + 1);
	table[bytes] = '\0';
	cr_assert_eq(strncmp(table, "step\tloss_nats\taccuracy\ttokens\n", 31), 0, "%s", table);
	char *steps = program_all(table, "step");
	cr_assert_str_eq(steps, "2 3 4 5");
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 128", scratch_path("ck"),
			scratch_path("x.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_assert_eq(program_number(r.out, "tokens"), 63, "three documents, eos with each");
	cr_assert_eq(program_number(r.out, "tokens"), program_number(table, "tokens"));
	cr_assert_eq(program_number(r.out, "loss_nats"), program_number(table, "loss_nats"));
	cr_assert_eq(program_number(r.out, "accuracy"), program_number(table, "accuracy"));
	program_free(&r);
	free(table);
	free(steps);
}

TEST(held_out_data_without_a_label_are_refused_before_training, 100)
{
	twins("x.k3t", 2, (const bool[]){true, true});
	twins("none.k3t", 2, (const bool[]){false, false});
	struct program_result r = program_run(
		"", "k3_train", "--model recall --data %s --eval-data %s --tokens 128 --steps 1",
		scratch_path("x.k3t"), scratch_path("none.k3t"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(log, "leaves no token to count"), "%s", log);
	cr_assert_str_empty(r.out);
	program_free(&r);
}

TEST(a_table_that_cannot_be_written_is_refused_before_training, 100)
{
	twins("x.k3t", 2, (const bool[]){true, true});
	struct program_result r = program_run(
		"", "k3_train",
		"--model recall --data %s --eval-data %s --eval-log %s --tokens 128 --steps 1",
		scratch_path("x.k3t"), scratch_path("x.k3t"), scratch_path("no/log.tsv"));
	const char *log = scratch_log();
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(log, "log.tsv: No such file"), "%s", log);
	program_free(&r);
	r = program_run("", "k3_train", "--model recall --data %s --eval-log %s",
			scratch_path("x.k3t"), scratch_path("log.tsv"));
	cr_assert_eq(r.status, 2);
	cr_assert_not_null(strstr(scratch_log(), "needs --eval-data"));
	program_free(&r);
}

/* A pair, filler, the question: of 13 + filler tokens, or more until they are a multiple. */
struct stage {
	int filler, multiple, tokens, documents; /* tokens of a document; documents of a step */
};

enum { STEPS = 40 };

static void
documents(const char *name, const struct stage *s, int n, int seed)
{
	struct program_result r = program_run(
		"", "k3_data",
		"recall --documents %d --seed %d --pairs 1 --filler %d --multiple %d -o %s", n,
		seed, s->filler, s->multiple, scratch_path(name));

	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_assert_eq(program_number(r.out, "document_tokens"), s->tokens);
	program_free(&r);
}

/* Trains run number `run` from the weights of run `start` (0: fresh ones) on new documents.
 * @return mean loss of the last 10 steps */
static double
train(const struct stage *s, int run, int start, const char *more)
{
	char save[16], from[40], init[4200] = "";
	double sum = 0;

	snprintf(save, sizeof(save), "run%d", run);
	snprintf(from, sizeof(from), "run%d/step-%06d", start, STEPS);
	if (start)
		snprintf(init, sizeof(init), "--init-from %s", scratch_path(from));
	documents("train.k3t", s, s->documents * STEPS, run);
	struct program_result r = program_run(
		"", "k3_train",
		"--model recall --tile-tokens 64 --data %s --tokens %d --steps %d --warmup 5 "
		"--decay 0.3 --lr 1e-2 --save %s %s %s",
		scratch_path("train.k3t"), s->tokens * s->documents, STEPS, scratch_path(save),
		init, more);
	cr_assert_eq(r.status, 0, "run %d: %s", run, scratch_log());
	char *all = program_all(r.out, "loss_nats"), *at = all;
	for (int step = 1; step <= STEPS; step++) {
		double loss = strtod(at, &at);
		sum += step > STEPS - 10 ? loss : 0;
	}
	free(all);
	program_free(&r);
	return sum / 10;
}

static double
accuracy(int run, const char *more)
{
	char folder[16];

	snprintf(folder, sizeof(folder), "run%d", run);
	struct program_result r =
		program_run("", "k3_eval", "--load %s --data %s --tokens 128 --tile-tokens 64 %s",
			    scratch_path(folder), scratch_path("held.k3t"), more);
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_assert_eq(program_number(r.out, "tokens"), 400);
	double a = program_number(r.out, "accuracy");
	program_free(&r);
	return a;
}

/* The pair is said in one tile of 64 and asked in the next: what contrib/recall.sh does with 16
 * pairs and 16 tiles, made small.  Chance is 1/16; 15 % of 400 answers are seven standard
 * deviations above it.  The distance grows from stage to stage, since a fresh model forgets within
 * a few tokens; a stage is repeated until it is learnt, so other roundings do no harm. */
TEST(a_value_is_remembered_across_tiles_unless_the_state_is_cut, 400)
{
	static const struct stage stages[] = {
		{0, 1, 13, 40},	 {4, 1, 17, 30}, {12, 1, 25, 20},
		{28, 1, 41, 16}, {60, 1, 73, 8}, {0, 128, 128, 4},
	};
	enum { N_STAGES = sizeof(stages) / sizeof(stages[0]), MOST_RUNS = 20 };
	const struct stage *last = &stages[N_STAGES - 1];
	int run = 0, before = 0;

	for (const struct stage *s = stages; s <= last; s++) {
		before = run;
		do {
			run++;
			cr_assert_leq(run, MOST_RUNS, "documents of %d tokens are not learnt",
				      s->tokens);
		} while (train(s, run, run - 1, "") > 0.3);
	}
	documents("held.k3t", last, 400, 1000);
	double remembers = accuracy(run, ""), cut = accuracy(run, "--cut-state");
	cr_assert_geq(remembers, 0.6, "accuracy %g", remembers);
	cr_assert_leq(cut, 0.15, "accuracy %g without the states", cut);

	train(last, run + 1, before, "--cut-state");
	cut = accuracy(run + 1, "--cut-state");
	cr_assert_leq(cut, 0.15, "accuracy %g, trained without the states", cut);
}
