/* The quantile balance rule on given scores: the counting and the bias operation, called as their
 * codelets call them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/ops.h"
#include "../common/status.h"
#include "verify.h"

/* Route tables of one tile whose experts are the top k of scores + bias; only what the count reads.
 */
static void
make_routes(int32_t *route, float *routew, const double *scores, const float *bias, size_t t,
	    size_t e, size_t k)
{
	int32_t *ids = route + e + 1;
	float *s = routew + t * k, *cut = s + t * e;

	for (size_t i = 0; i < t; i++) {
		size_t have = 0;
		for (size_t j = 0; j < e; j++)
			s[i * e + j] = (float)scores[i * e + j];
		for (; have <= k && have < e; have++) {
			size_t best = e;
			for (size_t j = 0; j < e; j++) {
				bool taken = false;
				for (size_t p = 0; p < have && p < k; p++)
					taken = taken || ids[i * k + p] == (int32_t)j;
				if (!taken && (best == e || s[i * e + j] + bias[j] >
								    s[i * e + best] + bias[best]))
					best = j;
			}
			if (have < k)
				ids[i * k + have] = (int32_t)best;
			else
				cut[i] = s[i * e + best] + bias[best];
		}
		if (k == e)
			cut[i] = -INFINITY;
	}
}

int
k3i_verify_quantile(const double *scores, const double *bias_in, size_t t, size_t e, size_t k,
		    size_t bins, int32_t *hist, double *bias_out)
{
	int32_t *route = calloc(k3_route_len(t, e, k), sizeof(*route)),
		*balance = calloc(e * (1 + bins), sizeof(*balance));
	int32_t *layout = calloc(k3_tile_layout_len(t), sizeof(*layout));
	float *routew = calloc(k3_routew_len(t, e, k), sizeof(*routew)),
	      *bias = calloc(e, sizeof(*bias));
	double out[K3_OUT_LEN] = {0};
	int ret = route && balance && layout && routew && bias ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	for (size_t j = 0; j < e; j++)
		bias[j] = (float)bias_in[j];
	layout[K3_TL_ROWS] = (int32_t)t;
	for (size_t i = 0; i < t; i++)
		layout[K3_TL_HEAD + i] = 1;
	make_routes(route, routew, scores, bias, t, e, k);
	struct k3_moe_count_args count = {.n_buf = 5,
					  .t = t,
					  .n_experts = e,
					  .k = k,
					  .bins = bins,
					  .bias = {4, 1, 1, e, 1, 0}};
	k3_moe_count_cpu((void *[]){balance, route, routew, layout, bias}, &count);
	struct k3_router_bias_args update = {.n_buf = 3,
					     .rule = K3_BALANCE_QUANTILE,
					     .n_experts = e,
					     .k = k,
					     .bins = bins,
					     .bias = {1, 1},
					     .balance = {2, 1}};
	k3_router_bias_update_cpu_f32((void *[]){out, bias, balance}, &update);
	memcpy(hist, balance + e, e * bins * sizeof(*hist));
	for (size_t j = 0; j < e; j++)
		bias_out[j] = (double)bias[j];
out:
	free(route);
	free(balance);
	free(layout);
	free(routew);
	free(bias);
	return ret;
}
