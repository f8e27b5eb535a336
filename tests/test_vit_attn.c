/* Attention of the vision tower against the oracle: items side by side in a tile and spread over
 * tiles, at every register width.  A head is 36 wide, one panel and a piece; the long item has more
 * patches than a block of keys or queries. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "vit_attn_case.h"

static struct vit_attn
mixed(void)
{
	return vit_attn_golden("attn", vit_items, VIT_PATCHES, 2, 36);
}

static const struct vit_grid long_item[] = {{1, 18, 18}};
static const struct vit_cut long_cuts[] = {
	{1, {{{0, 0, 18}}}},
	{3, {{{0, 0, 8}}, {{0, 8, 2}}, {{0, 10, 8}}}},
};

static struct vit_attn
longer(void)
{
	return vit_attn_golden("long", long_item, 324, 1, 4);
}

static size_t
tiles_of(struct vit_tile tile[VIT_TILES], const struct vit_attn *d, const struct vit_cut *cut)
{
	for (size_t i = 0; i < cut->n_tiles; i++)
		tile[i] = vit_tile(d->items, cut->band[i]);
	return cut->n_tiles;
}

static void
expect(const struct vit_attn *d, const char *name, const float *got, double tol)
{
	char tensor[32];

	snprintf(tensor, sizeof(tensor), "%s.%s", d->dump, name);
	held_expect(got, "vit_block", tensor, tol);
}

static void
expect_forward(struct vit_attn (*make)(void), const struct vit_cut *cut)
{
	const struct k3i_vit_attn *table[3];

	for (size_t k = 0; k < vit_attn_widths(table); k++) {
		struct vit_attn d = make();
		struct vit_tile tile[VIT_TILES];
		size_t n = tiles_of(tile, &d, cut), dq = d.h * d.hd;
		float *o = held_out(d.n * dq), *lse = held_out(d.n * d.h);

		for (size_t i = 0; i < n; i++) {
			size_t first = i, last = i;
			float *to = held_out(tile[i].n * dq), *l = held_out(tile[i].n * d.h);

			while (first > 0 && vit_meet(&tile[first - 1], &tile[i]))
				first--;
			while (last + 1 < n && vit_meet(&tile[last + 1], &tile[i]))
				last++;
			vit_attn_forward(table[k], &d, &tile[i], &tile[first], last - first + 1, to,
					 l);
			vit_scatter(&tile[i], o, to, dq);
			vit_scatter(&tile[i], lse, l, d.h);
		}
		expect(&d, "o", o, 1e-6);
		expect(&d, "lse", lse, 1e-6);
		held_end();
	}
}

/* All pairs of tiles that share an item, keys descending as in a plan. */
static void
expect_backward(struct vit_attn (*make)(void), const struct vit_cut *cut)
{
	const struct k3i_vit_attn *table[3];

	for (size_t k = 0; k < vit_attn_widths(table); k++) {
		struct vit_attn d = make();
		struct vit_tile tile[VIT_TILES];
		size_t n = tiles_of(tile, &d, cut), dq = d.h * d.hd;
		float *gq[VIT_TILES], *gkv[VIT_TILES], *all = held_out(d.n * dq),
						       *all_kv = held_out(d.n * 2 * dq);
		int met_q[VIT_TILES] = {0}, met_k[VIT_TILES] = {0};

		for (size_t i = 0; i < n; i++) {
			gq[i] = held_out(tile[i].n * dq);
			gkv[i] = held_out(tile[i].n * 2 * dq);
		}
		for (size_t i = n; i-- > 0;)
			for (size_t j = n; j-- > 0;)
				if (vit_meet(&tile[i], &tile[j]))
					vit_attn_backward(table[k], &d, &tile[i], &tile[j],
							  !met_q[i]++, !met_k[j]++, gq[i], gkv[j]);
		for (size_t i = 0; i < n; i++) {
			vit_scatter(&tile[i], all, gq[i], dq);
			vit_scatter(&tile[i], all_kv, gkv[i], 2 * dq);
		}
		expect(&d, "dq", all, 1e-6);
		expect(&d, "dkv", all_kv, 1e-6);
		held_end();
	}
}

Test(vit_attn, items_of_one_tile_match_the_oracle, .timeout = 60)
{
	expect_forward(mixed, &vit_cuts[0]);
	expect_backward(mixed, &vit_cuts[0]);
}

Test(vit_attn, an_item_in_two_tiles_matches_the_oracle, .timeout = 60)
{
	expect_forward(mixed, &vit_cuts[1]);
	expect_backward(mixed, &vit_cuts[1]);
}

Test(vit_attn, items_in_two_and_three_tiles_match_the_oracle, .timeout = 60)
{
	expect_forward(mixed, &vit_cuts[2]);
	expect_backward(mixed, &vit_cuts[2]);
}

Test(vit_attn, an_item_of_several_blocks_matches_the_oracle, .timeout = 60)
{
	expect_forward(longer, &long_cuts[0]);
	expect_backward(longer, &long_cuts[0]);
}

Test(vit_attn, a_long_item_in_three_tiles_matches_the_oracle, .timeout = 60)
{
	expect_forward(longer, &long_cuts[1]);
	expect_backward(longer, &long_cuts[1]);
}

Test(vit_attn, two_bands_of_an_item_in_one_tile_match_the_oracle, .timeout = 60)
{
	static const struct vit_cut halves = {1, {{{0, 0, 4}, {0, 4, 14}}}};

	expect_forward(longer, &halves);
	expect_backward(longer, &halves);
}

Test(vit_attn, gradients_are_added_when_told, .timeout = 60)
{
	const struct k3i_vit_attn *table[3];
	size_t n = vit_attn_widths(table);
	struct vit_attn d = mixed();
	struct vit_tile tile = vit_tile(d.items, vit_cuts[0].band[0]);
	float *dq = held_out(d.n * 72), *dkv = held_out(d.n * 144), *more_dq = held_out(d.n * 72),
	      *more_dkv = held_out(d.n * 144);

	for (size_t i = 0; i < d.n * 144; i++)
		more_dkv[i] = more_dq[i / 2] = 3;
	vit_attn_backward(table[n - 1], &d, &tile, &tile, 1, 1, dq, dkv);
	vit_attn_backward(table[n - 1], &d, &tile, &tile, 0, 0, more_dq, more_dkv);
	for (size_t i = 0; i < d.n * 144; i++) {
		cr_assert(fabsf(more_dkv[i] - 3 - dkv[i]) < 2e-6f, "dkv[%zu] is %g, expected %g", i,
			  (double)more_dkv[i], (double)dkv[i] + 3);
		cr_assert(fabsf(more_dq[i / 2] - 3 - dq[i / 2]) < 2e-6f,
			  "dq[%zu] is %g, expected %g", i / 2, (double)more_dq[i / 2],
			  (double)dq[i / 2] + 3);
	}
	held_end();
}

/* Queries of items 0 and 1, keys of items 1 and 2. */
Test(vit_attn, patches_without_a_partner_get_zeros_or_keep_what_they_had, .timeout = 60)
{
	static const struct vit_band first[VIT_PARTS] = {{0, 0, 4}, {1, 0, 2}},
				     second[VIT_PARTS] = {{1, 2, 4}, {2, 0, 2}};
	const struct k3i_vit_attn *table[3];
	size_t n = vit_attn_widths(table);

	for (size_t k = 0; k < n; k++) {
		struct vit_attn d = mixed();
		struct vit_tile q = vit_tile(d.items, first), keys = vit_tile(d.items, second);
		float *dq = held_out(q.n * 72), *dkv = held_out(keys.n * 144);

		vit_attn_backward(table[k], &d, &q, &keys, 1, 1, dq, dkv);
		held_expect_all(dq, 0, 24 * 72, "dq of the first item");
		held_expect_all(dkv + 16 * 144, 0, 4 * 144, "dkv of the last item");
		cr_assert(dq[24 * 72] != 0 && dkv[0] != 0, "the second item meets itself");
		for (size_t i = 0; i < q.n * 72; i++)
			dq[i] = 5;
		for (size_t i = 0; i < keys.n * 144; i++)
			dkv[i] = 7;
		vit_attn_backward(table[k], &d, &q, &keys, 0, 0, dq, dkv);
		held_expect_all(dq, 5, 24 * 72, "dq of the first item");
		held_expect_all(dkv + 16 * 144, 7, 4 * 144, "dkv of the last item");
		held_end();
	}
}

Test(vit_attn, an_item_does_not_see_its_neighbours, .timeout = 60)
{
	struct vit_attn d = mixed();
	struct vit_tile tile = vit_tile(d.items, vit_cuts[0].band[0]);
	float *o = held_out(52 * 72), *lse = held_out(104), *dq = held_out(52 * 72),
	      *dkv = held_out(52 * 144), *o2 = held_out(52 * 72), *lse2 = held_out(104),
	      *dq2 = held_out(52 * 72), *dkv2 = held_out(52 * 144);
	const struct k3i_vit_attn *table[3];
	size_t n = vit_attn_widths(table);

	vit_attn_forward(table[n - 1], &d, &tile, &tile, 1, o, lse);
	vit_attn_backward(table[n - 1], &d, &tile, &tile, 1, 1, dq, dkv);
	d.qkv = held_copy(d.qkv, 52 * 216);
	d.dout = held_copy(d.dout, 52 * 72);
	for (size_t i = 24 * 216; i < 48 * 216; i++)
		d.qkv[i] = d.dout[i / 3] = NAN;
	vit_attn_forward(table[n - 1], &d, &tile, &tile, 1, o2, lse2);
	vit_attn_backward(table[n - 1], &d, &tile, &tile, 1, 1, dq2, dkv2);
	for (size_t part = 0; part < 2; part++) {
		size_t at = part ? 48 : 0, rows = part ? 4 : 24;

		held_expect_same(o2 + at * 72, o + at * 72, rows * 72, "o");
		held_expect_same(lse2 + at * 2, lse + at * 2, rows * 2, "lse");
		held_expect_same(dq2 + at * 72, dq + at * 72, rows * 72, "dq");
		held_expect_same(dkv2 + at * 144, dkv + at * 144, rows * 144, "dkv");
	}
	cr_assert(isnan(o2[24 * 72]) && isnan(lse2[48]), "a NaN must be seen");
	held_end();
}

Test(vit_attn, equal_scores_give_the_mean_at_every_number_of_keys, .timeout = 60)
{
	const struct k3i_vit_attn *table[3];
	size_t n_tables = vit_attn_widths(table);

	for (int32_t n = 1; n <= 35; n++) {
		struct vit_grid item = {1, n, 1};
		struct vit_attn d = {"mean", &item, (size_t)n, 1, 4, NULL, NULL, NULL, NULL};
		struct vit_tile tile = vit_tile(&item, (struct vit_band[VIT_PARTS]){{0, 0, n}});

		d.qkv = held_out((size_t)n * 12);
		for (int32_t i = 0; i < n * 12; i++)
			d.qkv[i] = i % 12 < 4 ? 0 : (float)(i / 12);
		for (size_t k = 0; k < n_tables; k++) {
			float *o = held_out((size_t)n * 4), *lse = held_out((size_t)n);

			vit_attn_forward(table[k], &d, &tile, &tile, 1, o, lse);
			for (int32_t i = 0; i < n; i++)
				cr_assert(fabsf(o[4 * i + 3] - (float)(n - 1) / 2) < 1e-5f &&
						  fabsf(lse[i] - logf((float)n)) < 1e-6f,
					  "%d keys: mean %g, log-sum-exp %g", n,
					  (double)o[4 * i + 3], (double)lse[i]);
		}
		held_end();
	}
}
