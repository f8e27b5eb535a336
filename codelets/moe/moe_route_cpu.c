/* Router of one tile (model.md 5.2): fp32 logits, top k by biased score (lower id on ties), weights
 * from the unbiased scores, and the stable sort of the assignments by expert.  The trap: the bias
 * chooses, but never weighs. */
#include <math.h>

#include "../../common/op/moe.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

/* Top k of the biased scores by insertion, highest first; cut receives the (k+1)-th. */
static void
select_top(int32_t *ids, float *cut, const float *score, const float *bias, size_t n, size_t k)
{
	size_t have = 0;

	*cut = -INFINITY;
	for (size_t e = 0; e < n; e++) {
		float value = score[e] + bias[e];
		size_t at = have;
		while (at > 0 && value > score[ids[at - 1]] + bias[ids[at - 1]])
			at--;
		if (at == k) {
			if (value > *cut)
				*cut = value;
			continue;
		}
		if (have == k) {
			float last = score[ids[k - 1]] + bias[ids[k - 1]];
			*cut = last > *cut ? last : *cut;
		} else {
			have++;
		}
		for (size_t j = have - 1; j > at; j--)
			ids[j] = ids[j - 1];
		ids[at] = (int32_t)e;
	}
}

/* Highest biased score that was not taken, when the ids are given. */
static float
best_left(const int32_t *ids, const float *score, const float *bias, size_t n, size_t k)
{
	float best = -INFINITY;

	for (size_t e = 0; e < n; e++) {
		int taken = 0;
		for (size_t j = 0; j < k; j++)
			taken |= ids[j] == (int32_t)e;
		if (!taken && score[e] + bias[e] > best)
			best = score[e] + bias[e];
	}
	return best;
}

/* Counting sort of the t*k assignments, stable in (token, slot). offs holds counts shifted by one
 * on entry to the last pass. */
static void
sort_rows(int32_t *route, const struct k3_moe_route_args *a)
{
	size_t n = a->n_experts, tk = a->t * a->k;
	int32_t *offs = route, *ids = offs + n + 1, *row = ids + tk, *src = row + tk;

	for (size_t e = 0; e <= n; e++)
		offs[e] = 0;
	for (size_t i = 0; i < tk; i++)
		offs[ids[i] + 1]++;
	for (size_t e = 0; e < n; e++)
		offs[e + 1] += offs[e];
	/* offs[e] walks to the end of expert e, which is the start of e + 1: afterwards everything
	 * is shifted back */
	for (size_t i = 0; i < tk; i++) {
		row[i] = offs[ids[i]]++;
		src[row[i]] = (int32_t)i;
	}
	for (size_t e = n; e > 0; e--)
		offs[e] = offs[e - 1];
	offs[0] = 0;
}

void
k3_moe_route_fwd_cpu_f32(void *const *buf, const struct k3_moe_route_args *a)
{
	int32_t *route = buf[0], *ids = route + a->n_experts + 1;
	float *w = buf[1], *score = w + a->t * a->k, *cut = score + a->t * a->n_experts;
	const float *x = buf[2], *bias = buf[a->bias.first];
	const int32_t *forced = a->forced.n ? buf[a->forced.first] : NULL;
	size_t n = a->n_experts, k = a->k;

	k3_linear_fwd(score, n, 0, x, a->d, buf, &a->wr, 0, n, a->t);
	k3_vec()->sigmoid(score, score, a->t * n);
	for (size_t i = 0; i < a->t; i++) {
		float *s = score + i * n;
		double sum = 0;
		if (forced) {
			for (size_t j = 0; j < k; j++)
				ids[i * k + j] = forced[i * k + j];
			cut[i] = best_left(ids + i * k, s, bias, n, k);
		} else {
			select_top(ids + i * k, cut + i, s, bias, n, k);
		}
		for (size_t j = 0; j < k; j++)
			sum += (double)s[ids[i * k + j]];
		sum += (double)a->sum_eps;
		for (size_t j = 0; j < k; j++)
			w[i * k + j] = (float)((double)s[ids[i * k + j]] / sum * (double)a->scale);
	}
	sort_rows(route, a);
}
