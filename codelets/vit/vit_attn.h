/* The three compilations of the tower's attention (vit_attn_body.h); vit_attn_cpu.c chooses. */
#ifndef K3_VIT_ATTN_H
#define K3_VIT_ATTN_H
#include "../../common/op/vit.h"
#include "../linalg/lanes.h"

struct k3i_vit_attn {
	void (*fwd)(void *const *buf, const struct k3_vit_attn_args *a);
	void (*bwd)(void *const *buf, const struct k3_vit_attn_args *a);
};

extern const struct k3i_vit_attn k3i_vit_attn_base, k3i_vit_attn_avx2, k3i_vit_attn_avx512;

#endif
