/* The core of latent attention against the oracle over tiles, ranges, head groups and documents.
 * Head widths are odd; rows without a document must neither see nor be seen. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/mla.h"
#include "held.h"

/* Attention of t rows and what its backward pass needs. */
struct attn {
	size_t t;
	uint32_t h;
	size_t nope, rope, v;
	float scale;
	const int32_t *doc;
	float *q, *kv, *da, *lse, *delta;
};

/* Where the rows are cut: tile i is cut[i] .. cut[i+1]-1. */
struct cuts {
	size_t n, cut[8];
};

static const struct cuts whole = {1, {0, 100}}, uneven = {3, {0, 33, 70, 100}};

static size_t
key_width(const struct attn *d)
{
	return d->h * (d->nope + d->v) + d->rope;
}

static struct attn
golden(void)
{
	struct attn d = {.t = 100, .h = 3, .nope = 5, .rope = 3, .v = 7, .scale = sqrtf(1.0f / 8)};

	d.doc = held_ints("mla", "attn.doc");
	d.q = held_input("mla", "attn.q");
	d.kv = held_input("mla", "attn.kv");
	d.da = held_input("mla", "attn.da");
	d.lse = held_input("mla", "attn.lse");
	d.delta = held_input("mla", "attn.delta");
	return d;
}

static struct k3_mla_attn_args
args_of(const struct attn *d, size_t t, uint32_t h0, uint32_t h1)
{
	struct k3_mla_attn_args a = {.t = t,
				     .h = d->h,
				     .nope = d->nope,
				     .rope = d->rope,
				     .v = d->v,
				     .h0 = h0,
				     .h1 = h1,
				     .scale = d->scale};

	return a;
}

/* Output and log-sum-exp of one query tile; the key tiles come in ranges of per_call. */
static void
forward(const struct attn *d, size_t q0, size_t q1, const struct cuts *keys, size_t per_call,
	uint32_t h0, uint32_t h1, float *o, float *lse)
{
	size_t kq = d->nope + d->rope, most = 0;
	int32_t *qlayout = held_layout(d->doc + q0, q1 - q0, q0), *klayout[8];

	for (size_t j = 0; j < keys->n; j++) {
		size_t rows = keys->cut[j + 1] - keys->cut[j];
		klayout[j] = held_layout(d->doc + keys->cut[j], rows, keys->cut[j]);
		most = rows > most ? rows : most;
	}
	float *work = held_out(k3_mla_attn_fwd_work_floats(most, d->nope, d->rope, d->v));
	for (size_t from = 0; from < keys->n; from += per_call) {
		struct k3_mla_attn_args a = args_of(d, q1 - q0, h0, h1);
		uint32_t n = (uint32_t)(keys->n - from < per_call ? keys->n - from : per_call);
		struct held_task task = {{o, lse, d->q + q0 * d->h * kq, qlayout, work}, 5};

		a.first = from == 0;
		a.tk_max = most;
		a.kv = (struct k3_list){task.n, n};
		for (size_t j = from; j < from + n; j++)
			held_push(&task, d->kv + keys->cut[j] * key_width(d));
		a.klayout = (struct k3_list){task.n, n};
		for (size_t j = from; j < from + n; j++)
			held_push(&task, klayout[j]);
		a.n_buf = task.n;
		k3_mla_attn_fwd_cpu_f32(task.buf, &a);
	}
}

/* Gradients of one (query tile, key tile) pair; init says whether each is written or added to. */
static void
backward(const struct attn *d, size_t q0, size_t q1, size_t k0, size_t k1, uint32_t h0, uint32_t h1,
	 int init_dq, int init_dkv, float *dq, float *dkv)
{
	struct k3_mla_attn_args a = args_of(d, q1 - q0, h0, h1);
	size_t t = q1 - q0, kq = d->nope + d->rope, h = d->h;
	struct held_task task = {{dq, dkv, d->q + q0 * h * kq, d->kv + k0 * key_width(d)}, 4};

	a.tk_max = k1 - k0;
	a.init_dq = (uint32_t)init_dq;
	a.init_dkv = (uint32_t)init_dkv;
	held_push(&task, held_columns(d->da + q0 * h * d->v, t, h * d->v, h0 * d->v, h1 * d->v));
	held_push(&task, held_columns(d->lse + q0 * h, t, h, h0, h1));
	held_push(&task, held_columns(d->delta + q0 * h, t, h, h0, h1));
	held_push(&task, held_layout(d->doc + q0, t, q0));
	held_push(&task, held_layout(d->doc + k0, k1 - k0, k0));
	held_push(&task, held_out(k3_mla_attn_bwd_work_floats(k1 - k0, d->nope, d->rope, d->v)));
	a.n_buf = task.n;
	k3_mla_attn_bwd_cpu_f32(task.buf, &a);
}

/* Every query tile against every key tile of the same cuts, all heads. */
static void
backward_pairs(const struct attn *d, const struct cuts *tiles, float *dq, float *dkv)
{
	size_t kq = d->h * (d->nope + d->rope);

	for (size_t i = 0; i < tiles->n; i++)
		for (size_t j = 0; j <= i; j++)
			backward(d, tiles->cut[i], tiles->cut[i + 1], tiles->cut[j],
				 tiles->cut[j + 1], 0, d->h, j == 0, i == j,
				 dq + tiles->cut[i] * kq, dkv + tiles->cut[j] * key_width(d));
}

/* Rows r0 .. r1-1, columns c0 .. c1-1 of a tensor of the dump. */
static void
expect_part(const float *got, const char *tensor, size_t width, size_t r0, size_t r1, size_t c0,
	    size_t c1, double tol)
{
	const float *all = held_input("mla", tensor);

	held_expect_close(got, held_columns(all + r0 * width, r1 - r0, width, c0, c1),
			  (r1 - r0) * (c1 - c0), tol, tensor);
}

/* Log-sum-exp is -inf in rows without a document, else close. */
static void
expect_lse(const struct attn *d, const float *lse, size_t q0, size_t q1)
{
	for (size_t i = 0; i < (q1 - q0) * d->h; i++) {
		float want = d->lse[q0 * d->h + i];
		cr_assert(isinf(want) ? lse[i] == want : fabsf(lse[i] - want) < 2e-6f,
			  "lse[%zu] is %g, expected %g", i, (double)lse[i], (double)want);
	}
}

static void
expect_forward(size_t q0, size_t q1, const struct cuts *keys, size_t per_call)
{
	struct attn d = golden();
	float *o = held_out((q1 - q0) * 21), *lse = held_out((q1 - q0) * 3);

	forward(&d, q0, q1, keys, per_call, 0, 3, o, lse);
	expect_part(o, "attn.o", 21, q0, q1, 0, 21, 1e-6);
	expect_lse(&d, lse, q0, q1);
}

Test(mla_attn, one_key_tile_matches_the_oracle, .timeout = 60)
{
	expect_forward(0, 100, &whole, 1);
	held_end();
}

Test(mla_attn, a_list_of_key_tiles_matches_the_oracle, .timeout = 60)
{
	expect_forward(0, 100, &uneven, 3);
	held_end();
}

Test(mla_attn, ranges_of_key_tiles_are_merged, .timeout = 60)
{
	expect_forward(0, 100, &uneven, 1);
	expect_forward(0, 100, &uneven, 2);
	held_end();
}

Test(mla_attn, a_later_query_tile_knows_its_global_row, .timeout = 60)
{
	expect_forward(33, 100, &uneven, 2);
	expect_forward(70, 100, &uneven, 1);
	held_end();
}

Test(mla_attn, key_tiles_in_the_future_are_not_seen, .timeout = 60)
{
	expect_forward(0, 33, &uneven, 1);
	expect_forward(33, 70, &uneven, 3);
	held_end();
}

Test(mla_attn, tiles_of_one_row_match_the_oracle, .timeout = 60)
{
	static const struct cuts thin = {5, {28, 29, 30, 31, 32, 33}};

	expect_forward(30, 31, &thin, 1);
	static const struct cuts own = {2, {31, 32, 33}};
	expect_forward(32, 33, &own, 1);
	held_end();
}

Test(mla_attn, head_groups_read_their_own_columns, .timeout = 60)
{
	struct attn d = golden();
	uint32_t edge[] = {0, 2, 3};

	for (size_t g = 0; g < 2; g++) {
		uint32_t h0 = edge[g], h1 = edge[g + 1];
		float *o = held_out(100 * (h1 - h0) * d.v), *lse = held_out(100 * (h1 - h0));
		forward(&d, 0, 100, &uneven, 2, h0, h1, o, lse);
		expect_part(o, "attn.o", 21, 0, 100, h0 * d.v, h1 * d.v, 1e-6);
		for (size_t i = 82; i < 94; i++)
			cr_assert(fabsf(lse[i * (h1 - h0)] - d.lse[i * 3 + h0]) < 2e-6f);
	}
	held_end();
}

Test(mla_attn, padding_and_holes_give_zero_and_minus_infinity, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(2100), *lse = held_out(300);
	static const size_t empty[] = {7, 8, 40, 72, 94, 99};

	forward(&d, 0, 100, &uneven, 1, 0, 3, o, lse);
	for (size_t i = 0; i < sizeof(empty) / sizeof(*empty); i++) {
		held_expect_all(o + empty[i] * 21, 0, 21, "output of a row without a key");
		held_expect_all(lse + empty[i] * 3, -INFINITY, 3, "its log-sum-exp");
	}
	held_end();
}

/* Rows without a document get numbers whose products overflow. */
static void
spoil_padding(struct attn *d)
{
	size_t q = d->h * (d->nope + d->rope), kv = key_width(d), v = d->h * d->v;

	d->q = held_copy(d->q, d->t * q);
	d->kv = held_copy(d->kv, d->t * kv);
	d->da = held_copy(d->da, d->t * v);
	for (size_t i = 0; i < d->t; i++) {
		for (size_t c = 0; c < q && !d->doc[i]; c++)
			d->q[i * q + c] = 1e30f;
		for (size_t c = 0; c < kv && !d->doc[i]; c++)
			d->kv[i * kv + c] = -1e30f;
		for (size_t c = 0; c < v && !d->doc[i]; c++)
			d->da[i * v + c] = 1e30f;
	}
}

Test(mla_attn, what_padding_holds_does_not_change_a_bit_of_other_rows, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(2100), *lse = held_out(300), *o2 = held_out(2100),
	      *lse2 = held_out(300);

	forward(&d, 0, 100, &uneven, 2, 0, 3, o, lse);
	spoil_padding(&d);
	forward(&d, 0, 100, &uneven, 2, 0, 3, o2, lse2);
	held_expect_same(o2, o, 2100, "output");
	held_expect_same(lse2, lse, 300, "log-sum-exp");
	held_end();
}

Test(mla_attn, a_tile_of_padding_alone_gives_zeros, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(6 * 21), *lse = held_out(18), *dq = held_out(6 * 24),
	      *dkv = held_out(100 * 39);

	spoil_padding(&d);
	forward(&d, 94, 100, &whole, 1, 0, 3, o, lse);
	held_expect_all(o, 0, 6 * 21, "output");
	held_expect_all(lse, -INFINITY, 18, "log-sum-exp");
	backward(&d, 94, 100, 0, 100, 0, 3, 1, 1, dq, dkv);
	held_expect_all(dq, 0, 6 * 24, "dq");
	held_expect_all(dkv, 0, 100 * 39, "dkv");
	held_end();
}

Test(mla_attn, a_document_does_not_see_the_one_before, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(2100), *lse = held_out(300), *o2 = held_out(2100),
	      *lse2 = held_out(300);

	forward(&d, 0, 100, &uneven, 1, 0, 3, o, lse);
	d.kv = held_copy(d.kv, 3900);
	d.kv[29 * 39 + 1] += 1;
	d.kv[29 * 39 + 6] += 1;
	forward(&d, 0, 100, &uneven, 1, 0, 3, o2, lse2);
	held_expect_same(o2, o, 29 * 21, "rows before the changed one");
	held_expect_same(o2 + 30 * 21, o + 30 * 21, 70 * 21, "the next documents");
	cr_assert(o2[29 * 21 + 1] != o[29 * 21 + 1], "the changed row must see itself");
	held_end();
}

Test(mla_attn, a_token_is_not_seen_by_rows_before_it, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(2100), *lse = held_out(300), *o2 = held_out(2100),
	      *lse2 = held_out(300);

	forward(&d, 0, 100, &whole, 1, 0, 3, o, lse);
	d.kv = held_copy(d.kv, 3900);
	for (size_t c = 0; c < 39; c++)
		d.kv[50 * 39 + c] += 1;
	forward(&d, 0, 100, &whole, 1, 0, 3, o2, lse2);
	held_expect_same(o2, o, 50 * 21, "earlier rows");
	for (size_t i = 50; i < 82; i++)
		cr_assert(i == 72 || o2[i * 21] != o[i * 21], "row %zu must see row 50", i);
	held_end();
}

Test(mla_attn, a_range_without_a_visible_key_changes_nothing, .timeout = 60)
{
	struct attn d = golden();
	static const struct cuts own = {2, {82, 94, 100}}, before = {3, {0, 31, 82, 94}};
	float *o = held_out(12 * 21), *lse = held_out(36), *o2 = held_out(12 * 21),
	      *lse2 = held_out(36);

	forward(&d, 82, 94, &own, 1, 0, 3, o, lse);
	forward(&d, 82, 94, &before, 1, 0, 3, o2, lse2);
	held_expect_same(o2, o, 12 * 21, "output after ranges of other documents");
	held_expect_same(lse2, lse, 36, "log-sum-exp");
	held_end();
}

Test(mla_attn, an_empty_first_range_is_a_defined_start, .timeout = 60)
{
	struct attn d = golden();
	float *o = held_out(2100), *lse = held_out(300);
	struct k3_mla_attn_args a = args_of(&d, 100, 0, 3);
	void *buf[] = {o, lse, d.q, held_layout(d.doc, 100, 0), held_out(0)};

	a.first = 1;
	k3_mla_attn_fwd_cpu_f32(buf, &a);
	held_expect_all(o, 0, 2100, "output");
	held_expect_all(lse, -INFINITY, 300, "log-sum-exp");
	held_end();
}

/* One head with nope = rope = v = 1, and queries (1, 1): the score is the sum of a key's two parts.
 */
static struct attn
scalar(size_t t, const int32_t *doc, float *kv)
{
	struct attn d = {
		.t = t, .h = 1, .nope = 1, .rope = 1, .v = 1, .scale = 1, .doc = doc, .kv = kv};

	d.q = held_random(1, 2 * t, 1, 1);
	d.da = held_random(1, t, 1, 1);
	d.lse = held_out(t);
	d.delta = held_out(t);
	return d;
}

Test(mla_attn, equal_scores_give_the_running_mean, .timeout = 60)
{
	static const int32_t doc[] = {1, 1, 1, 1, 2, 2};
	float kv[] = {2, 1, 1, 2, 2, 1, 1, 3, 2, 0, 4, 3, 2, 7, 1, 1, 9, 2};
	static const float mean[] = {1, 1.5f, 2, 2.5f, 7, 8}, keys[] = {1, 2, 3, 4, 1, 2};
	struct attn d = scalar(6, doc, kv);
	struct cuts pairs = {3, {0, 2, 4, 6}};

	for (size_t per_call = 1; per_call <= 3; per_call++) {
		float *o = held_out(6), *lse = held_out(6);
		forward(&d, 0, 6, &pairs, per_call, 0, 1, o, lse);
		for (size_t i = 0; i < 6; i++)
			cr_assert(fabsf(o[i] - mean[i]) < 1e-6f &&
					  fabsf(lse[i] - 3 - logf(keys[i])) < 1e-6f,
				  "row %zu: mean %g, log-sum-exp %g", i, (double)o[i],
				  (double)lse[i]);
	}
	held_end();
}

Test(mla_attn, logits_of_30000_do_not_overflow, .timeout = 60)
{
	static const int32_t doc[] = {1, 1, 1, 1};
	float kv[] = {-30000, 1, 0, 30000, 2, 0, 30000, 4, 0, -30000, 8, 0};
	static const float o_want[] = {1, 2, 3, 3}, dv_want[] = {1, 2, 1, 0};
	struct attn d = scalar(4, doc, kv);
	struct cuts one = {1, {0, 4}}, each = {4, {0, 1, 2, 3, 4}};
	float *dq = held_out(8), *dkv = held_out(12);

	for (size_t merged = 0; merged < 2; merged++) {
		forward(&d, 0, 4, merged ? &each : &one, 1, 0, 1, d.delta, d.lse);
		for (size_t i = 0; i < 4; i++)
			cr_assert(fabsf(d.delta[i] - o_want[i]) < 1e-6f &&
					  fabsf(d.lse[i]) >= 30000 && fabsf(d.lse[i]) < 30001,
				  "row %zu: %g, log-sum-exp %g", i, (double)d.delta[i],
				  (double)d.lse[i]);
	}
	/* da = 1, so that delta is the output; a log-sum-exp of 30000 is exact to 2^-10 */
	backward(&d, 0, 4, 0, 4, 0, 1, 1, 1, dq, dkv);
	for (size_t i = 0; i < 8; i++)
		cr_assert(isfinite(dq[i]), "dq[%zu] is %g", i, (double)dq[i]);
	for (size_t i = 0; i < 4; i++)
		cr_assert(isfinite(dkv[3 * i]) && isfinite(dkv[3 * i + 2]) &&
				  fabsf(dkv[3 * i + 1] - dv_want[i]) < 2e-3f,
			  "row %zu: dk %g, dv %g", i, (double)dkv[3 * i], (double)dkv[3 * i + 1]);
	held_end();
}

Test(mla_attn, gradients_of_one_pair_match_the_oracle, .timeout = 60)
{
	struct attn d = golden();
	float *dq = held_out(2400), *dkv = held_out(3900);

	backward(&d, 0, 100, 0, 100, 0, 3, 1, 1, dq, dkv);
	held_expect(dq, "mla", "attn.dq", 2e-6);
	held_expect(dkv, "mla", "attn.dkv", 2e-6);
	held_end();
}

Test(mla_attn, gradients_of_all_pairs_add_up_to_the_oracle, .timeout = 60)
{
	struct attn d = golden();
	float *dq = held_out(2400), *dkv = held_out(3900);

	backward_pairs(&d, &uneven, dq, dkv);
	held_expect(dq, "mla", "attn.dq", 2e-6);
	held_expect(dkv, "mla", "attn.dkv", 2e-6);
	held_end();
}

Test(mla_attn, a_pair_in_the_future_adds_exact_zeros, .timeout = 60)
{
	struct attn d = golden();
	float *dq = held_out(33 * 24), *dkv = held_out(30 * 39);

	backward(&d, 0, 33, 70, 100, 0, 3, 1, 1, dq, dkv);
	held_expect_all(dq, 0, 33 * 24, "dq");
	held_expect_all(dkv, 0, 30 * 39, "dkv");
	held_end();
}

Test(mla_attn, gradients_of_head_groups_share_the_common_key_part, .timeout = 60)
{
	struct attn d = golden();
	uint32_t edge[] = {0, 2, 3};
	float *shared = held_random(1, 300, 0, 0);

	for (size_t g = 0; g < 2; g++) {
		uint32_t h0 = edge[g], h1 = edge[g + 1];
		size_t wide = (h1 - h0) * 12, ld = wide + 3;
		float *dq = held_out(100 * (h1 - h0) * 8), *dkv = held_out(100 * ld);
		backward(&d, 0, 100, 0, 100, h0, h1, 1, 1, dq, dkv);
		expect_part(dq, "attn.dq", 24, 0, 100, h0 * 8, h1 * 8, 2e-6);
		expect_part(held_columns(dkv, 100, ld, 0, wide), "attn.dkv", 39, 0, 100, h0 * 12,
			    h1 * 12, 2e-6);
		for (size_t i = 0; i < 300; i++)
			shared[i] += dkv[i / 3 * ld + wide + i % 3];
	}
	expect_part(shared, "attn.dkv", 39, 0, 100, 36, 39, 2e-6);
	held_end();
}

Test(mla_attn, gradients_of_padding_are_zero_and_reach_nobody, .timeout = 60)
{
	struct attn d = golden();
	float *dq = held_out(2400), *dkv = held_out(3900), *dq2 = held_out(2400),
	      *dkv2 = held_out(3900);

	backward_pairs(&d, &uneven, dq, dkv);
	spoil_padding(&d);
	backward_pairs(&d, &uneven, dq2, dkv2);
	held_expect_same(dq2, dq, 2400, "dq");
	held_expect_same(dkv2, dkv, 3900, "dkv");
	for (size_t i = 0; i < 100; i++) {
		if (d.doc[i])
			continue;
		held_expect_all(dq2 + i * 24, 0, 24, "dq of padding");
		held_expect_all(dkv2 + i * 39, 0, 39, "dkv of padding");
	}
	held_end();
}

Test(mla_attn, a_later_pair_adds_to_its_gradients, .timeout = 60)
{
	struct attn d = golden();
	float *dq = held_out(2400), *dkv = held_out(3900);

	backward(&d, 0, 100, 0, 100, 0, 3, 1, 1, dq, dkv);
	backward(&d, 0, 100, 0, 100, 0, 3, 0, 0, dq, dkv);
	for (size_t i = 0; i < 2400; i++)
		dq[i] /= 2;
	for (size_t i = 0; i < 3900; i++)
		dkv[i] /= 2;
	held_expect(dq, "mla", "attn.dq", 2e-6);
	held_expect(dkv, "mla", "attn.dkv", 2e-6);
	held_end();
}

Test(mla_attn, a_nan_is_handed_on_and_not_taken_for_padding, .timeout = 60)
{
	struct cuts each = {2, {0, 50, 100}};
	float *o = held_out(2100), *lse = held_out(300), *o2 = held_out(2100),
	      *lse2 = held_out(300);
	struct attn d = golden();

	forward(&d, 0, 100, &each, 1, 0, 3, o, lse);
	d.q = held_copy(d.q, 2400);
	d.q[60 * 24] = NAN;
	forward(&d, 0, 100, &each, 1, 0, 3, o2, lse2);
	cr_assert(isnan(o2[60 * 21]) && isnan(lse2[60 * 3]), "row 60 gives %g, log-sum-exp %g",
		  (double)o2[60 * 21], (double)lse2[60 * 3]);
	held_expect_same(o2, o, 60 * 21, "rows before it");
	held_expect_same(o2 + 61 * 21, o + 61 * 21, 39 * 21, "rows behind it");
	held_end();
}
