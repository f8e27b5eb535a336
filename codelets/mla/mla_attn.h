/* The three compilations of the attention kernel (mla_attn_body.h) and the choice among them
 * (mla_attn_cpu.c). */
#ifndef K3_MLA_ATTN_H
#define K3_MLA_ATTN_H
#include "../../common/op/mla.h"
#include "../linalg/lanes.h"

struct k3i_mla_attn {
	void (*fwd)(void *const *buf, const struct k3_mla_attn_args *a);
	void (*bwd)(void *const *buf, const struct k3_mla_attn_args *a);
};

extern const struct k3i_mla_attn k3i_mla_attn_base, k3i_mla_attn_avx2, k3i_mla_attn_avx512;

#endif
