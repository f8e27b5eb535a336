/* The loops of a chunk for any processor, and the choice among their three compilations (see
 * ../linalg/lanes.h). */
#define K3_PANEL_LANES 4
#include "kda_lanes_body.h"

const struct k3i_kda_lanes k3i_kda_lanes_base = K3I_LANES_TABLE;

const struct k3i_kda_lanes *
k3i_kda_lanes(void)
{
	switch (k3_lanes_of_cpu()) {
#ifdef K3_HAVE_WIDE_LANES
	case K3_LANES_AVX512:
		return &k3i_kda_lanes_avx512;
	case K3_LANES_AVX2:
		return &k3i_kda_lanes_avx2;
#endif
	default:
		return &k3i_kda_lanes_base;
	}
}
