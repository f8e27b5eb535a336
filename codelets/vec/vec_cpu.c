/* The loops of vec.h for any processor, and the choice among their three compilations.
 *
 * The trap is the one of kda_lanes_cpu.c: generic vectors are lowered for the target of the file
 * that holds them, so each width is a file of its own that sets the target ahead of every include.
 */
#define K3I_VEC_BYTES 16
#include "vec_table.h"

const struct k3_vec k3_vec_base = K3I_VEC_TABLE;

const struct k3_vec *
k3_vec(void)
{
#ifdef K3_VEC_WIDE
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
		return &k3_vec_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &k3_vec_avx2;
#endif
	return &k3_vec_base;
}
