/* AdamW with decoupled weight decay on every parameter (model.md 7; Loshchilov & Hutter 2019): the
 * gradient is scaled by the clip coefficient on the way in, moments and parameter are fp32, the
 * scalars of the step are made in double.  Copies are written in a step without an update too: a
 * write that keeps the old value would read it. */
#include <math.h>

#include "../../common/op/loss.h"
#include "../../common/op/optim.h"
#include "../vec/vec.h"

struct scalars {
	float coef, beta1, beta2, rest1, rest2, decay, rate, root2, eps;
};

static struct scalars
step_scalars(const double *out, const double *hyper, const struct k3_adamw_args *a)
{
	double step = hyper[K3_HYPER_STEP], lr = hyper[K3_HYPER_LR];

	return (struct scalars){
		.coef = (float)out[K3_OUT_COEF],
		.beta1 = (float)a->beta1,
		.rest1 = (float)(1 - a->beta1),
		.beta2 = (float)a->beta2,
		.rest2 = (float)(1 - a->beta2),
		.decay = (float)(1 - lr * a->weight_decay),
		.rate = (float)(lr / (1 - pow(a->beta1, step))),
		.root2 = (float)(1 / sqrt(1 - pow(a->beta2, step))),
		.eps = (float)a->eps,
	};
}

static void
update(float *restrict p, float *restrict m, float *restrict v, const float *restrict g, size_t n,
       struct scalars s)
{
	for (size_t i = 0; i < n; i++) {
		float d = g[i] * s.coef;
		m[i] = s.beta1 * m[i] + s.rest1 * d;
		v[i] = s.beta2 * v[i] + s.rest2 * d * d;
		p[i] = s.decay * p[i] - s.rate * m[i] / (sqrtf(v[i]) * s.root2 + s.eps);
	}
}

void
k3_adamw_step_cpu_f32(void *const *buf, const struct k3_adamw_args *a)
{
	const double *out = buf[0], *hyper = buf[1];

	struct scalars s = step_scalars(out, hyper, a);
	for (uint32_t b = 0; b < a->params.n; b++) {
		if (out[K3_OUT_STATE] == K3_STEP_OK)
			update(buf[a->params.first + b], buf[a->exp_avg.first + b],
			       buf[a->exp_avg_sq.first + b], buf[a->grads.first + b], a->n_elems[b],
			       s);
		if (a->copies.n && a->copy[b] >= 0)
			k3_vec()->to_bf16(buf[a->copies.first + (uint32_t)a->copy[b]],
					  buf[a->params.first + b], a->n_elems[b]);
	}
}

void
k3_cast_params_cpu(void *const *buf, const struct k3_cast_args *a)
{
	for (uint32_t b = 0; a->copies.n && b < a->params.n; b++)
		if (a->copy[b] >= 0)
			k3_vec()->to_bf16(buf[a->copies.first + (uint32_t)a->copy[b]],
					  buf[a->params.first + b], a->n_elems[b]);
}
