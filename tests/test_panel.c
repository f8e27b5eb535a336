/* Products with the right operand in panels (codelets/linalg/panel_body.h), at every width that this
 * processor runs, against sums in double; sizes that fill neither tiles nor panels. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../codelets/kda/kda_lanes.h"
#include "held.h"

enum { PANEL = 32, M = 19, N = 71, K = 37, LDA = 80, LDC = 75 };

static size_t
tables(const struct k3i_kda_lanes *table[3])
{
	size_t n = 0;

	for (; n <= k3_lanes_of_cpu(); n++)
		table[n] = K3_LANES_TABLE(k3i_kda_lanes, n);
	return n;
}

static float *
panels(size_t rows)
{
	return held_out((N + PANEL - 1) / PANEL * PANEL * rows);
}

/* c = (add ? old : 0) + alpha sum_p a(i, p) b(p, j), and the rest of the rows of c as it was. */
static void
expect_product(const float *c, const float *old, int add, double alpha, const float *a, size_t rs,
	       size_t cs, const float *b, size_t m, size_t n, size_t k)
{
	for (size_t i = 0; i < M; i++)
		for (size_t j = 0; j < LDC; j++) {
			double want = (double)old[i * LDC + j], size = 0;
			if (i < m && j < n) {
				want = add ? want : 0;
				for (size_t p = 0; p < k; p++) {
					double x = alpha * (double)a[i * rs + p * cs] *
						   (double)b[p * N + j];
					want += x;
					size += fabs(x);
				}
			}
			cr_assert(fabs((double)c[i * LDC + j] - want) <=
					  2e-7 * fabs(want) + 1e-6 * size,
				  "c[%zu][%zu] of %zu x %zu x %zu is %g, expected %g", i, j, m, n,
				  k, (double)c[i * LDC + j], want);
		}
}

static void
expect_all_sizes(const struct k3i_kda_lanes *lanes, size_t rs, size_t cs)
{
	static const size_t ms[] = {1, 2, 3, 7, 8, 16, M}, ns[] = {1, 15, 16, 17, 32, 40, 64, N},
			    ks[] = {0, 1, 36};
	const float *a = held_random(1, LDA * LDA, -1, 1), *b = held_random(2, K * N, -1, 1),
		    *old = held_random(3, M * LDC, -1, 1);
	float *packed = panels(K);

	lanes->panel_rows(packed, K, b, N, K, N, NULL);
	for (size_t x = 0; x < sizeof(ms) / sizeof(*ms); x++)
		for (size_t y = 0; y < sizeof(ns) / sizeof(*ns); y++)
			for (size_t z = 0; z < sizeof(ks) / sizeof(*ks); z++) {
				int add = (x + y + z) % 2;
				float c[M * LDC], alpha = z == 1 ? 1.0f : -0.75f;
				size_t from = ks[z] ? K - ks[z] : 0;

				memcpy(c, old, sizeof(c));
				lanes->product(c, LDC, add, alpha, a, rs, cs, packed + from * PANEL,
					       K, ms[x], ns[y], ks[z]);
				expect_product(c, old, add, (double)alpha, a, rs, cs, b + from * N,
					       ms[x], ns[y], ks[z]);
			}
}

Test(panel, products_match_sums_in_double_at_every_width, .timeout = 60)
{
	const struct k3i_kda_lanes *lanes[3];

	for (size_t w = tables(lanes); w-- > 0;)
		expect_all_sizes(lanes[w], LDA, 1);
	held_end();
}

Test(panel, the_left_operand_may_be_transposed, .timeout = 60)
{
	const struct k3i_kda_lanes *lanes[3];

	for (size_t w = tables(lanes); w-- > 0;)
		expect_all_sizes(lanes[w], 1, LDA);
	held_end();
}

Test(panel, overwriting_does_not_read_what_was_there, .timeout = 60)
{
	const struct k3i_kda_lanes *lanes[3];
	const float *a = held_random(1, M * K, -1, 1), *b = held_random(2, K * N, -1, 1);

	for (size_t w = tables(lanes); w-- > 0;) {
		float *packed = panels(K), *c = held_out(M * N);

		lanes[w]->panel_rows(packed, K, b, N, K, N, NULL);
		lanes[w]->product(c, N, 0, 1.0f, a, K, 1, packed, K, M, N, K);
		for (size_t i = 0; i < M * N; i++)
			cr_assert(isfinite(c[i]), "c[%zu] is %g", i, (double)c[i]);
		held_guards();
	}
	held_end();
}

Test(panel, a_row_that_is_not_kept_becomes_zeros_and_so_do_columns_behind_the_last, .timeout = 60)
{
	const struct k3i_kda_lanes *lanes[3];
	float *b = held_random(2, K * N, -1, 1);
	int32_t keep[K];

	for (size_t p = 0; p < K; p++)
		keep[p] = p % 5 != 0;
	for (size_t j = 0; j < N; j++)
		b[10 * N + j] = NAN;
	for (size_t w = tables(lanes); w-- > 0;) {
		float *packed = panels(K);

		lanes[w]->panel_rows(packed, K, b, N, K, N, keep);
		for (size_t j = 0; j < 3 * PANEL; j++)
			for (size_t p = 0; p < K; p++) {
				float got = packed[j / PANEL * K * PANEL + p * PANEL + j % PANEL],
				      want = j < N && keep[p] ? b[p * N + j] : 0.0f;
				cr_assert_eq(got, want, "row %zu, column %zu: %g", p, j,
					     (double)got);
			}
	}
	held_end();
}

Test(panel, columns_are_the_transpose_with_zeros_up_to_eight, .timeout = 60)
{
	const struct k3i_kda_lanes *lanes[3];
	const float *x = held_random(2, N * LDA, -1, 1);

	for (size_t w = tables(lanes); w-- > 0;) {
		float *packed = panels(K);

		lanes[w]->panel_columns(packed, K, x, LDA, N, K);
		for (size_t j = 0; j < (N + 7) / 8 * 8; j++)
			for (size_t p = 0; p < K; p++) {
				float got = packed[j / PANEL * K * PANEL + p * PANEL + j % PANEL],
				      want = j < N ? x[j * LDA + p] : 0.0f;
				cr_assert_eq(got, want, "row %zu, column %zu: %g", p, j,
					     (double)got);
			}
	}
	held_end();
}
