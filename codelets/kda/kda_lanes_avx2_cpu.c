/* The loops of a chunk with 256-bit registers; see ../linalg/lanes.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#endif
#include "../linalg/lanes.h"

#ifdef K3_HAVE_WIDE_LANES
#define K3_PANEL_LANES 8
#include "kda_lanes_body.h"

const struct k3i_kda_lanes k3i_kda_lanes_avx2 = K3I_LANES_TABLE;
#endif
