/* Token embedding over a table in row blocks, and the tasks that bring a batch into the graph. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/embed.h"
#include "../common/op/io.h"
#include "../common/op/loss.h"
#include "held.h"

enum { V = 11, D = 3, BLOCK = 4, T = 7 };

static int32_t ids[T] = {10, 0, 4, 10, 3, 7, 10};

/* Row i of the table is 10 i, 10 i + 1, 10 i + 2. */
static float *
counted_table(void)
{
	float *table = held_out(V * D);

	for (size_t i = 0; i < V * D; i++)
		table[i] = (float)(10 * (i / D) + i % D);
	return table;
}

static void
backward(float *dtable, float *dy, int32_t *at, size_t t, size_t block, int accumulate)
{
	struct held_task task = {{dy, at}, 2};
	struct k3_embed_args a = {.t = t, .d = D};

	a.table = held_push_weight(&task, dtable, V, D, block, accumulate);
	a.n_buf = task.n;
	k3_embed_bwd_cpu_f32(task.buf, &a);
}

Test(embed, rows_come_from_the_block_that_holds_them, .timeout = 60)
{
	for (size_t block = 1; block <= V; block++) {
		float *y = held_out(T * D);
		struct held_task task = {{y, ids}, 2};
		struct k3_embed_args a = {.t = T, .d = D};

		a.table = held_push_weight(&task, counted_table(), V, D, block, 0);
		k3_embed_fwd_cpu_f32(task.buf, &a);
		for (size_t i = 0; i < T * D; i++)
			cr_assert_eq(y[i], (float)(10 * (size_t)ids[i / D] + i % D),
				     "blocks of %zu rows: y[%zu] is %g", block, i, (double)y[i]);
	}
	held_end();
}

Test(embed, gradients_of_repeated_ids_are_summed, .timeout = 60)
{
	float *dtable = held_out(V * D), *dy = held_out(T * D);

	for (size_t i = 0; i < T * D; i++)
		dy[i] = (float)(1 << i / D);
	backward(dtable, dy, ids, T, BLOCK, 0);
	held_expect_all(dtable + 10 * D, 1 + 8 + 64, D, "row of the repeated id");
	held_expect_all(dtable, 2, D, "row 0");
	held_expect_all(dtable + 4 * D, 4, D, "row 4, first of a block");
	held_expect_all(dtable + 3 * D, 16, D, "row 3, last of a block");
	held_end();
}

Test(embed, rows_of_absent_ids_are_exact_zeros, .timeout = 60)
{
	static const size_t absent[] = {1, 2, 5, 6, 8, 9};

	for (size_t block = 1; block <= V; block += 2) {
		float *dtable = held_out(V * D);

		backward(dtable, held_random(1, T * D, -1, 1), ids, T, block, 0);
		for (size_t i = 0; i < 6; i++)
			held_expect_all(dtable + absent[i] * D, 0, D, "absent row");
	}
	held_end();
}

Test(embed, tokens_are_added_in_ascending_order, .timeout = 60)
{
	int32_t same[] = {5, 5, 5};
	float *dtable = held_out(V * D), *dy = held_out(3 * D);

	for (size_t c = 0; c < D; c++) {
		dy[c] = 1; /* lost beside 1e8, kept when the large two cancel first */
		dy[D + c] = 1e8f;
		dy[2 * D + c] = -1e8f;
	}
	backward(dtable, dy, same, 3, BLOCK, 0);
	held_expect_all(dtable + 5 * D, 0, D, "sum in order");
	held_end();
}

Test(embed, later_tiles_add_to_the_gradient, .timeout = 60)
{
	float *dtable = counted_table(), *dy = held_out(T * D);

	for (size_t i = 0; i < T * D; i++)
		dy[i] = 0.5f;
	backward(dtable, dy, ids, T, BLOCK, 1);
	for (size_t i = 0; i < V * D; i++) {
		float add = 0;
		for (size_t t = 0; t < T; t++)
			add += (size_t)ids[t] == i / D ? 0.5f : 0;
		cr_assert_eq(dtable[i], (float)(10 * (i / D) + i % D) + add);
	}
	held_end();
}

Test(embed, first_contribution_without_tokens_is_zero, .timeout = 60)
{
	float *dtable = held_out(V * D);

	backward(dtable, NULL, NULL, 0, BLOCK, 0);
	held_expect_all(dtable, 0, V * D, "dtable");
	held_end();
}

/* Tokens 1, 3 and 4 stand for image features: what their rows hold reaches no entry. */
Test(embed, replaced_rows_add_nothing, .timeout = 60)
{
	int32_t map[T] = {-1, 0, -1, 7, 8, -1, -1};
	float *dtable = held_out(V * D), *dy = held_out(T * D);
	struct held_task task = {{dy, ids}, 2};
	struct k3_embed_args a = {.t = T, .d = D};

	for (size_t i = 0; i < T * D; i++)
		dy[i] = map[i / D] < 0 ? (float)(1 << i / D) : NAN;
	a.map = held_push_list(&task, map);
	a.table = held_push_weight(&task, dtable, V, D, BLOCK, 0);
	k3_embed_bwd_cpu_f32(task.buf, &a);
	held_expect_all(dtable + 10 * D, 1 + 64, D, "row 10, once replaced");
	held_expect_all(dtable + 4 * D, 4, D, "row 4");
	held_expect_all(dtable + 7 * D, 32, D, "row 7");
	held_expect_all(dtable, 0, D, "row 0, always replaced");
	held_expect_all(dtable + 3 * D, 0, D, "row 3, always replaced");
	held_end();
}

/* Rows 4 .. 6 of a batch of 8, with forced routes of two layers. */
struct batch {
	int32_t ids[8], labels[8], routes[2][16];
	const int32_t *forced[2];
};

static struct batch
counted_batch(void)
{
	struct batch b;

	for (int32_t i = 0; i < 16; i++) {
		b.ids[i % 8] = 100 + i % 8;
		b.labels[i % 8] = i % 8 == 5 ? -100 : 200 + i % 8;
		b.routes[0][i] = 300 + i;
		b.routes[1][i] = 400 + i;
	}
	return b;
}

Test(load, a_tile_takes_its_rows_of_the_batch, .timeout = 60)
{
	struct batch b = counted_batch();
	const int32_t doc[] = {1, 1, 0};
	int32_t *layout = held_layout(doc, 3, 4), *out_ids = held_out_ints(3),
		*out_labels = held_out_ints(3);
	int32_t *out_layout = held_out_ints(k3_tile_layout_len(3)), *r0 = held_out_ints(6),
		*r1 = held_out_ints(6);
	void *buf[] = {out_ids, out_labels, out_layout, r0, r1};
	struct k3_batch_load_args a = {
		.n_buf = 5, .t = 3, .row0 = 4, .k = 2, .layout = layout, .forced = {3, 2}};

	b.forced[0] = b.routes[0];
	b.forced[1] = b.routes[1];
	struct k3_host_batch host = {.ids = b.ids, .labels = b.labels, .forced = b.forced};
	k3_batch_load_cpu(buf, &a, &host);
	for (int32_t i = 0; i < 3; i++) {
		cr_assert_eq(out_ids[i], 104 + i);
		cr_assert_eq(out_labels[i], i == 1 ? -100 : 204 + i);
	}
	for (int32_t i = 0; i < 6; i++) {
		cr_assert_eq(r0[i], 308 + i);
		cr_assert_eq(r1[i], 408 + i);
	}
	cr_assert_arr_eq(out_layout, layout, k3_tile_layout_len(3) * sizeof(int32_t));
	held_end();
}

Test(load, without_forced_routing_the_host_has_no_routes, .timeout = 60)
{
	struct batch b = counted_batch();
	const int32_t doc[] = {1, 2};
	int32_t *out_ids = held_out_ints(2), *out_labels = held_out_ints(2),
		*out = held_out_ints(k3_tile_layout_len(2));
	void *buf[] = {out_ids, out_labels, out};
	struct k3_batch_load_args a = {
		.n_buf = 3, .t = 2, .row0 = 0, .k = 2, .layout = held_layout(doc, 2, 0)};
	struct k3_host_batch host = {.ids = b.ids, .labels = b.labels};

	k3_batch_load_cpu(buf, &a, &host);
	cr_assert_eq(out_ids[1], 101);
	cr_assert_eq(out_labels[0], 200);
	cr_assert_eq(out[K3_TL_SEGMENTS], 2);
	held_end();
}

Test(load, the_map_of_images_is_the_tiles_own, .timeout = 60)
{
	struct batch b = counted_batch();
	const int32_t doc[] = {1, 1, 1}, rows[] = {-1, 12, 13};
	int32_t *map = held_out_ints(3);
	void *buf[] = {held_out_ints(3), held_out_ints(3), held_out_ints(k3_tile_layout_len(3)),
		       map};
	struct k3_batch_load_args a = {.n_buf = 4,
				       .t = 3,
				       .row0 = 4,
				       .layout = held_layout(doc, 3, 4),
				       .map_rows = rows,
				       .map = {3, 1}};

	k3_batch_load_cpu(buf, &a, &(struct k3_host_batch){.ids = b.ids, .labels = b.labels});
	cr_assert_arr_eq(map, rows, sizeof(rows));
	held_end();
}

Test(load, a_foreign_tile_loads_its_layout_alone, .timeout = 60)
{
	const int32_t doc[] = {3, 3, 4, 0, 4};
	size_t n = k3_tile_layout_len(5);
	int32_t *layout = held_layout(doc, 5, 20), *out = held_out_ints(n);
	void *buf[] = {out};
	struct k3_batch_load_args a = {.n_buf = 1, .t = 5, .layout_only = 1, .layout = layout};

	k3_batch_load_cpu(buf, &a, NULL);
	cr_assert_arr_eq(out, layout, n * sizeof(int32_t));
	held_end();
}

Test(load, step_scalars_arrive_unrounded, .timeout = 60)
{
	double hyper[K3_HYPER_LEN], out[K3_HYPER_LEN + 1];
	void *buf[] = {out};

	for (size_t i = 0; i < K3_HYPER_LEN; i++) {
		hyper[i] = 1.0 / (double)(3 + i);
		out[i] = NAN;
	}
	out[K3_HYPER_LEN] = -7;
	k3_step_load_cpu(buf, hyper);
	cr_assert_arr_eq(out, hyper, sizeof(hyper));
	cr_assert_eq(out[K3_HYPER_LEN], -7, "written beyond the end");
}
