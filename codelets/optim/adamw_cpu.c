/* AdamW with decoupled weight decay on every parameter (model.md 7; Loshchilov & Hutter 2019):
 * the gradient is scaled by the clip coefficient on the way in, the arithmetic is fp32, but
 * the scalars of the step are made in double.  Parameters and moments of bf16 are widened, some
 * at a time, and rounded after the update.  Copies are written in a step without an update too: a
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

/* The same with parameter and moments in bf16. */
static void
update_half(uint16_t *restrict p, uint16_t *restrict m, uint16_t *restrict v,
	    const float *restrict g, size_t n, struct scalars s)
{
	enum { AT_ONCE = 512 };
	float wide[3][AT_ONCE];
	uint16_t *const half[] = {p, m, v};

	for (size_t i = 0; i < n; i += AT_ONCE) {
		size_t some = n - i < AT_ONCE ? n - i : AT_ONCE;
		for (int k = 0; k < 3; k++)
			k3_vec()->from_bf16(wide[k], half[k] + i, some);
		update(wide[0], wide[1], wide[2], g + i, some, s);
		for (int k = 0; k < 3; k++)
			k3_vec()->to_bf16(half[k] + i, wide[k], some);
	}
}

static void
update_block(void *const *buf, const struct k3_adamw_args *a, uint32_t i, struct scalars s)
{
	void *p = buf[a->params.first + i], *m = buf[a->exp_avg.first + i],
	     *v = buf[a->exp_avg_sq.first + i];
	const float *g = buf[a->grads.first + i];

	if (a->half && a->half[i])
		update_half(p, m, v, g, a->n_elems[i], s);
	else
		update(p, m, v, g, a->n_elems[i], s);
}

void
k3_adamw_step_cpu_f32(void *const *buf, const struct k3_adamw_args *a)
{
	const double *out = buf[0], *hyper = buf[1];

	struct scalars s = step_scalars(out, hyper, a);
	for (uint32_t b = 0; b < a->params.n; b++) {
		if (out[K3_OUT_STATE] == K3_STEP_OK)
			update_block(buf, a, b, s);
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
