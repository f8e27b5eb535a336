/* Sum of squares of gradient blocks, in double and in order: the norm of a step must not depend on
 * who computed it when. */
#include "../../common/op/optim.h"

void
k3_grad_norm_cpu_f32(void *const *buf, const struct k3_grad_norm_args *a)
{
	double *partial = buf[0], sum = 0;

	for (uint32_t b = 0; b < a->grads.n; b++) {
		const float *g = buf[a->grads.first + b];
		double lane[8] = {0};
		size_t i = 0;
		for (; i + 8 <= a->n_elems[b]; i += 8)
			for (size_t k = 0; k < 8; k++)
				lane[k] += (double)g[i + k] * (double)g[i + k];
		for (; i < a->n_elems[b]; i++)
			lane[0] += (double)g[i] * (double)g[i];
		for (size_t k = 0; k < 8; k++)
			sum += lane[k];
	}
	*partial = sum;
}
