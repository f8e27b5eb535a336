/* The verdict on a step: norm, clip coefficient, and whether anything may change (model.md 7).  In a
 * CUDA file the contracts come first, as C. */
#ifndef K3_OPTIM_VERDICT_H
#define K3_OPTIM_VERDICT_H
#include <math.h>

#include "../../common/op/loss.h"
#include "../../common/op/optim.h"

/**
 * @param out    [K3_OUT_LEN]
 * @param sum    of the squares of all gradients
 * @param acc    [K3_LOSS_LEN]
 * @param hyper  [K3_HYPER_LEN]
 */
K3_ON_ANY static inline void
k3_step_verdict(double *out, double sum, const double *acc, const double *hyper, double max_norm,
		double eps)
{
	double norm = sqrt(sum), coef = max_norm > 0 ? max_norm / (norm + eps) : 1;

	for (int i = 0; i < K3_OUT_LEN; i++)
		out[i] = 0;
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

#endif
