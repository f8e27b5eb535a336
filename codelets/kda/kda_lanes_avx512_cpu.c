/* The loops over channels with 512-bit registers; see kda_lanes_cpu.c. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#endif
#include "kda_lanes_body.h"

#ifdef K3I_HAVE_WIDE
const struct k3i_kda_lanes k3i_kda_lanes_avx512 = K3I_LANES_TABLE;
#endif
