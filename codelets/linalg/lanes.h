/* Which of three compilations of a kernel this processor runs.
 *
 * Kernels that are written with the compiler's vectors have a body in a header, and three files
 * that include it: for any processor, for 256-bit and for 512-bit registers.  The trap: such
 * vectors are lowered for the target of the function that holds them, so a file sets its target
 * ahead of every include.  Only GCC on x86-64 does; elsewhere the first file is all there is.
 */
#ifndef K3_LINALG_LANES_H
#define K3_LINALG_LANES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define K3_HAVE_WIDE_LANES 1
#endif

enum k3_lanes { K3_LANES_BASE, K3_LANES_AVX2, K3_LANES_AVX512 };

/** The widest compilation that this processor runs. */
static inline enum k3_lanes
k3_lanes_of_cpu(void)
{
#ifdef K3_HAVE_WIDE_LANES
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
		return K3_LANES_AVX512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return K3_LANES_AVX2;
#endif
	return K3_LANES_BASE;
}

/* Of the tables NAME_base, NAME_avx2 and NAME_avx512 that of lanes N of enum k3_lanes. */
#ifdef K3_HAVE_WIDE_LANES
#define K3_LANES_TABLE(name, n)                                                                    \
	((n) == K3_LANES_AVX512 ? &name##_avx512 : (n) == K3_LANES_AVX2 ? &name##_avx2 : &name##_base)
#else
#define K3_LANES_TABLE(name, n) ((void)(n), &name##_base)
#endif

#endif
