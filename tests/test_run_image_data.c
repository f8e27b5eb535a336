/* k3_train and k3_eval on data sets with images: which images a microbatch gets, limits of
 * patches, and refusals before the first step; as a user runs them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/k3t.h"
#include "../common/status.h"
#include "mm_case.h"
#include "program.h"
#include "scratch.h"

enum { BOS = 124, EOS, IMG, PAD, VOCAB }; /* ids of mm_case.c */

#define TEST(name)                                                                                 \
	Test(run_image_data, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

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

	mm_model();
	mm_mixed();
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
	expect_refused(
		args, "item 1 of document 2 of the file (both from 0) has 48 patches, a microbatch "
		      "holds 24: items are not cut");
	snprintf(args, sizeof(args), "--model %s --vision-patches 16 --data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"));
	expect_refused(args, "its images need vision tiles of 24 patches, they have 16: "
			     "--vision-patches 24 would do");
	snprintf(args, sizeof(args), "--model %s --tokens 8 --data %s", scratch_path("config.json"),
		 scratch_path("mixed.k3t"));
	expect_refused(args,
		       "item 1 of document 2 of the file (both from 0) has 12 tokens, a microbatch "
		       "holds 8: items are not cut");
}

/* Held-out data are read after some steps; what is wrong with them is said before the first. */
TEST(images_of_held_out_data_that_do_not_fit_are_refused_before_the_first_step)
{
	struct k3_k3t_writer *w;
	char args[2048];

	mm_model();
	mm_mixed();
	w = mm_begin("held.k3t");
	mm_put_text(w, 0, 5);
	mm_put_image(w, 0, 1, 2, 4, -1);
	mm_put_image(w, 1, 1, 4, 30, -1);
	mm_end(w);
	snprintf(args, sizeof(args), "--model %s --data %s --tokens 24 --eval-data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"), scratch_path("held.k3t"));
	expect_refused(args,
		       "held.k3t: item 1 of document 0 of the file (both from 0) has 30 tokens, "
		       "a microbatch holds 24");
	snprintf(args, sizeof(args),
		 "--model %s --data %s " MM_RUN " --max-patches 100 --eval-data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"), scratch_path("held.k3t"));
	expect_refused(args,
		       "held.k3t: item 1 of document 0 of the file (both from 0) has 120 patches, "
		       "a microbatch holds 100");
	snprintf(args, sizeof(args), "--model %s --data %s " MM_RUN " --eval-data %s",
		 scratch_path("config.json"), scratch_path("mixed.k3t"), scratch_path("held.k3t"));
	expect_refused(args, "held.k3t: its images need vision tiles of 60 patches, they have 24");
}

/* Together the images of 96 tokens have more patches than a microbatch may, so each of them ends
 * early; no label is lost by that. */
TEST(held_out_data_keep_the_limit_of_patches_and_all_labels)
{
	size_t bytes;

	mm_model();
	mm_mixed();
	struct program_result r = program_run(
		"", "k3_train",
		"--model %s --data %s " MM_RUN " --max-patches 48 --steps 1 --eval-data %s "
		"--eval-every 1 --eval-log %s --save %s",
		scratch_path("config.json"), scratch_path("mixed.k3t"), scratch_path("mixed.k3t"),
		scratch_path("eval.tsv"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 4096", scratch_path("ck"),
			scratch_path("mixed.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	unsigned char *log = scratch_read("eval.tsv", &bytes);
	char *cut = program_column((const char *)log, "tokens"),
	     *whole = program_column(r.out, "tokens");
	cr_assert(cut && whole && strtod(whole, NULL) > 500, "%s", r.out);
	cr_expect_str_eq(cut, whole, "%s labels in short microbatches, %s in one", cut, whole);
	free(cut);
	free(whole);
	free(log);
	program_free(&r);
}

/* Four documents of 32 tokens, each an image of its own at a place of its own. */
static void
make_equal_documents(void)
{
	struct k3_k3t_writer *w = mm_begin("four.k3t");

	for (uint64_t d = 0; d < 4; d++) {
		mm_put_text(w, d, 2 + 5 * (size_t)d);
		mm_put_image(w, d, 1, 4, 4 + 2 * (uint32_t)(d % 2), -1);
		mm_put_text(w, 10 + d, 28 - 5 * (size_t)d - (d % 2 ? 6 : 4));
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	mm_end(w);
}

/* A step sees each document once, whatever their order, and moves nothing that counts: so its loss
 * is that of the whole set.  An image in another microbatch or step would change it. */
TEST(every_microbatch_of_every_step_has_its_own_images)
{
	mm_model();
	make_equal_documents();
	struct program_result r = program_run(
		"", "k3_train",
		"--model %s --data %s --tokens 32 --accumulate 4 --steps 6 --lr 1e-12 "
		"--weight-decay 0 --balance none --save %s",
		scratch_path("config.json"), scratch_path("four.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *losses = program_all(r.out, "loss_nats"), *rest = losses, *one;
	program_free(&r);
	r = program_run("", "k3_eval", "--load %s --data %s --tokens 128", scratch_path("ck"),
			scratch_path("four.k3t"));
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	char *whole = program_column(r.out, "loss_nats");
	double want = strtod(whole, NULL);
	size_t steps = 0;
	for (; (one = strsep(&rest, " ")); steps++)
		cr_expect_float_eq(strtod(one, NULL), want, 1e-5, "step %zu: %s, not %s", steps + 1,
				   one, whole);
	cr_expect_eq(steps, 6);
	free(whole);
	free(losses);
	program_free(&r);
}

/* Seventeen tokens, 272 patches, and as many in a merge row: more than four a token, and more
 * than a tile has unless told. */
TEST(a_video_raises_limits_that_were_not_asked_for)
{
	struct k3_k3t_writer *w = mm_begin("video.k3t");

	mm_model();
	mm_put_text(w, 0, 3);
	mm_put_image(w, 0, 4, 2, 34, -1);
	mm_put_text(w, 1, 20);
	mm_end(w);
	struct program_result r = program_run(
		"", "k3_train", "--model %s --data %s --tokens 24 --steps 2 --eval-data %s",
		scratch_path("config.json"), scratch_path("video.k3t"), scratch_path("video.k3t"));
	cr_expect_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	char args[1024];
	snprintf(args, sizeof(args), "--model %s --data %s --tokens 24 --max-patches 271",
		 scratch_path("config.json"), scratch_path("video.k3t"));
	expect_refused(args, "has 272 patches, a microbatch holds 271");
	snprintf(args, sizeof(args), "--model %s --data %s --tokens 24 --vision-patches 271",
		 scratch_path("config.json"), scratch_path("video.k3t"));
	expect_refused(args, "--vision-patches 272 would do");
}

/* A file with one image between text, its ids but for the placeholder's those of the model. */
static void
one_image(const char *name, uint32_t placeholder, uint32_t t, uint32_t h, uint32_t width)
{
	const struct k3_k3t_ids ids = {
		.vocab = VOCAB, .bos = BOS, .eos = EOS, .placeholder = placeholder, .pad = PAD};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &ids), K3_OK);
	mm_put_text(w, 1, 100);
	mm_put_image(w, 1, t, h, width, -1);
	mm_put_text(w, 2, 20);
	cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	mm_end(w);
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

	mm_model();
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
	expect_refused(args, "they have 4: --vision-patches 8 would do");
}

TEST(frames_that_the_model_does_not_know_are_refused_before_the_first_step)
{
	char args[4096], *at;
	size_t bytes;

	mm_model();
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

	mm_model();
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
