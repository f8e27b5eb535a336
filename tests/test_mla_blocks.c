/* The core of latent attention over several blocks of queries and of keys, in every compilation that
 * this processor runs, against the definition in double.  Widths fill no panel; documents begin and
 * end inside blocks; rows without a document hold NaN, which nobody may see. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../codelets/mla/mla_attn.h"
#include "held.h"

enum { T = 700, H = 2, NOPE = 40, ROPE = 9, V = 35, KQ = NOPE + ROPE, KV = H * (NOPE + V) + ROPE };

/* First row of each document; the last one ends at the padding. */
static const size_t starts[] = {0, 330, 347, 348, 500}, holes[] = {7, 31, 200, 400, 401, 415};
enum { END = 690, N_DOCS = sizeof(starts) / sizeof(*starts) };

struct all {
	int32_t doc[T];
	float *q, *kv, *da;
	double *o, *lse, *dq, *dkv;
	float *lse_th, *delta_th; /* what the backward pass reads */
};

static size_t
compilations(const struct k3i_mla_attn *table[3])
{
	size_t n = 0;

	for (; n <= k3_lanes_of_cpu(); n++)
		table[n] = K3_LANES_TABLE(k3i_mla_attn, n);
	return n;
}

static double
score(const struct all *x, size_t h, size_t i, size_t j)
{
	const float *q = x->q + (i * H + h) * KQ, *row = x->kv + j * KV;
	double sum = 0;

	for (size_t c = 0; c < KQ; c++)
		sum += (double)q[c] *
		       (double)(c < NOPE ? row[h * (NOPE + V) + c] : row[KV - ROPE + c - NOPE]);
	return sum / sqrt(KQ);
}

/* <da_i, v_j> */
static double
value_product(const struct all *x, size_t h, size_t i, size_t j)
{
	double sum = 0;

	for (size_t c = 0; c < V; c++)
		sum += (double)x->da[(i * H + h) * V + c] *
		       (double)x->kv[j * KV + h * (NOPE + V) + NOPE + c];
	return sum;
}

/* Everything of query i, by the definition; p and ds have room for T. */
static void
define_query(struct all *x, size_t h, size_t i, double *p)
{
	double most = -INFINITY, sum = 0, delta = 0;

	for (size_t j = 0; j <= i; j++) {
		p[j] = x->doc[j] == x->doc[i] ? score(x, h, i, j) : -INFINITY;
		most = fmax(most, p[j]);
	}
	for (size_t j = 0; j <= i; j++)
		sum += p[j] = exp(p[j] - most);
	x->lse[i * H + h] = most + log(sum);
	for (size_t j = 0; j <= i; j++) {
		p[j] /= sum;
		if (x->doc[j] == x->doc[i])
			delta += p[j] * value_product(x, h, i, j);
	}
	for (size_t j = 0; j <= i; j++) {
		if (x->doc[j] != x->doc[i])
			continue;
		const float *row = x->kv + j * KV, *q = x->q + (i * H + h) * KQ;
		double ds = p[j] * (value_product(x, h, i, j) - delta) / sqrt(KQ);
		for (size_t c = 0; c < V; c++) {
			size_t v = h * (NOPE + V) + NOPE + c;
			x->o[(i * H + h) * V + c] += p[j] * (double)row[v];
			x->dkv[j * KV + v] += p[j] * (double)x->da[(i * H + h) * V + c];
		}
		for (size_t c = 0; c < KQ; c++) {
			size_t k = c < NOPE ? h * (NOPE + V) + c : KV - ROPE + c - NOPE;
			x->dq[(i * H + h) * KQ + c] += ds * (double)row[k];
			x->dkv[j * KV + k] += ds * (double)q[c];
		}
	}
	x->lse_th[i * H + h] = (float)x->lse[i * H + h];
	x->delta_th[i * H + h] = (float)delta;
}

static void
spoil(float *x, const int32_t *doc, size_t width)
{
	for (size_t i = 0; i < T; i++)
		for (size_t c = 0; c < width && !doc[i]; c++)
			x[i * width + c] = NAN;
}

static void
all_init(struct all *x)
{
	double *p = calloc(T, sizeof(*p));

	memset(x->doc, 0, sizeof(x->doc));
	for (size_t d = 0; d < N_DOCS; d++)
		for (size_t i = starts[d]; i < END; i++)
			x->doc[i] = (int32_t)(3 * d + 2);
	for (size_t i = 0; i < sizeof(holes) / sizeof(*holes); i++)
		x->doc[holes[i]] = 0;
	x->q = held_random(1, T * H * KQ, -2, 2);
	x->kv = held_random(2, T * KV, -2, 2);
	x->da = held_random(3, T * H * V, -1, 1);
	x->o = calloc(T * H * V, sizeof(double));
	x->lse = calloc(T * H, sizeof(double));
	x->dq = calloc(T * H * KQ, sizeof(double));
	x->dkv = calloc(T * KV, sizeof(double));
	x->lse_th = held_out(T * H);
	x->delta_th = held_out(T * H);
	cr_assert(p && x->o && x->lse && x->dq && x->dkv);
	for (size_t i = 0; i < T * H; i++)
		x->lse_th[i] = -INFINITY;
	for (size_t i = 0; i < T; i++)
		for (size_t h = 0; h < H && x->doc[i]; h++)
			define_query(x, h, i, p);
	free(p);
	spoil(x->q, x->doc, H * KQ);
	spoil(x->kv, x->doc, KV);
	spoil(x->da, x->doc, H * V);
	spoil(x->delta_th, x->doc, H);
}

static void
all_fini(struct all *x)
{
	free(x->o);
	free(x->lse);
	free(x->dq);
	free(x->dkv);
	held_end();
}

static struct k3_mla_attn_args
args(size_t t, size_t tk)
{
	return (struct k3_mla_attn_args){.t = t,
					 .tk_max = tk,
					 .h = H,
					 .nope = NOPE,
					 .rope = ROPE,
					 .v = V,
					 .h1 = H,
					 .scale = 1.0f / sqrtf(KQ)};
}

/* Two query tiles against the key tiles up to their own; cut = T: one tile. */
static void
forward(const struct k3i_mla_attn *attn, const struct all *x, size_t cut, float *o, float *lse)
{
	for (size_t q0 = 0, q1 = cut; q0 < T; q0 = q1, q1 = T) {
		struct k3_mla_attn_args a = args(q1 - q0, T);
		float *work = held_out(k3_mla_attn_fwd_work_floats(T, NOPE, ROPE, V));
		int32_t *keys = held_layout(x->doc, cut, 0),
			*own = held_layout(x->doc + q0, q1 - q0, q0);
		void *buf[] = {o + q0 * H * V,
			       lse + q0 * H,
			       x->q + q0 * H * KQ,
			       own,
			       work,
			       x->kv,
			       x->kv + cut * KV,
			       keys,
			       own};

		a.first = 1;
		a.kv = (struct k3_list){5, q0 ? 2 : 1};
		a.klayout = (struct k3_list){7, q0 ? 2 : 1};
		attn->fwd(buf, &a);
	}
}

/* Pairs in descending order, as the plan has them; the first of each sum writes. */
static void
backward(const struct k3i_mla_attn *attn, const struct all *x, size_t cut, float *dq, float *dkv)
{
	const size_t at[] = {0, cut, T};
	size_t n = cut < T ? 2 : 1;

	for (size_t i = n; i-- > 0;)
		for (size_t j = i + 1; j-- > 0;) {
			size_t q0 = at[i], k0 = at[j], tq = at[i + 1] - q0, tk = at[j + 1] - k0;
			struct k3_mla_attn_args a = args(tq, T);
			float *work = held_out(k3_mla_attn_bwd_work_floats(T, NOPE, ROPE, V));
			void *buf[] = {dq + q0 * H * KQ,
				       dkv + k0 * KV,
				       x->q + q0 * H * KQ,
				       x->kv + k0 * KV,
				       x->da + q0 * H * V,
				       x->lse_th + q0 * H,
				       x->delta_th + q0 * H,
				       held_layout(x->doc + q0, tq, q0),
				       held_layout(x->doc + k0, tk, k0),
				       work};

			a.init_dq = j == i;
			a.init_dkv = i == n - 1;
			attn->bwd(buf, &a);
		}
}

static void
expect_lse(const struct all *x, const float *lse)
{
	for (size_t i = 0; i < T * H; i++) {
		double want = x->doc[i / H] ? x->lse[i] : (double)-INFINITY;
		cr_assert(isinf(want) ? (double)lse[i] == want : fabs((double)lse[i] - want) < 4e-6,
			  "lse[%zu] is %g, expected %g", i, (double)lse[i], want);
	}
}

static void
expect_all(size_t cut)
{
	const struct k3i_mla_attn *attn[3];
	struct all x;

	all_init(&x);
	for (size_t c = compilations(attn); c-- > 0;) {
		float *o = held_out(T * H * V), *lse = held_out(T * H), *dq = held_out(T * H * KQ),
		      *dkv = held_out(T * KV);

		forward(attn[c], &x, cut, o, lse);
		fixture_expect_close(o, x.o, T * H * V, 1e-6, "o");
		expect_lse(&x, lse);
		backward(attn[c], &x, cut, dq, dkv);
		fixture_expect_close(dq, x.dq, T * H * KQ, 2e-6, "dq");
		fixture_expect_close(dkv, x.dkv, T * KV, 2e-6, "dkv");
		held_guards();
	}
	all_fini(&x);
}

Test(mla_blocks, one_tile_of_several_blocks_matches_the_definition, .timeout = 60)
{
	expect_all(T);
}

Test(mla_blocks, a_tile_before_is_seen_by_the_document_that_goes_on, .timeout = 60)
{
	expect_all(300);
}

Test(mla_blocks, a_document_that_begins_at_a_tile_sees_no_key_before, .timeout = 60)
{
	expect_all(500);
}

/* A NaN in a key goes to all queries of its document from there on, and to no other. */
Test(mla_blocks, a_nan_reaches_exactly_the_queries_that_see_it, .timeout = 60)
{
	const struct k3i_mla_attn *attn[3];
	struct all x;

	all_init(&x);
	x.kv = held_copy(x.kv, T * KV);
	x.kv[520 * KV] = NAN; /* head 0 */
	for (size_t c = compilations(attn); c-- > 0;) {
		float *o = held_out(T * H * V), *lse = held_out(T * H);

		forward(attn[c], &x, T, o, lse);
		for (size_t i = 0; i < T * H; i++) {
			int sees = i % H == 0 && i / H >= 520 && i / H < END;
			cr_assert_eq(isnan(lse[i]), sees, "lse[%zu] is %g", i, (double)lse[i]);
			cr_assert_eq(isnan(o[i * V]), sees, "o[%zu] is %g", i, (double)o[i * V]);
		}
	}
	all_fini(&x);
}
