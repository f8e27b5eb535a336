/* Router bias after a step (model.md 5.4): the sign rule moves each bias by a fixed step towards
 * balance, the quantile rule replaces it by the value at which the expert would have received its
 * share. */
#include <math.h>

#include "../../common/op/optim.h"

static void
sign_rule(float *bias, const int32_t *count, size_t n, double u)
{
	double mean = 0, drift = 0;

	for (size_t e = 0; e < n; e++)
		mean += count[e];
	mean /= (double)n;
	for (size_t e = 0; e < n; e++)
		drift += u * (double)((mean > count[e]) - (mean < count[e]));
	drift /= (double)n;
	for (size_t e = 0; e < n; e++)
		bias[e] = (float)((double)bias[e] +
				  u * (double)((mean > count[e]) - (mean < count[e])) - drift);
}

/* Position of the k/n quantile in one expert's histogram, in bins. The product comes before the
 * quotient: a rounded k/n may put a whole target just above itself, and the rank one too high. */
static double
quantile(const int32_t *hist, size_t bins, size_t k, size_t n)
{
	double total = 0, before = 0;

	for (size_t b = 0; b < bins; b++)
		total += hist[b];
	double target = total * (double)k / (double)n, rank = ceil(target);
	size_t bin = 0;
	while (bin + 1 < bins && before + hist[bin] < rank)
		before += hist[bin++];
	return hist[bin] > 0 ? (double)bin + (target - before) / hist[bin] : (double)bin;
}

static void
quantile_rule(float *bias, const int32_t *hist, size_t n, size_t bins, size_t k)
{
	double lo = (double)bias[0], hi = lo, mean = 0;

	for (size_t e = 1; e < n; e++) {
		lo = (double)bias[e] < lo ? (double)bias[e] : lo;
		hi = (double)bias[e] > hi ? (double)bias[e] : hi;
	}
	double width = (hi - lo + 2) / (double)bins;
	for (size_t e = 0; e < n; e++)
		mean += quantile(hist + e * bins, bins, k, n);
	mean /= (double)n;
	for (size_t e = 0; e < n; e++)
		bias[e] = (float)((quantile(hist + e * bins, bins, k, n) - mean) * width);
}

static void
update_layer(float *bias, const int32_t *balance, const struct k3_router_bias_args *a)
{
	double tokens = 0;

	for (size_t e = 0; e < a->n_experts; e++)
		tokens += balance[e];
	if (!(tokens > 0))
		return;
	if (a->rule == K3_BALANCE_SIGN)
		sign_rule(bias, balance, a->n_experts, a->u);
	else if (a->rule == K3_BALANCE_QUANTILE)
		quantile_rule(bias, balance + a->n_experts, a->n_experts, a->bins, a->k);
}

void
k3_router_bias_update_cpu_f32(void *const *buf, const struct k3_router_bias_args *a)
{
	const double *out = buf[0];

	for (uint32_t i = 0; i < a->bias.n && out[K3_OUT_STATE] == K3_STEP_OK; i++)
		update_layer(buf[a->bias.first + i], buf[a->balance.first + i], a);
}
