/* Output product of the tower's attention, y = x + o Wo^T; its backward pass also makes delta,
 * which the softmax gradient of every key tile needs. */
#include <string.h>

#include "../../common/op/vit.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

void
k3_vit_out_fwd_cpu_f32(void *const *buf, const struct k3_vit_out_args *a)
{
	float *y = buf[0];

	memcpy(y, buf[1], a->n * a->d * sizeof(*y));
	k3_linear_fwd(y, a->d, 1, buf[2], a->dq, buf, &a->w, 0, a->d, a->n);
}

void
k3_vit_out_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_out_args *a)
{
	float *dout = buf[0], *delta = buf[1];
	const float *dy = buf[2], *o = buf[3];
	size_t hd = a->dq / a->h;

	k3_linear_dx(dout, a->dq, 0, dy, a->d, buf, &a->w, 0, a->d, a->n);
	for (size_t i = 0; i < a->n * a->h; i++)
		delta[i] = (float)k3_vec()->dot(dout + i * hd, o + i * hd, hd);
}

void
k3_vit_out_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_out_args *a)
{
	k3_linear_dw(buf, &a->w, 0, a->d, buf[0], a->d, buf[1], a->dq, a->n);
}
