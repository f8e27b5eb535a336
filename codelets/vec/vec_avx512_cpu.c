/* The loops of vec.h with 512-bit registers; see vec_cpu.c. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#endif
#define K3I_VEC_BYTES 64
#include "vec_table.h"

#ifdef K3_HAVE_WIDE_LANES
const struct k3_vec k3_vec_avx512 = K3I_VEC_TABLE;
#endif
