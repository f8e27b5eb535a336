/* The loops of vec.h with 256-bit registers; see vec_cpu.c. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2,fma")
#endif
#define K3I_VEC_BYTES 32
#include "vec_table.h"

#ifdef K3_HAVE_WIDE_LANES
const struct k3_vec k3_vec_avx2 = K3I_VEC_TABLE;
#endif
