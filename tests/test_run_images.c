/* k3_train and k3_eval on texts with images: bits, memory, resuming, microbatches without images,
 * captions, refusals; as a user runs them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/k3t.h"
#include "../common/rng.h"
#include "../common/safetensors.h"
#include "../common/status.h"
#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_images, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

enum { BOS = 124, EOS, IMG, PAD, VOCAB, PATCH_BYTES = 588 };

/* Model of the golden case with images. */
static const char *
model(void)
{
	const char *dir = getenv("K3_TEST_DATA"), *text;
	struct k3_st *st;
	char path[4096];

	snprintf(path, sizeof(path), "%s/golden/mm_tiny.safetensors", dir ? dir : "tests/data");
	cr_assert_eq(k3_st_open(&st, path), K3_OK);
	text = k3_st_metadata(st, "hf_config");
	scratch_write("config.json", text, strlen(text));
	k3_st_close(st);
	return scratch_path("config.json");
}

static struct k3_k3t_writer *
begin(const char *name)
{
	const struct k3_k3t_ids ids = {
		.vocab = VOCAB, .bos = BOS, .eos = EOS, .placeholder = IMG, .pad = PAD};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &ids), K3_OK);
	return w;
}

static void
put_text(struct k3_k3t_writer *w, uint64_t seed, size_t n)
{
	uint64_t key = k3_rng_key("text", seed);

	for (size_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)(k3_rng_uniform(key, i) * 100);
		cr_assert_eq(k3_k3t_writer_put(w, &token, NULL, 1), K3_OK);
	}
}

/* An image or video of random bytes, or of one brightness (level >= 0). */
static void
put_image(struct k3_k3t_writer *w, uint64_t seed, uint32_t t, uint32_t h, uint32_t width, int level)
{
	const struct k3_grid grid = {t, h, width};
	size_t n = (size_t)k3_grid_patches(&grid) * PATCH_BYTES;
	uint8_t *bytes = malloc(n);
	uint64_t key = k3_rng_key("image", seed);

	for (size_t i = 0; i < n; i++)
		bytes[i] = level >= 0 ? (uint8_t)level : (uint8_t)(k3_rng_uniform(key, i) * 256);
	cr_assert_eq(k3_k3t_writer_put_item(w, &grid, bytes), K3_OK);
	free(bytes);
}

static void
end(struct k3_k3t_writer *w)
{
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

/* Documents with no, one, two and three images and a video of three frames, and long text between,
 * so that microbatches of 96 tokens hold none, one or several. */
static const char *
mixed(void)
{
	struct k3_k3t_writer *w = begin("mixed.k3t");

	for (uint64_t d = 0; d < 8; d++) {
		put_text(w, d, d == 0 ? 200 : 11 + 5 * (size_t)d);
		for (uint64_t i = 0; i < d % 4; i++) {
			put_image(w, 10 * d + i, d == 3 && i == 1 ? 3 : 1, 2 + 2 * (uint32_t)i,
				  4 + 4 * (uint32_t)(d % 3), -1);
			put_text(w, 100 + 10 * d + i, 3 * (size_t)i);
		}
		put_text(w, 1000 + d, 20);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	end(w);
	return scratch_path("mixed.k3t");
}

#define RUN "--tokens 96 --tile-tokens 64 --accumulate 2 --lr 2e-3 --vision-patches 64"

static char *
prints(const char *environment, const char *more)
{
	struct program_result r = program_run(
		environment, "k3_train", "--model %s --data %s " RUN " --fingerprint %s",
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

	model();
	mixed();
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

	model();
	mixed();
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

	model();
	mixed();
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
	struct k3_k3t_writer *w = begin("text.k3t");

	for (uint64_t d = 0; d < 4; d++) {
		put_text(w, d, 150);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	end(w);
}

/* Gradients of exactly zero leave weights where they are, without decay. */
TEST(text_alone_does_not_move_the_tower_and_images_do)
{
	size_t n;

	model();
	mixed();
	make_text_only();
	for (int images = 0; images < 2; images++) {
		struct program_result r = program_run(
			"", "k3_train",
			"--model %s --data %s " RUN
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

	model();
	make_text_only();
	struct program_result r = program_run(
		"", "k3_train", "--model %s --data %s " RUN " --vision on --steps 1 --save %s",
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
			"--model %s --data %s " RUN " --vision on --weight-decay 0 --steps 3 "
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

/* Bright and dark images with different texts of equal beginning: only the image tells them apart. */
TEST(captions_are_learnt_from_the_images)
{
	struct k3_k3t_writer *w = begin("two.k3t");

	model();
	for (int d = 0; d < 8; d++) {
		const uint32_t text[3] = {5, d % 2 ? 60 : 80, d % 2 ? 33 : 44};
		put_image(w, 0, 1, 4, 4, d % 2 ? 250 : 5);
		cr_assert_eq(k3_k3t_writer_put(w, text, NULL, 3), K3_OK);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	end(w);
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
				"0\t1\t\\5;P,\t\\5;P,\tyes\n"
				"1\t1\t\\5;<!\t\\5;<!\tyes\n");
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 64", scratch_path("ck"),
			scratch_path("two.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *accuracy = program_column(r.out, "accuracy");
	cr_expect_str_eq(accuracy, "1");
	free(accuracy);
	program_free(&r);
}

static void
expect_refused(const char *args, const char *message)
{
	scratch_log();
	struct program_result r = program_run("", "k3_train", "%s", args);
	const char *log = scratch_log();

	cr_expect_eq(r.status, 2, "%s: status %d", args, r.status);
	cr_expect(strstr(log, message), "%s: \"%s\" is expected: %s", args, message, log);
	cr_expect_str_empty(r.out);
	program_free(&r);
}

TEST(what_does_not_fit_is_refused_with_both_values)
{
	char args[2048];

	model();
	mixed();
	snprintf(args, sizeof(args), "--model tiny --data %s", scratch_path("mixed.k3t"));
	expect_refused(args, "no vision tower, and the data have images");
	snprintf(args, sizeof(args), "--model small --vocab 128 --data %s",
		 scratch_path("mixed.k3t"));
	expect_refused(args, "patches of 14 pixels merged 2 x 2, the model takes 2 and 2 x 2");
	snprintf(args, sizeof(args), "--model %s --vision off --data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"));
	expect_refused(args, "--vision off: ");
	snprintf(args, sizeof(args), "--model %s --vision perhaps --data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"));
	expect_refused(args, "--vision perhaps: must be auto, on or off");
	snprintf(args, sizeof(args), "--model %s --max-patches 24 --data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"));
	expect_refused(args, "24");
	snprintf(args, sizeof(args), "--model %s --vision-patches 16 --data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"));
	expect_refused(args, "--vision-patches 16: the data's images need at least 24");
	snprintf(args, sizeof(args), "--model %s --tokens 8 --data %s", scratch_path("config.json"),
		 scratch_path("mixed.k3t"));
	expect_refused(args, "8");
}

/* A file with one image between text, its ids but for the placeholder's those of the model. */
static void
one_image(const char *name, uint32_t placeholder, uint32_t t, uint32_t h, uint32_t width)
{
	const struct k3_k3t_ids ids = {
		.vocab = VOCAB, .bos = BOS, .eos = EOS, .placeholder = placeholder, .pad = PAD};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &ids), K3_OK);
	put_text(w, 1, 100);
	put_image(w, 1, t, h, width, -1);
	put_text(w, 2, 20);
	cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	end(w);
}

#define TRAIN "--model %s --data %s --tokens 96 --steps 1 "

TEST(held_out_images_that_the_run_cannot_take_are_refused_before_the_first_step)
{
	static const struct {
		uint32_t placeholder, t, h, w;
		const char *more, *message;
	} bad[] = {
		{IMG, 1, 20, 20, "", "has 100 tokens, a microbatch holds 96"},
		{IMG, 1, 8, 16, "--max-patches 96", "has 128 patches, a microbatch holds 96"},
		{IMG, 1, 2, 40, "--vision-patches 64", "vision tiles of 80 patches, they have 64"},
		{IMG - 1, 1, 2, 2, "", "placeholders with id 125, the model's id is 126"},
		/* more than 64 merge rows: a band of one would be a tile more than attention takes */
		{IMG, 1, 130, 2, "--vision-patches 4 --max-patches 384",
		 "vision tiles of 8 patches, they have 4"},
	};
	char args[4096];

	model();
	one_image("good.k3t", IMG, 1, 2, 2);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		one_image("bad.k3t", bad[i].placeholder, bad[i].t, bad[i].h, bad[i].w);
		snprintf(args, sizeof(args), TRAIN "--eval-data %s %s", scratch_path("config.json"),
			 scratch_path("good.k3t"), scratch_path("bad.k3t"), bad[i].more);
		expect_refused(args, bad[i].message);
	}
	/* as training data */
	snprintf(args, sizeof(args), TRAIN "%s", scratch_path("config.json"),
		 scratch_path("bad.k3t"), bad[4].more);
	expect_refused(args, "--vision-patches 4: the data's images need at least 8");
}

TEST(frames_that_the_model_does_not_know_are_refused_before_the_first_step)
{
	char args[4096], *at;
	size_t bytes;

	model();
	one_image("frames.k3t", IMG, 3, 2, 2);
	snprintf(args, sizeof(args), TRAIN, scratch_path("config.json"),
		 scratch_path("frames.k3t"));
	struct program_result r = program_run("", "k3_train", "%s", args);
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	char *text = (char *)scratch_read("config.json", &bytes);
	at = strstr(text, "\"init_pos_emb_time\": 4");
	cr_assert_not_null(at);
	at[strlen("\"init_pos_emb_time\": ")] = '2';
	scratch_write("config.json", text, bytes);
	free(text);
	expect_refused(args, "item 0 has 3 frames, the model knows 2 at most");
}

TEST(a_run_that_needs_more_memory_than_the_machine_has_is_refused_and_not_begun)
{
	char args[4096];

	model();
	one_image("good.k3t", IMG, 1, 2, 2);
	scratch_write("eval.tsv", "kept", 4);
	snprintf(args, sizeof(args),
		 TRAIN "--vision-patches 1000000000 --eval-data %s --eval-log %s",
		 scratch_path("config.json"), scratch_path("good.k3t"), scratch_path("good.k3t"),
		 scratch_path("eval.tsv"));
	expect_refused(args, "that limit is the machine's memory; --memory GIB sets another");
	/* a refused run leaves the table of an earlier one, and no run takes its data for one */
	size_t bytes;
	char *kept = (char *)scratch_read("eval.tsv", &bytes);
	cr_assert_str_eq(kept, "kept");
	free(kept);
	snprintf(args, sizeof(args), TRAIN "--eval-data %s --eval-log %s",
		 scratch_path("config.json"), scratch_path("good.k3t"), scratch_path("good.k3t"),
		 scratch_path("good.k3t"));
	expect_refused(args, "would replace the data that are read");
	snprintf(args, sizeof(args), TRAIN, scratch_path("config.json"), scratch_path("good.k3t"));
	struct program_result r = program_run("", "k3_train", "%s", args);
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
}
