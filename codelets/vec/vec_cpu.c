/* The loops of vec.h for any processor, and the choice among their three compilations (see
 * ../linalg/lanes.h). */
#define K3I_VEC_BYTES 16
#include "vec_table.h"

const struct k3_vec k3_vec_base = K3I_VEC_TABLE;

const struct k3_vec *
k3_vec(void)
{
	enum k3_lanes lanes = k3_lanes_of_cpu();

	return K3_LANES_TABLE(k3_vec, lanes);
}
