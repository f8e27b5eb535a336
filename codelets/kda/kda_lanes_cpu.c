/* The loops of a chunk for any processor, and the choice among their three compilations (see
 * ../linalg/lanes.h). */
#define K3_PANEL_LANES 4
#include "kda_lanes_body.h"

const struct k3i_kda_lanes k3i_kda_lanes_base = K3I_LANES_TABLE;

const struct k3i_kda_lanes *
k3i_kda_lanes(void)
{
	enum k3_lanes lanes = k3_lanes_of_cpu();

	return K3_LANES_TABLE(k3i_kda_lanes, lanes);
}
