/* Layouts of tiles for KDA's device tests: documents that begin and end anywhere, holes in them. */
#ifndef K3_TESTS_CUDA_KDA_TILE_H
#define K3_TESTS_CUDA_KDA_TILE_H
#include <stdlib.h>

#include "cuda_case.h"

/* Lengths of documents, ended by 0; the tile's rest is padding. */
struct kda_tile {
	size_t t;
	int length[16];
	int hole_every;	       /* every so many rows a hole, 0: none */
	int hist_in, hist_out; /* above 0: the first document goes on, the last one will */
};

/** Adds the layout; its number in buf[]. */
static inline uint32_t
kda_tile_add(struct cuda_case *c, const struct kda_tile *x)
{
	int32_t *l = calloc(k3_tile_layout_len(x->t), sizeof(*l));
	int32_t *doc = l + K3_TL_HEAD, *order = doc + x->t, *seg = order + x->t;
	uint32_t at;
	size_t row = 0;

	l[K3_TL_ROWS] = (int32_t)x->t;
	l[K3_TL_CONT_IN] = x->hist_in > 0;
	l[K3_TL_CONT_OUT] = x->hist_out > 0;
	l[K3_TL_HIST_IN] = x->hist_in;
	l[K3_TL_HIST_OUT] = x->hist_out;
	for (int d = 0; x->length[d] && row < x->t; d++) {
		seg[l[K3_TL_SEGMENTS]++] = l[K3_TL_VALID];
		for (int i = 0; i < x->length[d] && row < x->t; row++) {
			if (x->hole_every && row % (size_t)x->hole_every == 1)
				continue;
			doc[row] = d + 1;
			order[l[K3_TL_VALID]++] = (int32_t)row;
			i++;
		}
	}
	seg[l[K3_TL_SEGMENTS]] = l[K3_TL_VALID];
	at = cuda_case_values(c, CUDA_I32, CUDA_R, k3_tile_layout_len(x->t), l, "layout");
	free(l);
	return at;
}

#endif
