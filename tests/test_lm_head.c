/* LM head with cross entropy and the sums of the loss.  The trap: a label may lie in any vocabulary
 * block and a row in any sub-tile, and ignored rows must give exact zeros whatever lies in them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/loss.h"
#include "held.h"

enum { T = 9, D = 10, V = 23 };

struct head {
	size_t t, d, v, block, n_blocks;
	float *h, *w;
	int32_t *labels;
	double hyper[K3_HYPER_LEN];
	float *tstat, *logits[V], *keep;
};

/* Outputs for all rows; rows of the k-th block of logits have its own width. */
static void
outputs(struct head *c, size_t block)
{
	c->block = block;
	c->n_blocks = (c->v + block - 1) / block;
	c->tstat = held_out(c->t * 2);
	c->keep = held_out(c->t * c->v);
	for (size_t b = 0; b < c->n_blocks; b++)
		c->logits[b] = held_out(c->t * (b + 1 < c->n_blocks ? block : c->v - b * block));
}

static size_t
cols(const struct head *c, size_t b)
{
	return b + 1 < c->n_blocks ? c->block : c->v - b * c->block;
}

static struct head
golden(size_t block)
{
	struct head c = {.t = T, .d = D, .v = V};
	double *inv_n;
	struct k3_st *st = fixture_open("blocks");

	inv_n = fixture_f64(st, "head.inv_n", NULL);
	c.hyper[K3_HYPER_INV_N] = *inv_n;
	c.h = held_input("blocks", "head.h");
	c.w = held_input("blocks", "head.w");
	c.labels = held_ints("blocks", "head.labels");
	outputs(&c, block);
	free(inv_n);
	k3_st_close(st);
	return c;
}

static struct k3_lm_head_args
push_head(struct held_task *task, const struct head *c, size_t r0, size_t rows)
{
	struct k3_lm_head_args a = {.t = c->t, .d = c->d, .r0 = r0, .rows = rows};

	a.logits = (struct k3_list){task->n, (uint32_t)c->n_blocks};
	for (size_t b = 0; b < c->n_blocks; b++)
		held_push(task, c->logits[b] + r0 * cols(c, b));
	return a;
}

static void
cross_entropy(struct head *c, size_t r0, size_t rows, int grad, int keep)
{
	struct held_task task = {{c->tstat + 2 * r0, c->h, c->labels, c->hyper}, 4};
	struct k3_lm_head_args a = push_head(&task, c, r0, rows);

	a.grad = (uint32_t)grad;
	a.keep = held_push_list(&task, keep ? c->keep + r0 * c->v : NULL);
	a.head = held_push_weight(&task, c->w, c->v, c->d, c->block, 0);
	a.n_buf = task.n;
	k3_lm_head_ce_cpu_f32(task.buf, &a);
}

/* The blocks of logits side by side. */
static float *
joined(const struct head *c)
{
	float *x = held_out(c->t * c->v);

	for (size_t b = 0; b < c->n_blocks; b++)
		for (size_t i = 0; i < c->t; i++)
			memcpy(x + i * c->v + b * c->block, c->logits[b] + i * cols(c, b),
			       cols(c, b) * sizeof(float));
	return x;
}

static void
expect_stat(const struct head *c)
{
	held_expect(held_columns(c->tstat, T, 2, 0, 1), "blocks", "head.loss", 2e-6);
	held_expect(held_columns(c->tstat, T, 2, 1, 2), "blocks", "head.hit", 0);
}

static void
is_golden(size_t block)
{
	struct head c = golden(block);

	cross_entropy(&c, 0, T, 1, 0);
	expect_stat(&c);
	held_expect(joined(&c), "blocks", "head.dlogits", 1e-5);
}

Test(lm_head, one_block_matches_the_oracle, .timeout = 60)
{
	is_golden(V);
	held_end();
}

Test(lm_head, three_blocks_match_the_oracle, .timeout = 60)
{
	is_golden(8);
	held_end();
}

Test(lm_head, a_short_last_block_matches_the_oracle, .timeout = 60)
{
	is_golden(5);
	is_golden(11);
	held_end();
}

Test(lm_head, twelve_blocks_match_the_oracle, .timeout = 60)
{
	is_golden(2);
	held_end();
}

Test(lm_head, logits_stay_when_no_gradient_is_wanted, .timeout = 60)
{
	struct head c = golden(8);

	cross_entropy(&c, 0, T, 0, 0);
	expect_stat(&c);
	held_expect(joined(&c), "blocks", "head.logits", 1e-6);
	held_end();
}

Test(lm_head, kept_logits_stand_in_vocabulary_order, .timeout = 60)
{
	struct head c = golden(5);

	cross_entropy(&c, 0, T, 1, 1);
	held_expect(c.keep, "blocks", "head.logits", 1e-6);
	held_expect(joined(&c), "blocks", "head.dlogits", 1e-5);
	held_end();
}

Test(lm_head, sub_tiles_are_parts_of_the_tile, .timeout = 60)
{
	struct head c = golden(8);

	cross_entropy(&c, 2, 5, 1, 1);
	for (size_t i = 0; i < 2 * T; i++)
		cr_assert(isnan(c.tstat[i]) == (i < 4 || i >= 14), "tstat[%zu]", i);
	cross_entropy(&c, 7, 2, 1, 1);
	cross_entropy(&c, 0, 2, 1, 1);
	expect_stat(&c);
	held_expect(c.keep, "blocks", "head.logits", 1e-6);
	held_expect(joined(&c), "blocks", "head.dlogits", 1e-5);
	held_end();
}

Test(lm_head, ignored_labels_give_exact_zeros, .timeout = 60)
{
	struct head c = golden(8);

	for (size_t i = 0; i < D; i++)
		c.h[1 * D + i] = NAN; /* row 1 has label -100, row 5 label -1 */
	cross_entropy(&c, 0, T, 1, 0);
	expect_stat(&c);
	float *dlogits = joined(&c);
	held_expect_all(dlogits + 1 * V, 0, V, "row 1");
	held_expect_all(dlogits + 5 * V, 0, V, "row 5");
	held_expect(dlogits, "blocks", "head.dlogits", 1e-5);
	held_end();
}

Test(lm_head, without_any_label_all_gradients_are_zero, .timeout = 60)
{
	struct head c = golden(8);

	for (size_t i = 0; i < T; i++)
		c.labels[i] = -100;
	c.hyper[K3_HYPER_INV_N] = 0;
	cross_entropy(&c, 0, T, 1, 0);
	held_expect_all(joined(&c), 0, T * V, "dlogits");
	held_expect_all(c.tstat, 0, 2 * T, "tstat");
	held_end();
}

/* t equal rows whose logits are the rows of w (v numbers): d = 1, h = 1. */
static struct head
plain(size_t t, size_t v, float fill)
{
	struct head c = {.t = t, .d = 1, .v = v, .hyper = {[K3_HYPER_INV_N] = 0.5}};

	c.h = held_out(t);
	c.w = held_out(v);
	c.labels = held_out_ints(t);
	for (size_t i = 0; i < t; i++) {
		c.h[i] = 1;
		c.labels[i] = (int32_t)(i % v);
	}
	for (size_t i = 0; i < v; i++)
		c.w[i] = fill;
	return c;
}

Test(lm_head, the_label_may_lie_in_any_block, .timeout = 60)
{
	for (size_t block = 1; block <= 7; block++) {
		struct head c = plain(7, 7, 3);

		outputs(&c, block);
		cross_entropy(&c, 0, 7, 1, 0);
		float *dlogits = joined(&c);
		for (size_t i = 0; i < 7; i++) {
			cr_assert_float_eq(c.tstat[2 * i], log(7), 1e-6);
			for (size_t k = 0; k < 7; k++)
				cr_assert_float_eq(dlogits[i * 7 + k], 0.5 / 7 - (i == k ? 0.5 : 0),
						   1e-7, "blocks of %zu, label %zu, column %zu: %g",
						   block, i, k, (double)dlogits[i * 7 + k]);
		}
	}
	held_end();
}

Test(lm_head, ties_count_for_the_lowest_id, .timeout = 60)
{
	for (size_t block = 2; block <= 10; block += 4) {
		struct head c = plain(10, 10, -1);

		c.w[4] = c.w[5] = c.w[9] = 2; /* blocks of 2 put all three apart */
		outputs(&c, block);
		cross_entropy(&c, 0, 10, 1, 0);
		for (size_t i = 0; i < 10; i++)
			cr_assert_eq(c.tstat[2 * i + 1], i == 4 ? 1 : 0, "blocks of %zu, label %zu",
				     block, i);
	}
	held_end();
}

Test(lm_head, huge_logits_stay_finite, .timeout = 60)
{
	struct head c = plain(3, 3, -30000);

	c.w[1] = 30000;
	outputs(&c, 2);
	cross_entropy(&c, 0, 3, 1, 0);
	float *dlogits = joined(&c), want[] = {-0.5f, 0.5f, 0, 0, 0, 0, 0, 0.5f, -0.5f};
	held_expect_same(dlogits, want, 9, "dlogits");
	cr_assert(c.tstat[0] == 60000 && c.tstat[2] == 0 && c.tstat[4] == 60000);
	held_end();
}

Test(lm_head, a_common_offset_of_all_logits_keeps_the_digits_of_the_loss, .timeout = 60)
{
	struct head c = plain(3, 3, 30000); /* floats lie 1/512 apart there */

	outputs(&c, 2);
	cross_entropy(&c, 0, 3, 0, 0);
	for (size_t i = 0; i < 3; i++)
		cr_assert_float_eq(c.tstat[2 * i], log(3), 1e-6, "loss %g",
				   (double)c.tstat[2 * i]);
	held_end();
}

Test(lm_head, a_row_that_is_not_finite_shows_in_its_loss, .timeout = 60)
{
	for (size_t at = 0; at < 3; at++) {
		struct head c = plain(2, 3, 1);

		c.w[at] = NAN;
		outputs(&c, 2);
		cross_entropy(&c, 0, 2, 1, 0);
		cr_assert(isnan(c.tstat[0]) && isnan(c.tstat[2]), "NaN in column %zu", at);
	}
	held_end();
}

static void
input_gradient(struct head *c, float *dh, size_t r0, size_t rows)
{
	struct held_task task = {{dh}, 1};
	struct k3_lm_head_args a = push_head(&task, c, r0, rows);

	a.head = held_push_weight(&task, c->w, V, D, c->block, 0);
	a.n_buf = task.n;
	k3_lm_head_dx_cpu_f32(task.buf, &a);
}

Test(lm_head, gradient_of_the_hidden_rows_matches_the_oracle, .timeout = 60)
{
	for (size_t block = 5; block <= V; block += 9) {
		struct head c = golden(block);
		float *dh = held_out(T * D);

		cross_entropy(&c, 0, T, 1, 0);
		input_gradient(&c, dh, 4, T - 4);
		cr_assert(isnan(dh[0]) && isnan(dh[4 * D - 1]), "foreign rows were written");
		input_gradient(&c, dh, 0, 4);
		held_expect(dh, "blocks", "head.dh", 1e-5);
	}
	held_end();
}

static void
weight_gradient(struct head *c, float *dw, size_t b, size_t r0, size_t rows, int accumulate)
{
	void *buf[] = {c->logits[b] + r0 * cols(c, b), c->h, dw + b * c->block * D};
	struct k3_lm_head_args a = {.n_buf = 3, .t = T, .d = D, .r0 = r0, .rows = rows};

	a.head = fixture_weight(2, cols(c, b), D, accumulate);
	k3_lm_head_dw_cpu_f32(buf, &a);
}

Test(lm_head, gradient_of_each_block_is_summed_over_sub_tiles, .timeout = 60)
{
	for (size_t block = 5; block <= V; block += 9) {
		struct head c = golden(block);
		float *dw = held_out(V * D);

		cross_entropy(&c, 0, T, 1, 0);
		for (size_t b = 0; b < c.n_blocks; b++) {
			weight_gradient(&c, dw, b, 0, 4, 0);
			weight_gradient(&c, dw, b, 4, T - 4, 1);
		}
		held_expect(dw, "blocks", "head.dw", 1e-5);
	}
	held_end();
}

/* A tile whose rows carry loss[i]; sub-tiles of `each` rows. */
static void
add_tile(double *acc, const float *tstat, const int32_t *labels, const int32_t *doc, size_t t,
	 size_t each, int accumulate)
{
	float *all = held_copy(tstat, 2 * t);
	struct held_task task = {{acc, (void *)labels, held_layout(doc, t, 0)}, 3};
	struct k3_loss_sum_args a = {.t = t, .rows_each = each, .accumulate = (uint32_t)accumulate};

	a.tstat.first = task.n;
	for (size_t r = 0; r < t; r += each, a.tstat.n++)
		held_push(&task, held_copy(all + 2 * r, 2 * (t - r < each ? t - r : each)));
	a.n_buf = task.n;
	k3_loss_sum_cpu(task.buf, &a);
}

Test(loss_sum, numerators_and_counts_are_added_not_means, .timeout = 60)
{
	double acc[K3_LOSS_LEN] = {NAN, NAN, NAN, NAN};
	float one[] = {2, 1}, nine[18];
	int32_t labels[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}, doc[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

	for (size_t i = 0; i < 9; i++) {
		nine[2 * i] = 10;
		nine[2 * i + 1] = (float)(i % 2);
	}
	add_tile(acc, one, labels, doc, 1, 1, 0);
	add_tile(acc, nine, labels, doc, 9, 4, 1);
	cr_assert_float_eq(acc[K3_LOSS_SUM] / acc[K3_LOSS_VALID], 9.2, 1e-12,
			   "the mean of means is 6");
	cr_assert(acc[K3_LOSS_SUM] == 92 && acc[K3_LOSS_VALID] == 10);
	cr_assert(acc[K3_LOSS_CORRECT] == 5 && acc[K3_LOSS_TOKENS] == 10);
	held_end();
}

Test(loss_sum, ignored_rows_count_as_tokens_and_padding_does_not, .timeout = 60)
{
	double acc[K3_LOSS_LEN] = {NAN, NAN, NAN, NAN};
	float tstat[] = {1, 1, 0, 0, 4, 0, 0, 0, 0, 0};
	int32_t labels[] = {5, -100, 6, -1, -100}, doc[] = {1, 1, 2, 2, 0};

	add_tile(acc, tstat, labels, doc, 5, 2, 0);
	cr_assert(acc[K3_LOSS_SUM] == 5 && acc[K3_LOSS_VALID] == 2);
	cr_assert(acc[K3_LOSS_CORRECT] == 1 && acc[K3_LOSS_TOKENS] == 4);
	held_end();
}

Test(loss_sum, a_tile_without_labels_contributes_nothing, .timeout = 60)
{
	double acc[K3_LOSS_LEN] = {7, 3, 2, 4};
	float tstat[] = {NAN, NAN, NAN, NAN}; /* ignored rows are not looked at */
	int32_t labels[] = {-100, -100}, doc[] = {0, 0};

	add_tile(acc, tstat, labels, doc, 2, 2, 1);
	cr_assert(acc[0] == 7 && acc[1] == 3 && acc[2] == 2 && acc[3] == 4);
	held_end();
}

Test(loss_sum, long_sums_keep_small_losses, .timeout = 60)
{
	double acc[K3_LOSS_LEN];
	float tstat[] = {0x1p24f, 0, 1, 0, 1, 0}; /* a float sum stays at 2^24 */
	int32_t labels[] = {1, 1, 1}, doc[] = {1, 1, 1};

	add_tile(acc, tstat, labels, doc, 3, 3, 0);
	cr_assert_eq(acc[K3_LOSS_SUM], 0x1p24 + 2);
	held_end();
}
