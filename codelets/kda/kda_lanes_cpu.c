/* The loops over channels for any processor, and the choice among their three compilations.
 *
 * The trap: generic vectors are lowered for the target of the function that holds them, before
 * inlining and cloning.  So each width is a file of its own that sets the target ahead of every
 * include.
 */
#include "kda_lanes_body.h"

const struct k3i_kda_lanes k3i_kda_lanes_base = K3I_LANES_TABLE;

const struct k3i_kda_lanes *
k3i_kda_lanes(void)
{
#ifdef K3I_HAVE_WIDE
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
		return &k3i_kda_lanes_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &k3i_kda_lanes_avx2;
#endif
	return &k3i_kda_lanes_base;
}
