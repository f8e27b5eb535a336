/* What the chunk and the recurrent kernels must both do; each check takes the two kernels. */
#ifndef K3_TESTS_KDA_SUITE_H
#define K3_TESTS_KDA_SUITE_H
#include "kda_case.h"

/** Golden operator file, all lengths: 2e-5 forward, 1e-4 backward. */
void kda_check_golden(kda_kernel *fwd, kda_kernel *bwd);
/** Oracle dumps with key width unlike value width, and width 1. */
void kda_check_shapes(kda_kernel *fwd, kda_kernel *bwd);
/** Oracle dump of a layer: documents of 1, 2, 3, 4 tokens, holes, gates from their inputs, two head
 * groups. */
void kda_check_layer(kda_kernel *fwd, kda_kernel *bwd);
/** Closed forms with k = q = e0 and a two-channel case. */
void kda_check_running_value(kda_kernel *fwd, float g);
void kda_check_half_steps(kda_kernel *fwd);
void kda_check_two_channels(kda_kernel *fwd);
/** Gate inputs -1e4, 0, 1e4 give decays exp(-0), exp(-2.5), exp(-5). */
void kda_check_saturated_gates(kda_kernel *fwd, kda_kernel *bwd);
/** Documents of 3 and 2 tokens restart; the first one's last token does not reach the second, to
 * the bit. */
void kda_check_documents(kda_kernel *fwd);
/** Empty segments, also leading, and a tile of nothing else, which hands its states on. */
void kda_check_empty_segments(kda_kernel *fwd, kda_kernel *bwd);
/** A hole inside a document is as if its row were not there, to the bit. */
void kda_check_hole(kda_kernel *fwd, kda_kernel *bwd);
/** A stream cut in tiles of `rows` with states handed on equals the whole. */
void kda_check_tiles(kda_kernel *fwd, kda_kernel *bwd, size_t t, size_t rows);

#endif
