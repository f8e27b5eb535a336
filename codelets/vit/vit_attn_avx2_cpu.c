/* The tower's attention with 256-bit registers; see ../linalg/lanes.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#endif
#include "../linalg/lanes.h"

#ifdef K3_HAVE_WIDE_LANES
#define K3_PANEL_LANES 8
#include "vit_attn_body.h"

const struct k3i_vit_attn k3i_vit_attn_avx2 = {attn_fwd, attn_bwd};
#endif
