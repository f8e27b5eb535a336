/* Queries, keys and values of a tower block (model.md 6.3): norm, one product, 2-D rotation.  The
 * work buffer serves twice: normed rows (or their gradient), and the tables of the rotation. */
#include "../../common/op/vit.h"
#include "../linalg/linear.h"
#include "norm_rows.h"
#include "rope.h"

void
k3_vit_qkv_fwd_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a)
{
	float *qkv = buf[0], *rstd = buf[1], *work = buf[4];
	const int32_t *layout = buf[3];
	size_t ld = 3 * a->dq;

	norm_rows(work, rstd, buf[2], buf[a->norm.first], a->n, a->d, a->eps);
	k3_linear_fwd(qkv, ld, 0, work, a->d, buf, &a->w, 0, ld, a->n);
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(layout, p);
		struct rope rope = rope_of(part, a->dq / a->h, 1, work);
		float *row = qkv + (size_t)part[K3_VP_PATCH0] * ld;

		for (size_t i = 0; i < k3_vit_part_patches(part); i++, row += ld)
			rope_turn(&rope, rope_patch(&rope, i), row, row, 2 * a->h);
	}
}

/* The gradient of the product: queries and keys turned back, values as they are. */
static void
turn_back(float *dp, const float *dq, const float *dkv, const int32_t *part, float *work,
	  const struct k3_vit_qkv_args *a)
{
	struct rope rope = rope_of(part, a->dq / a->h, -1, work);
	size_t first = (size_t)part[K3_VP_PATCH0];

	for (size_t i = first; i < first + k3_vit_part_patches(part); i++) {
		const float *factors = rope_patch(&rope, i - first);
		float *to = dp + i * 3 * a->dq;

		rope_turn(&rope, factors, to, dq + i * a->dq, a->h);
		rope_turn(&rope, factors, to + a->dq, dkv + i * 2 * a->dq, a->h);
		memcpy(to + 2 * a->dq, dkv + (2 * i + 1) * a->dq, a->dq * sizeof(*to));
	}
}

void
k3_vit_qkv_bwd_dx_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a)
{
	float *dx = buf[0], *dp = buf[1], *work = buf[8];
	const int32_t *layout = buf[7];
	size_t ld = 3 * a->dq;

	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++)
		turn_back(dp, buf[3], buf[4], k3_vit_part(layout, p), work, a);
	k3_linear_dx(work, a->d, 0, dp, ld, buf, &a->w, 0, ld, a->n);
	norm_rows_back(dx, buf[a->dnorm.first], a->dnorm.accumulate != 0, buf[2], work, buf[5],
		       buf[a->norm.first], buf[6], a->n, a->d);
}

void
k3_vit_qkv_bwd_dw_cpu_f32(void *const *buf, const struct k3_vit_qkv_args *a)
{
	float *work = buf[3];
	size_t ld = 3 * a->dq;

	norm_rows_again(work, buf[1], buf[a->norm.first], buf[2], a->n, a->d);
	k3_linear_dw(buf, &a->w, 0, ld, buf[0], ld, work, a->d, a->n);
}
