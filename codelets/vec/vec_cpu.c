/* The loops of vec.h for any processor, and the choice among their three compilations (see
 * ../linalg/lanes.h). */
#define K3I_VEC_BYTES 16
#include "vec_table.h"

const struct k3_vec k3_vec_base = K3I_VEC_TABLE;

const struct k3_vec *
k3_vec(void)
{
	switch (k3_lanes_of_cpu()) {
#ifdef K3_HAVE_WIDE_LANES
	case K3_LANES_AVX512:
		return &k3_vec_avx512;
	case K3_LANES_AVX2:
		return &k3_vec_avx2;
#endif
	default:
		return &k3_vec_base;
	}
}
