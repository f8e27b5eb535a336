/* Tiles and shapes of the tower's device tests: bands of images and videos, odd widths, weights in
 * blocks. */
#ifndef K3_TESTS_VIT_TILES_H
#define K3_TESTS_VIT_TILES_H
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/vit.h"
#include "cuda_case.h"

/* Grid of an item in patches, and the rows of it that the tile holds. */
struct band {
	int32_t t, h, w, row0, rows;
};

enum { MOST_PARTS = 6 };
static const struct band tiles[][MOST_PARTS] = {
	{{1, 4, 6, 0, 4}, {2, 6, 2, 2, 4}, {1, 2, 2, 0, 2}},
	{{1, 64, 40, 30, 14}},
	{{4, 8, 6, 4, 4}, {1, 2, 2, 0, 2}, {1, 2, 2, 0, 2}, {3, 2, 8, 0, 2}, {1, 6, 10, 0, 6}},
	{{1, 2, 2, 0, 2}},
};

static const struct shape {
	size_t tile, d, dq, h, f, pixels, table_h, table_w, text, block;
} shapes[] = {{0, 10, 24, 3, 20, 27, 4, 6, 12, 7},
	      {1, 64, 96, 3, 128, 588, 16, 16, 96, 1000},
	      {2, 72, 32, 2, 56, 48, 9, 5, 40, 24},
	      {3, 256, 384, 3, 512, 588, 32, 32, 256, 100},
	      {1, 33, 20, 5, 31, 75, 3, 64, 17, 1000}};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

struct tile {
	size_t n, m, len;
	int32_t layout[K3_VL_HEAD + MOST_PARTS * K3_VP_LEN];
};

static inline struct tile
tile_of(const struct band *band)
{
	struct tile tile = {.len = K3_VL_HEAD};
	int32_t parts = 0;

	for (; parts < MOST_PARTS && band[parts].rows; parts++) {
		const struct band *b = &band[parts];
		int32_t patches = b->rows * b->w;
		int32_t part[K3_VP_LEN] = {
			parts,		 b->t,		 b->h, b->w, b->row0, b->rows,
			(int32_t)tile.n, (int32_t)tile.m};
		memcpy(tile.layout + tile.len, part, sizeof(part));
		tile.len += K3_VP_LEN;
		tile.n += (size_t)(b->t * patches);
		tile.m += (size_t)(patches / 4);
	}
	tile.layout[K3_VL_PATCHES] = (int32_t)tile.n;
	tile.layout[K3_VL_MERGED] = (int32_t)tile.m;
	tile.layout[K3_VL_PARTS] = parts;
	return tile;
}

static inline void
add_layout(struct cuda_case *c, const struct tile *tile)
{
	cuda_case_values(c, CUDA_I32, CUDA_R, tile->len, tile->layout, "layout");
}

static inline struct k3_weight
matrix(struct cuda_case *c, size_t rows, size_t cols, size_t block, const char *name)
{
	return cuda_case_weight(c, CUDA_T, CUDA_R, rows, cols, block, 1 / sqrt((double)cols), name);
}

static inline struct k3_weight
vector(struct cuda_case *c, enum cuda_operand_mode mode, size_t d, const char *name)
{
	struct k3_weight w = cuda_case_weight(c, CUDA_F32, mode, 1, d, 1, 1, name);

	if (mode != CUDA_R) /* a sum over rows of terms of either sign; in bf16 of rounded ones */
		cuda_case_tolerance(c, 1e-4, 1e-2);
	return w;
}

static inline struct k3_weight
gradient(struct cuda_case *c, bool adds, size_t rows, size_t cols, size_t block, const char *name)
{
	return cuda_case_weight(c, CUDA_F32, adds ? CUDA_RW : CUDA_W, rows, cols, block, 1, name);
}

/* Factors of a norm as they are for rows of this scale. */
static inline void
add_factors(struct cuda_case *c, size_t n)
{
	float *r = c->operand[cuda_case_add(c, CUDA_F32, CUDA_R, n, 0.1, "rstd")].host;

	for (size_t i = 0; i < n; i++)
		r[i] += 1;
}

/* An output whose values pass through roundings to bf16 on the way (a product's operand or result). */
static inline void
add_out(struct cuda_case *c, size_t elems, const char *name)
{
	cuda_case_add(c, CUDA_T, CUDA_W, elems, 0, name);
	cuda_case_tolerance(c, 1e-5, 1e-2);
}

/* Calls a test for every shape, gradients written and added to. */
static inline void
each_shape(void (*run)(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed))
{
	for (size_t i = 0; i < SHAPES; i++) {
		struct tile tile = tile_of(tiles[shapes[i].tile]);

		run(&shapes[i], &tile, false, i);
		run(&shapes[i], &tile, true, i + SHAPES);
	}
}

#endif
