/* k3_train and k3_eval on texts with images: bits, memory, resuming, microbatches without images,
 * captions; as a user runs them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/safetensors.h"
#include "../common/status.h"
#include "mm_case.h"
#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_images, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

static char *
prints(const char *environment, const char *more)
{
	struct program_result r = program_run(
		environment, "k3_train", "--model %s --data %s " MM_RUN " --fingerprint %s",
		scratch_path("config.json"), scratch_path("mixed.k3t"), more);

	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	char *all = program_all(r.out, "fingerprint");
	cr_assert(strlen(all) >= 16, "no fingerprints in:\n%s", r.out);
	program_free(&r);
	return all;
}

TEST(schedulers_workers_and_windows_give_the_same_bits)
{
	static const struct {
		const char *environment, *more;
	} run[] = {
		{"STARPU_SCHED=eager STARPU_NCPU=1", "--steps 5"},
		{"STARPU_SCHED=lws STARPU_NCPU=2", "--steps 5"},
		{"STARPU_SCHED=random STARPU_NCPU=2", "--steps 5"},
		{"STARPU_SCHED=prio STARPU_NCPU=2", "--steps 5 --window 40"},
		{"STARPU_SCHED=dmdas STARPU_NCPU=2", "--steps 5"},
	};

	mm_model();
	mm_mixed();
	char *first = prints("STARPU_SCHED=eager STARPU_NCPU=1", "--steps 5");
	for (size_t i = 0; i < sizeof(run) / sizeof(run[0]); i++) {
		char *other = prints(run[i].environment, run[i].more);
		cr_expect_str_eq(first, other, "%s: other bits", run[i].environment);
		free(other);
	}
	free(first);
}

TEST(a_resumed_run_equals_a_straight_one)
{
	char more[512];

	mm_model();
	mm_mixed();
	char *straight = prints("", "--steps 7");
	snprintf(more, sizeof(more), "--steps 7 --stop-after 3 --save %s", scratch_path("ck"));
	free(prints("", more));
	struct program_result r = program_run("", "k3_train", "--resume %s", scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *second = program_all(r.out, "fingerprint");
	cr_assert_str_eq(straight + strlen(straight) - (17 * 4 - 1), second);
	free(straight);
	free(second);
	program_free(&r);
}

/* "plan: at most X MiB" and "Y MiB held" of a run's messages. */
static void
expect_bound(const char *log)
{
	const char *promise = strstr(log, "plan: at most "), *held = strstr(log, " MiB held");
	double most, used;

	cr_assert(promise && held, "%s", log);
	most = strtod(promise + strlen("plan: at most "), NULL);
	while (held[-1] != ' ')
		held--;
	used = strtod(held, NULL);
	cr_expect(used > 0 && used <= most, "%g MiB held, %g promised", used, most);
}

TEST(memory_stays_below_the_promise_whatever_the_images_are)
{
	static const char *const scheduler[] = {"eager", "random", "lws"};

	mm_model();
	mm_mixed();
	for (size_t i = 0; i < 3; i++) {
		char environment[64];
		snprintf(environment, sizeof(environment), "STARPU_NCPU=2 STARPU_SCHED=%s",
			 scheduler[i]);
		scratch_log();
		free(prints(environment, "--steps 8"));
		expect_bound(scratch_log());
	}
}

/* Largest difference of the tower's tensors of two checkpoints; *n of them. */
static double
tower_moves(const char *a, const char *b, size_t *n)
{
	struct k3_st *from, *to;
	double most = 0;

	cr_assert_eq(k3_st_open(&from, scratch_path(a)), K3_OK);
	cr_assert_eq(k3_st_open(&to, scratch_path(b)), K3_OK);
	*n = 0;
	for (size_t i = 0; i < k3_st_count(from); i++) {
		const struct k3_st_tensor *t = k3_st_at(from, i), *u = k3_st_find(to, t->name);
		if (strncmp(t->name, "language_model.", 15) == 0)
			continue;
		cr_assert(u && u->n_elems == t->n_elems, "%s", t->name);
		double *x = malloc(t->n_elems * sizeof(*x)), *y = malloc(t->n_elems * sizeof(*y));
		cr_assert_eq(k3_st_read_f64(t, 0, t->n_elems, x), K3_OK);
		cr_assert_eq(k3_st_read_f64(u, 0, t->n_elems, y), K3_OK);
		for (size_t k = 0; k < t->n_elems; k++)
			most = fmax(most, fabs(x[k] - y[k]));
		free(x);
		free(y);
		(*n)++;
	}
	k3_st_close(from);
	k3_st_close(to);
	return most;
}

static void
make_text_only(void)
{
	struct k3_k3t_writer *w = mm_begin("text.k3t");

	for (uint64_t d = 0; d < 4; d++) {
		mm_put_text(w, d, 150);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	mm_end(w);
}

/* Gradients of exactly zero leave weights where they are, without decay. */
TEST(text_alone_does_not_move_the_tower_and_images_do)
{
	size_t n;

	mm_model();
	mm_mixed();
	make_text_only();
	for (int images = 0; images < 2; images++) {
		struct program_result r = program_run(
			"", "k3_train",
			"--model %s --data %s " MM_RUN
			" --vision on --weight-decay 0 --steps 3 --save-every 1 --save %s",
			scratch_path("config.json"),
			scratch_path(images ? "mixed.k3t" : "text.k3t"),
			scratch_path(images ? "ck1" : "ck0"));
		cr_assert_eq(r.status, 0, "%s", scratch_log());
		program_free(&r);
	}
	cr_expect_eq(tower_moves("ck0/step-000001", "ck0/step-000003", &n), 0);
	cr_expect_eq(n, 18);
	cr_expect_gt(tower_moves("ck1/step-000001", "ck1/step-000003", &n), 1e-4);
}

/* Zeros are built, not multiplied: weights of the tower that are NaN do not matter to texts. */
TEST(a_tower_of_nan_does_not_spoil_text)
{
	const char *name = "ck/step-000001/model.safetensors";
	size_t bytes, at;
	struct k3_st *st;
	float nan = NAN;

	mm_model();
	make_text_only();
	struct program_result r = program_run(
		"", "k3_train", "--model %s --data %s " MM_RUN " --vision on --steps 1 --save %s",
		scratch_path("config.json"), scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	unsigned char *file = scratch_read(name, &bytes);
	cr_assert_eq(k3_st_open(&st, scratch_path("ck/step-000001")), K3_OK);
	uint64_t header;
	memcpy(&header, file, sizeof(header));
	at = 8 + header +
	     (size_t)((const char *)k3_st_find(st, "mm_projector.proj.2.weight")->data -
		      (const char *)k3_st_at(st, 0)->data);
	k3_st_close(st);
	memcpy(file + at, &nan, sizeof(nan));
	scratch_write("nan.safetensors", file, bytes);
	free(file);
	r = program_run("", "k3_train",
			"--model %s --data %s " MM_RUN " --vision on --weight-decay 0 --steps 3 "
			"--balance none --init-from %s",
			scratch_path("config.json"), scratch_path("text.k3t"),
			scratch_path("nan.safetensors"));
	cr_expect_eq(r.status, 0, "%s", scratch_log());
	char *loss = program_column(r.out, "loss_nats"), *norm = program_column(r.out, "grad_norm");
	cr_expect(loss && isfinite(strtod(loss, NULL)) && isfinite(strtod(norm, NULL)), "%s",
		  r.out);
	free(loss);
	free(norm);
	program_free(&r);
}

/* Gray images followed by bright or dark ones, with texts of equal beginning: only the second image
 * tells them apart.  A document without images lies before them. */
TEST(captions_are_learnt_from_the_images)
{
	struct k3_k3t_writer *w = mm_begin("two.k3t");
	const uint32_t plain[3] = {7, 8, 9};

	mm_model();
	cr_assert_eq(k3_k3t_writer_put(w, plain, NULL, 3), K3_OK);
	cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	for (int d = 0; d < 8; d++) {
		const uint32_t text[3] = {5, d % 2 ? 60 : 80, d % 2 ? 33 : 44};
		mm_put_image(w, 0, 1, 4, 4, 128);
		mm_put_image(w, 0, 1, 2, 4, d % 2 ? 250 : 5);
		cr_assert_eq(k3_k3t_writer_put(w, text, NULL, 3), K3_OK);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	mm_end(w);
	struct program_result r = program_run(
		"", "k3_train",
		"--model %s --data %s --tokens 64 --steps 60 --warmup 5 --lr 5e-3 "
		"--weight-decay 0 --save %s",
		scratch_path("config.json"), scratch_path("two.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --caption %s --samples 2", scratch_path("ck"),
			scratch_path("two.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	cr_expect_str_eq(r.out, "document\timages\tstored\twritten\tequal\n"
				"1\t2\t\\5;P,\t\\5;P,\tyes\n"
				"2\t2\t\\5;<!\t\\5;<!\tyes\n");
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 64", scratch_path("ck"),
			scratch_path("two.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *accuracy = program_column(r.out, "accuracy");
	cr_expect_str_eq(accuracy, "1");
	free(accuracy);
	program_free(&r);
}
