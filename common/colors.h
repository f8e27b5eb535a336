/* One colour per family, 0xRRGGBB, in traces and in pictures of plans.  No red: ViTE paints idle
 * workers red. */
#ifndef K3_COLORS_H
#define K3_COLORS_H
#include "ops.h"

static const unsigned k3_family_color[K3_N_FAMILIES] = {
	[K3_FAMILY_EMBED] = 0x8c6d31, [K3_FAMILY_ATTNRES] = 0x17becf, [K3_FAMILY_KDA] = 0x1f77b4,
	[K3_FAMILY_MLA] = 0x9467bd,   [K3_FAMILY_MOE] = 0x2ca02c,     [K3_FAMILY_GLU] = 0x98df8a,
	[K3_FAMILY_VIT] = 0xe377c2,   [K3_FAMILY_LOSS] = 0xbcbd22,    [K3_FAMILY_OPTIM] = 0xff7f0e,
	[K3_FAMILY_COMM] = 0x4b4b4b,  [K3_FAMILY_IO] = 0xc7c7c7,
};

#endif
