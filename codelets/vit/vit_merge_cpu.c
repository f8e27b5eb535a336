/* Final norm, mean over frames, 2x2 neighbours side by side (model.md 6.4).  The trap: the merge
 * puts neighbours one after the other, it does not average them; only frames are averaged. */
#include <string.h>

#include "../../common/op/vit.h"
#include "norm_rows.h"

/* Where patch i of a part goes: offset of its d floats among the tile's merged tokens. */
static size_t
merged_at(const struct k3_vit_merge_args *a, const int32_t *part, size_t i)
{
	size_t cols = (size_t)part[K3_VP_W], row = i / cols % (size_t)part[K3_VP_ROWS],
	       col = i % cols;
	size_t token = (size_t)part[K3_VP_MERGED0] + row / a->merge_h * (cols / a->merge_w) +
		       col / a->merge_w;
	size_t neighbour = row % a->merge_h * a->merge_w + col % a->merge_w;

	return (token * a->merge_h * a->merge_w + neighbour) * a->d;
}

void
k3_vit_merge_fwd_cpu_f32(void *const *buf, const struct k3_vit_merge_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const int32_t *layout = buf[4];
	float *z = buf[0], *xf = buf[1];

	norm_rows(xf, buf[2], buf[3], buf[a->norm.first], a->n, a->d, a->eps);
	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(layout, p);
		size_t first = (size_t)part[K3_VP_PATCH0], frame = k3_vit_frame_patches(part);
		for (size_t i = 0; i < k3_vit_part_patches(part); i++) {
			const float *in = xf + (first + i) * a->d;
			float *out = z + merged_at(a, part, i), share = 1.0f / (float)part[K3_VP_T];
			if (i < frame)
				vec->scale(out, share, in, a->d);
			else
				vec->axpy(out, share, in, a->d);
		}
	}
}

void
k3_vit_merge_bwd_cpu_f32(void *const *buf, const struct k3_vit_merge_args *a)
{
	const struct k3_vec *vec = k3_vec();
	const int32_t *layout = buf[5];
	float *dx = buf[0], *dxf = buf[1], *dnorm = buf[a->dnorm.first];
	const float *dz = buf[2], *x = buf[3], *w = buf[a->norm.first], *rstd = buf[4];

	for (int32_t p = 0; p < layout[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(layout, p);
		size_t first = (size_t)part[K3_VP_PATCH0], n = k3_vit_part_patches(part);
		for (size_t i = 0; i < n; i++)
			vec->scale(dxf + (first + i) * a->d, 1.0f / (float)part[K3_VP_T],
				   dz + merged_at(a, part, i), a->d);
	}
	if (!a->dnorm.accumulate)
		memset(dnorm, 0, a->d * sizeof(*dnorm));
	for (size_t i = 0; i < a->n; i++)
		k3_rms_bwd_row(dx + i * a->d, dnorm, dxf + i * a->d, x + i * a->d, w, rstd[i],
			       a->d);
}
