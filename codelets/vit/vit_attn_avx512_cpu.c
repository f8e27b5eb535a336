/* The tower's attention with 512-bit registers; see ../linalg/lanes.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#endif
#include "../linalg/lanes.h"

#ifdef K3_HAVE_WIDE_LANES
#define K3_PANEL_LANES 16
#include "vit_attn_body.h"

const struct k3i_vit_attn k3i_vit_attn_avx512 = {attn_fwd, attn_bwd};
#endif
