/* A vision tile's patches out of the host's arrays: a band is a run of rows in every frame. */
#include <string.h>

#include "../../common/op/io.h"
#include "../../common/op/vit.h"

/* Pixel v of 0..255 normalised (model.md 6.1). */
static void
normalise(float *out, const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = ((float)bytes[i] / 255.0f - 0.5f) / 0.5f;
}

void
k3_vit_load_cpu(void *const *buf, const struct k3_vit_load_args *a,
		const struct k3_host_batch *batch)
{
	float *out = buf[0];

	memcpy(buf[!a->layout_only], a->layout, a->layout_len * sizeof(int32_t));
	if (a->layout_only)
		return;
	if (a->placeholder) {
		memset(out, 0, a->n * a->pixels * sizeof(*out));
		return;
	}
	for (int32_t p = 0; p < a->layout[K3_VL_PARTS]; p++) {
		const int32_t *part = k3_vit_part(a->layout, p), item = part[K3_VP_ITEM];
		size_t run = k3_vit_frame_patches(part);
		for (int32_t f = 0; f < part[K3_VP_T]; f++) {
			size_t from = k3_vit_item_patch(part, f);
			float *to =
				out + ((size_t)part[K3_VP_PATCH0] + (size_t)f * run) * a->pixels;
			if (batch->item_pixels)
				memcpy(to, batch->item_pixels[item] + from * a->pixels,
				       run * a->pixels * sizeof(*out));
			else
				normalise(to, batch->item_bytes[item] + from * a->pixels,
					  run * a->pixels);
		}
	}
}
