/* Projector (model.md 6.4): two products around an exact (erf) GELU, then a norm. */
#include <string.h>

#include "../../common/op/vit.h"
#include "../linalg/linear.h"
#include "norm_rows.h"

void
k3_vit_project_fwd_cpu_f32(void *const *buf, const struct k3_vit_project_args *a)
{
	float *u = buf[1], *s = buf[2], *active = buf[5];

	k3_linear_fwd(u, a->c, 0, buf[4], a->c, buf, &a->w1, 0, a->c, a->m);
	k3_vec()->gelu_erf(active, u, a->m * a->c);
	k3_linear_fwd(s, a->dt, 0, active, a->c, buf, &a->w2, 0, a->dt, a->m);
	norm_rows(buf[0], buf[3], s, buf[a->norm.first], a->m, a->dt, a->eps);
}

void
k3_vit_project_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_project_args *a)
{
	float *dz = buf[0], *du = buf[1], *ds = buf[2], *dnorm = buf[a->dnorm.first];
	const float *dy = buf[3], *u = buf[4], *s = buf[5], *rstd = buf[6], *w = buf[a->norm.first];

	if (!a->dnorm.accumulate)
		memset(dnorm, 0, a->dt * sizeof(*dnorm));
	for (size_t i = 0; i < a->m; i++)
		k3_rms_bwd_row(ds + i * a->dt, dnorm, dy + i * a->dt, s + i * a->dt, w, rstd[i],
			       a->dt);
	k3_linear_dx(du, a->c, 0, ds, a->dt, buf, &a->w2, 0, a->dt, a->m);
	k3_vec()->gelu_erf_bwd(du, du, u, a->m * a->c);
	k3_linear_dx(dz, a->c, 0, du, a->c, buf, &a->w1, 0, a->c, a->m);
}

void
k3_vit_project_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_project_args *a)
{
	float *active = buf[4];

	k3_linear_dw(buf, &a->w1, 0, a->c, buf[0], a->c, buf[3], a->c, a->m);
	k3_vec()->gelu_erf(active, buf[2], a->m * a->c);
	k3_linear_dw(buf, &a->w2, 0, a->dt, buf[1], a->dt, active, a->c, a->m);
}
