/* Where a patch lies, on the device: parts of a tile are in ascending order of their first patch. */
#ifndef K3_VIT_VIT_CUH
#define K3_VIT_VIT_CUH
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

struct place {
	const int32_t *part;	/* or NULL: the patch is in none */
	size_t frame, row, col; /* row in the band */
};

static __device__ __forceinline__ const int32_t *
part_at(const int32_t *layout, int32_t part)
{
	return layout + K3_VL_HEAD + (ptrdiff_t)part * K3_VP_LEN;
}

static __device__ __forceinline__ struct place
place_of(const int32_t *layout, size_t patch)
{
	int32_t low = 0, high = layout[K3_VL_PARTS]; /* the part is one of low .. high - 1 */

	while (high - low > 1) {
		int32_t mid = low + (high - low) / 2;
		if ((size_t)part_at(layout, mid)[K3_VP_PATCH0] <= patch)
			low = mid;
		else
			high = mid;
	}
	const int32_t *part = part_at(layout, low);
	if (high == 0 || (size_t)part[K3_VP_PATCH0] > patch)
		return {nullptr, 0, 0, 0};
	/* a division of 64 bits takes a hundred instructions */
	uint32_t i = (uint32_t)patch - (uint32_t)part[K3_VP_PATCH0], cols = (uint32_t)part[K3_VP_W],
		 frame = (uint32_t)part[K3_VP_ROWS] * cols;
	if (i >= (size_t)part[K3_VP_T] * frame)
		return {nullptr, 0, 0, 0};
	return {part, i / frame, i % frame / cols, i % cols};
}

#endif
