/* k3_train and k3_eval on data sets with images: which images a microbatch gets, limits of
 * patches, and refusals before the first step; as a user runs them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "mm_case.h"
#include "program.h"
#include "scratch.h"

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
	expect_refused(args, "--vision-patches 16: the data's images need vision tiles of 24");
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
	expect_refused(args, "the data's images need vision tiles of 272");
}
