/* Initial values (model.md 1.3) from the counter-based generator: an element's value depends on
 * seed, name and its index in the tensor alone. */
#include <math.h>

#include "../../common/op/optim.h"
#include "../../common/rng.h"
#include "../vec/vec.h"

static double
value(const struct k3_param_init_args *a, uint64_t i)
{
	switch ((enum k3_init_kind)a->kind) {
	case K3_INIT_ZERO:
		return 0;
	case K3_INIT_ONE:
		return 1;
	case K3_INIT_NORMAL:
		return a->scale * k3_rng_normal(a->key, i, 2 / a->scale);
	case K3_INIT_NORMAL_FREE:
		return a->scale * k3_rng_normal(a->key, i, 0);
	case K3_INIT_NORMAL_3S:
		return a->scale * k3_rng_normal(a->key, i, 3);
	case K3_INIT_LOG_UNIFORM:
		return log(1 + 15 * k3_rng_uniform(a->key, i));
	}
	return NAN;
}

void
k3_param_init_cpu_f32(void *const *buf, const struct k3_param_init_args *a)
{
	float *block = buf[0];
	uint16_t *half = buf[0];

	for (size_t i = 0; i < a->n_elems; i++) {
		float x = (float)value(a, a->first_elem + i);

		if (a->half)
			k3_vec()->to_bf16(half + a->offset_elems + i, &x, 1);
		else
			block[a->offset_elems + i] = x;
	}
}
