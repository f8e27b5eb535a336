/* Steps of a small model on a GPU that communicates with itself: the bits of one that does not, and
 * who ran what. */
#include <criterion/criterion.h>
#include <math.h>
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/status.h"
#include "../../drivers/images.h"
#include "../../drivers/session.h"
#include "../program.h"
#include "../scratch.h"
#include "../vision_case.h"
#include "cuda_case.h"

static void
start(void)
{
	cuda_case_need_device();
	/* the default, lws, may hang in StarPU 1.4.10 (tasks/watchdog.c) */
	setenv("STARPU_SCHED", "prio", 0);
	scratch_start();
}

#define TEST(name) Test(cuda_lane, name, .init = start, .fini = scratch_stop, .timeout = 120)

enum { TOKENS = 192, STEPS = 2, MOST_BITS = 4096 };

/* Loss, norm and fingerprint of each step, as bits. */
struct bits {
	size_t n;
	uint64_t word[MOST_BITS];
};

static void
keep_bits(struct bits *bits, struct k3_session *s, uint32_t step)
{
	const struct k3_model *m = s->model;
	double out[K3_OUT_LEN];

	cr_assert_eq(k3_store_datum_read(s->store, NULL, m->step_out[step & 1], out), K3_OK);
	cr_assert(isfinite(out[K3_OUT_LOSS_SUM]) && out[K3_OUT_NORM] > 0);
	cr_assert_leq(bits->n + 2 + m->n_hash, MOST_BITS);
	memcpy(&bits->word[bits->n++], &out[K3_OUT_LOSS_SUM], sizeof(double));
	memcpy(&bits->word[bits->n++], &out[K3_OUT_NORM], sizeof(double));
	for (uint32_t i = 0; i < m->n_hash; i++)
		cr_assert_eq(
			k3_store_datum_read(s->store, NULL, m->hash + i, &bits->word[bits->n++]),
			K3_OK);
}

static void
run_step(struct k3_session *s, uint32_t step, const int32_t *rows, const struct k3_images *images)
{
	struct k3_layout layout = {.n_tokens = TOKENS, .doc_ids = rows + 2 * TOKENS};
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_host_batch batch = {
		.ids = rows, .labels = rows + TOKENS, .item_pixels = images->pixels_of};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / TOKENS,
				      [K3_HYPER_VALID] = TOKENS,
				      [K3_HYPER_LR] = 1e-3,
				      [K3_HYPER_STEP] = step + 1};
	const struct k3_plan *plan, *optimizer;

	k3_images_place(images, &layout);
	k3_runtime_step(s->runtime, (int32_t)step + 1, 0);
	cr_assert_eq(k3_plan_cache_get(s->cache, &layout, &what, step, &plan), K3_OK);
	cr_assert_eq(k3_submit_plan(s->store, plan, &batch, hyper), K3_OK, "%s", scratch_log());
	k3_runtime_step(s->runtime, (int32_t)step + 1, -1);
	cr_assert_eq(k3_session_optimizer(s, step & 1, &optimizer), K3_OK);
	cr_assert_eq(k3_submit_plan(s->store, optimizer, NULL, NULL), K3_OK);
	k3_runtime_drain(s->runtime);
}

/* images: a text as of --images, NULL: a model without its tower. */
static void
run_images(struct bits *bits, enum k3_transport comm, enum k3_dtype dtype, const char *trace,
	   const char *text)
{
	struct k3_runtime_options runtime = {
		.device = K3_DEVICE_CUDA, .comm = comm, .trace_dir = trace};
	struct k3_images images = {.text = text};
	int32_t rows[3 * TOKENS];
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_session s;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.dtype = dtype;
	o.fingerprint = true;
	for (int i = 0; i < TOKENS; i++) {
		rows[i] = 7 * i % 120;
		rows[TOKENS + i] = 7 * (i + 1) % 120;
		rows[2 * TOKENS + i] = 1 + i / 100;
	}
	bits->n = 0;
	vision_case_config(&config);
	cr_assert_eq(k3_images_read(&images, &config), K3_OK);
	cr_assert_eq(k3_images_fill(&images, &config, 5), K3_OK);
	k3_images_apply(&images, &o);
	o.vision_patches = 16;
	cr_assert_eq(k3_session_open(&s, &config, &o, &runtime), K3_OK, "%s", scratch_log());
	cr_assert_eq(k3_session_init(&s, 3), K3_OK);
	for (uint32_t step = 0; step < STEPS; step++) {
		run_step(&s, step, rows, &images);
		keep_bits(bits, &s, step);
	}
	k3_session_close(&s);
	k3_images_fini(&images);
}

static void
run_model(struct bits *bits, enum k3_transport comm, enum k3_dtype dtype, const char *trace)
{
	run_images(bits, comm, dtype, trace, NULL);
}

static void
expect_equal(const struct bits *got, const struct bits *want, const char *what)
{
	cr_assert_eq(got->n, want->n, "%s", what);
	cr_assert_gt(want->n, 2 * STEPS, "there is a fingerprint");
	for (size_t i = 0; i < got->n; i++)
		cr_assert_eq(got->word[i], want->word[i], "%s: word %zu of %zu", what, i, got->n);
}

/* Who ran what, by the trace: communication has the lane's worker to itself. */
static void
expect_lane(const char *table)
{
	char *family = program_all(table, "family"), *worker = program_all(table, "worker");
	char *save_f = NULL, *save_w = NULL;
	size_t comm = 0, compute = 0;
	const char *w = strtok_r(worker, " ", &save_w);

	for (const char *f = strtok_r(family, " ", &save_f); f && w;
	     f = strtok_r(NULL, " ", &save_f), w = strtok_r(NULL, " ", &save_w)) {
		bool carries = strcmp(f, "comm") == 0;
		cr_assert_eq(carries, strcmp(w, "comm0") == 0, "a task of family %s on %s", f, w);
		comm += carries;
		compute += !carries;
	}
	cr_expect_gt(comm, 50);
	cr_expect_gt(compute, comm);
	free(family);
	free(worker);
}

TEST(a_rank_that_communicates_has_the_bits_of_one_that_does_not)
{
	static struct bits without, with;
	size_t n;

	run_model(&without, K3_TRANSPORT_NONE, K3_F32, NULL);
	run_model(&with, K3_TRANSPORT_NCCL, K3_F32, scratch_path("t"));
	expect_equal(&with, &without, "fp32");
	char *table = (char *)scratch_read("t/tasks.tsv", &n);
	expect_lane(table);
	free(table);
}

TEST(the_same_in_bf16)
{
	static struct bits without, with;

	run_model(&without, K3_TRANSPORT_NONE, K3_BF16, NULL);
	run_model(&with, K3_TRANSPORT_NCCL, K3_BF16, NULL);
	expect_equal(&with, &without, "bf16");
}

TEST(other_schedulers_give_the_same_bits)
{
	static const char *const sched[] = {"eager", "dmdas"};
	static struct bits first, other;

	run_model(&first, K3_TRANSPORT_NONE, K3_F32, NULL);
	for (size_t i = 0; i < sizeof(sched) / sizeof(sched[0]); i++) {
		setenv("STARPU_SCHED", sched[i], 1);
		run_model(&other, K3_TRANSPORT_NCCL, K3_F32, NULL);
		expect_equal(&other, &first, sched[i]);
	}
}

TEST(one_worker_carries_both_and_says_so)
{
	static struct bits two, one;

	run_model(&two, K3_TRANSPORT_NONE, K3_F32, NULL);
	setenv("STARPU_NWORKER_PER_CUDA", "1", 1);
	run_model(&one, K3_TRANSPORT_NCCL, K3_F32, NULL);
	cr_expect(strstr(scratch_log(), "the GPU has one worker"));
	expect_equal(&one, &two, "one worker");
}

TEST(features_and_their_gradients_travel_to_the_rank_itself)
{
	static const char images[] = "1x8x8,2x4x4,1x2x2,1x4x12";
	static struct bits without, with;

	run_images(&without, K3_TRANSPORT_NONE, K3_F32, NULL, images);
	run_images(&with, K3_TRANSPORT_NCCL, K3_F32, NULL, images);
	expect_equal(&with, &without, "fp32");
	run_images(&without, K3_TRANSPORT_NONE, K3_BF16, NULL, images);
	run_images(&with, K3_TRANSPORT_NCCL, K3_BF16, NULL, images);
	expect_equal(&with, &without, "bf16");
	run_images(&without, K3_TRANSPORT_NONE, K3_F32, NULL, "none");
	run_images(&with, K3_TRANSPORT_NCCL, K3_F32, NULL, "none");
	expect_equal(&with, &without, "without images");
}
