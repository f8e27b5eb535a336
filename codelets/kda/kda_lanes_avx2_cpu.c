/* The loops over channels with 256-bit registers; see kda_lanes_cpu.c. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#endif
#include "kda_lanes_body.h"

#ifdef K3I_HAVE_WIDE
const struct k3i_kda_lanes k3i_kda_lanes_avx2 = K3I_LANES_TABLE;
#endif
