/* Attention of the tower for any processor, and the choice among its compilations; the algorithm is
 * in vit_attn_body.h. */
#define K3_PANEL_LANES 4
#include "vit_attn_body.h"

const struct k3i_vit_attn k3i_vit_attn_base = {attn_fwd, attn_bwd};

static const struct k3i_vit_attn *
widest(void)
{
	enum k3_lanes lanes = k3_lanes_of_cpu();

	return K3_LANES_TABLE(k3i_vit_attn, lanes);
}

void
k3_vit_attn_fwd_cpu_f32(void *const *buf, const struct k3_vit_attn_args *a)
{
	widest()->fwd(buf, a);
}

void
k3_vit_attn_bwd_cpu_f32(void *const *buf, const struct k3_vit_attn_args *a)
{
	widest()->bwd(buf, a);
}
