/* The verdict on a step: norm, clip coefficient, and whether anything may change (model.md 7). */
#include <math.h>
#include <string.h>

#include "../../common/op/loss.h"
#include "../../common/op/optim.h"

void
k3_clip_factor_cpu(void *const *buf, const struct k3_clip_args *a)
{
	double *out = buf[0], sum = 0;
	const double *acc = buf[1], *hyper = buf[2];

	for (uint32_t i = 0; i < a->partials.n; i++)
		sum += *(const double *)buf[a->partials.first + i];
	double norm = sqrt(sum), coef = a->max_norm > 0 ? a->max_norm / (norm + a->eps) : 1;
	memset(out, 0, K3_OUT_LEN * sizeof(*out));
	out[K3_OUT_NORM] = norm;
	out[K3_OUT_COEF] = coef < 1 ? coef : 1;
	out[K3_OUT_LOSS_SUM] = acc[K3_LOSS_SUM];
	out[K3_OUT_VALID] = acc[K3_LOSS_VALID];
	out[K3_OUT_CORRECT] = acc[K3_LOSS_CORRECT];
	out[K3_OUT_TOKENS] = acc[K3_LOSS_TOKENS];
	out[K3_OUT_STATE] = K3_STEP_OK;
	if (!(hyper[K3_HYPER_VALID] > 0))
		out[K3_OUT_STATE] = K3_STEP_NO_LABELS;
	if (!isfinite(norm) || !isfinite(acc[K3_LOSS_SUM]))
		out[K3_OUT_STATE] = K3_STEP_NOT_FINITE;
}
