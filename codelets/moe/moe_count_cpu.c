/* Expert loads of a tile (model.md 5.4): tokens per expert, and the histogram of the bias that each
 * token would require. The trap: with bias 0 and an even number of bins the cutoff expert lies
 * exactly on a bin edge, so the position is evaluated in double; padding does not count. */
#include <math.h>
#include <string.h>

#include "../../common/op/moe.h"

static void
histogram_row(int32_t *hist, const float *score, double cut, double lo, double width, size_t n,
	      size_t bins)
{
	for (size_t e = 0; e < n; e++) {
		double at = floor((cut - (double)score[e] - lo) / width);
		size_t bin = !(at > 0) ? 0 : at >= (double)bins ? bins - 1 : (size_t)at;
		hist[e * bins + bin]++;
	}
}

void
k3_moe_count_cpu(void *const *buf, const struct k3_moe_count_args *a)
{
	int32_t *count = buf[0], *hist = count + a->n_experts;
	const int32_t *ids = k3_route_ids(buf[1], a->n_experts), *doc = k3_tile_doc(buf[3]);
	const float *score = k3_routew_scores(buf[2], a->t, a->k),
		    *cut = k3_routew_cut(buf[2], a->n_experts, a->t, a->k);
	const float *bias = buf[a->bias.first];
	double lo = (double)bias[0], hi = lo;

	if (!a->accumulate)
		memset(count, 0, a->n_experts * (1 + a->bins) * sizeof(*count));
	for (size_t e = 1; e < a->n_experts; e++) {
		lo = (double)bias[e] < lo ? (double)bias[e] : lo;
		hi = (double)bias[e] > hi ? (double)bias[e] : hi;
	}
	double width = a->bins ? (hi - lo + 2) / (double)a->bins : 0;
	for (size_t i = 0; i < a->t; i++) {
		if (!doc[i])
			continue;
		for (size_t j = 0; j < a->k; j++)
			count[ids[i * a->k + j]]++;
		if (a->bins)
			histogram_row(hist, score + i * a->n_experts, (double)cut[i], lo - 1, width,
				      a->n_experts, a->bins);
	}
}
