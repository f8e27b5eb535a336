/* LM head, cross entropy and the sums of the loss on CUDA against the CPU kernels. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/loss.h"
#include "../../common/rng.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_loss, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, vocab, block, r0, rows;
} shapes[] = {{64, 64, 512, 512, 0, 64}, {40, 48, 1000, 384, 8, 25}, {9, 33, 23, 8, 3, 6},
	      {5, 32, 77, 77, 0, 5},	 {30, 32, 4104, 1024, 7, 9}, {6, 64, 40001, 16384, 0, 6},
	      {4, 40, 80, 16, 4, 0}};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static size_t
block_cols(const struct shape *s, size_t b)
{
	size_t first = b * s->block;

	return first + s->block < s->vocab ? s->block : s->vocab - first;
}

/* One buffer per vocabulary block. */
static struct k3_list
add_logits(struct cuda_case *c, const struct shape *s, enum cuda_operand_mode mode, double scale)
{
	struct k3_list list = {(uint32_t)c->n, 0};

	for (; list.n * s->block < s->vocab; list.n++) {
		cuda_case_add(c, CUDA_T, mode, s->rows * block_cols(s, list.n), scale, "dlogits");
		/* bf16: logits are rounded before the softmax, gradients after it */
		cuda_case_tolerance(c, 1e-5, 1e-2);
	}
	return list;
}

static void
add_labels(struct cuda_case *c, const struct shape *s)
{
	int32_t *labels = malloc((s->t + 1) * sizeof(*labels));

	for (size_t i = 0; i < s->t; i++)
		labels[i] = k3_rng_bits(3, i) % 5 ? (int32_t)(k3_rng_bits(4, i) % s->vocab) : -100;
	cuda_case_values(c, CUDA_I32, CUDA_R, s->t, labels, "labels");
	free(labels);
}

static void
add_hyper(struct cuda_case *c)
{
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / 37, [K3_HYPER_VALID] = 37};

	cuda_case_values(c, CUDA_F64, CUDA_R, K3_HYPER_LEN, hyper, "hyper");
}

/* Every second row of h points to its label, by far the best: the row is correct. */
static void
plant(struct cuda_case *c, const struct shape *s, const struct k3_weight *head)
{
	float *h = c->operand[1].host;
	const int32_t *labels = c->operand[2].host;

	for (size_t i = 0; i < s->t; i += 2) {
		size_t id = labels[i] < 0 ? 0 : (size_t)labels[i];
		const float *row = (const float *)c->operand[head->first + id / s->block].host +
				   id % s->block * s->d;
		for (size_t k = 0; s->d >= 32 && k < s->d; k++)
			h[i * s->d + k] = 3 * row[k];
	}
}

static void
cross_entropy(const struct shape *s, uint64_t seed, bool grad, bool keep)
{
	struct k3_lm_head_args a = {
		.t = s->t, .d = s->d, .r0 = s->r0, .rows = s->rows, .grad = grad};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_F32, CUDA_W, s->rows * 2, 0, "tstat");
	cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "h");
	add_labels(&c, s);
	add_hyper(&c);
	a.logits = add_logits(&c, s, CUDA_W, 0);
	a.keep = cuda_case_list(&c, CUDA_T, CUDA_W, keep, s->rows * s->vocab, 0, "keep");
	a.head = cuda_case_weight(&c, CUDA_T, CUDA_R, s->vocab, s->d, s->block,
				  1 / sqrt((double)s->d), "head");
	plant(&c, s, &a.head);
	CUDA_CASE_COMPARE(&c, "lm_head_ce", &a, k3_lm_head_ce_cpu_f32, lm_head_ce, 0);
	cuda_case_end(&c);
}

TEST(cross_entropy_and_its_gradient_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++)
		cross_entropy(&shapes[i], i, true, false);
}

TEST(logits_are_left_and_copied_without_a_gradient)
{
	for (size_t i = 0; i < SHAPES; i++) {
		cross_entropy(&shapes[i], i, false, true);
		cross_entropy(&shapes[i], i, true, true);
	}
}

/* Whole numbers: every logit is exact, most rows have ties, and the lowest id must win. */
TEST(ties_go_to_the_lowest_id)
{
	const struct shape s = {120, 6, 50, 16, 0, 120};
	struct k3_lm_head_args a = {.t = s.t, .d = s.d, .rows = s.rows};
	struct cuda_case c;
	float h[120 * 6], head[50 * 6];
	int32_t labels[120];

	for (size_t i = 0; i < 120 * 6; i++)
		h[i] = (float)(int)(k3_rng_bits(11, i) % 3) - 1;
	for (size_t i = 0; i < 50 * 6; i++)
		head[i] = (float)(int)(k3_rng_bits(12, i) % 3) - 1;
	for (size_t i = 0; i < 120; i++) {
		float best = -1000;
		size_t skip = i % 3; /* the first, second or third id that has the maximum so far */
		for (size_t v = 0; v < 50; v++) {
			float sum = 0;
			for (size_t k = 0; k < 6; k++)
				sum += h[i * 6 + k] * head[v * 6 + k];
			if (sum > best || (sum == best && skip && skip--)) {
				best = sum;
				labels[i] = (int32_t)v;
			}
		}
	}
	cuda_case_begin(&c, 1);
	cuda_case_add(&c, CUDA_F32, CUDA_W, s.rows * 2, 0, "tstat");
	cuda_case_values(&c, CUDA_T, CUDA_R, 120 * 6, h, "h");
	cuda_case_values(&c, CUDA_I32, CUDA_R, 120, labels, "labels");
	add_hyper(&c);
	a.logits = add_logits(&c, &s, CUDA_W, 0);
	a.head = (struct k3_weight){
		.first = (uint32_t)c.n, .rows = 50, .cols = 6, .block_rows = 16, .n = 4};
	for (size_t v = 0; v < 50; v += 16)
		cuda_case_values(&c, CUDA_T, CUDA_R, (50 - v < 16 ? 50 - v : 16) * 6, head + v * 6,
				 "head");
	CUDA_CASE_COMPARE(&c, "lm_head_ce ties", &a, k3_lm_head_ce_cpu_f32, lm_head_ce, 0);
	cuda_case_end(&c);
}

TEST(input_gradients_equal_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_lm_head_args a = {
			.t = s->t, .d = s->d, .r0 = s->r0, .rows = s->rows, .grad = 1};
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_RW, s->t * s->d, 1, "dh");
		a.logits = add_logits(&c, s, CUDA_R, 1);
		a.head =
			cuda_case_weight(&c, CUDA_T, CUDA_R, s->vocab, s->d, s->block, 0.1, "head");
		CUDA_CASE_COMPARE(&c, "lm_head_dx", &a, k3_lm_head_dx_cpu_f32, lm_head_dx,
				  k3_lm_head_dx_cuda_scratch(&a));
		cuda_case_end(&c);
	}
}

TEST(weight_gradients_are_written_or_added)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (int adds = 0; adds < 2; adds++) {
			const struct shape *s = &shapes[i];
			size_t cols = block_cols(s, 0);
			struct k3_lm_head_args a = {
				.t = s->t, .d = s->d, .r0 = s->r0, .rows = s->rows, .grad = 1};
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_R, s->rows * cols, 1, "dlogits");
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "h");
			a.head = cuda_case_weight(&c, CUDA_F32, adds ? CUDA_RW : CUDA_W, cols, s->d,
						  cols, 1, "dhead");
			CUDA_CASE_COMPARE(&c, "lm_head_dw", &a, k3_lm_head_dw_cpu_f32, lm_head_dw,
					  0);
			cuda_case_end(&c);
		}
}

TEST(losses_are_summed)
{
	static const size_t sizes[][2] = {{0, 4}, {1, 1}, {37, 8}, {64, 64}, {2500, 40}};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (uint32_t adds = 0; adds < 2; adds++) {
			size_t t = sizes[i][0], each = sizes[i][1];
			struct k3_loss_sum_args a = {.t = t, .rows_each = each, .accumulate = adds};
			const struct shape s = {.t = t, .vocab = 50};
			double acc[K3_LOSS_LEN] = {1.5, 2, 3, 4};
			int32_t *layout = calloc(k3_tile_layout_len(t), sizeof(*layout));
			struct cuda_case c;
			layout[K3_TL_ROWS] = (int32_t)t;
			for (size_t k = 0; k < t; k++)
				layout[K3_TL_HEAD + k] = (int32_t)(k3_rng_bits(5, k) % 3);
			cuda_case_begin(&c, i);
			cuda_case_values(&c, CUDA_F64, adds ? CUDA_RW : CUDA_W, K3_LOSS_LEN, acc,
					 "acc");
			add_labels(&c, &s);
			cuda_case_values(&c, CUDA_I32, CUDA_R, k3_tile_layout_len(t), layout,
					 "layout");
			a.tstat = (struct k3_list){(uint32_t)c.n, 0};
			for (size_t k = 0; k < t; k += each, a.tstat.n++)
				cuda_case_add(&c, CUDA_F32, CUDA_R,
					      2 * (t - k < each ? t - k : each), 3, "tstat");
			CUDA_CASE_COMPARE(&c, "loss_sum", &a, k3_loss_sum_cpu, loss_sum, 0);
			cuda_case_end(&c);
			free(layout);
		}
}
