/* Sum of squares of gradient blocks, in double and in order: the norm of a step must not depend on
 * who computed it when. */
#include "../../common/op/optim.h"
#include "../vec/vec.h"

void
k3_grad_norm_cpu_f32(void *const *buf, const struct k3_grad_norm_args *a)
{
	double *partial = buf[0], sum = 0;

	for (uint32_t b = 0; b < a->grads.n; b++)
		sum += k3_vec()->square(buf[a->grads.first + b], a->n_elems[b]);
	*partial = sum;
}
