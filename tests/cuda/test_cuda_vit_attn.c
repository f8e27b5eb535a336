/* The tower's attention on CUDA against the CPU kernels: items in one tile and over several, tiles
 * that share no item, widths of the models and odd ones. */
#include <criterion/criterion.h>
#include <math.h>

#include "../../common/op/vit.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_vit_attn, name, .init = cuda_case_need_device, .timeout = 120)

/* Bands of items: grid (t, h, w), rows row0 .. row0 + rows - 1 of it. */
struct band {
	int32_t item, t, h, w, row0, rows;
};
enum { PARTS = 5, TILES = 4 };
static const struct tile {
	int32_t parts;
	struct band band[PARTS];
} tiles[TILES] = {{3, {{0, 1, 12, 14, 0, 12}, {1, 2, 6, 10, 0, 6}, {2, 1, 20, 22, 0, 4}}},
		  {2, {{2, 1, 20, 22, 4, 16}, {3, 1, 2, 2, 0, 2}}},
		  {5,
		   {{4, 1, 2, 2, 0, 2},
		    {5, 1, 4, 2, 0, 4},
		    {6, 3, 2, 4, 0, 2},
		    {7, 1, 2, 30, 0, 2},
		    {8, 1, 40, 8, 0, 18}}},
		  {1, {{8, 1, 40, 8, 18, 22}}}};

static const struct shape {
	size_t h, hd;
} shapes[] = {{2, 128}, {2, 96}, {3, 64}, {2, 32}, {2, 16}, {3, 21}, {1, 136}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static int32_t
layout_of(int32_t *to, const struct tile *tile)
{
	int32_t n = 0, merged = 0;

	for (int32_t p = 0; p < tile->parts; p++) {
		const struct band *b = &tile->band[p];
		int32_t part[K3_VP_LEN] = {b->item, b->t, b->h, b->w, b->row0, b->rows, n, merged};
		for (int32_t k = 0; k < K3_VP_LEN; k++)
			to[K3_VL_HEAD + p * K3_VP_LEN + k] = part[k];
		n += b->t * b->rows * b->w;
		merged += b->rows * b->w / 4;
	}
	to[K3_VL_PATCHES] = n;
	to[K3_VL_MERGED] = merged;
	to[K3_VL_PARTS] = tile->parts;
	to[K3_VL_MERGED0] = 0;
	return n;
}

static size_t
patches(const struct tile *tile)
{
	int32_t layout[K3_VL_HEAD + PARTS * K3_VP_LEN];

	return (size_t)layout_of(layout, tile);
}

static void
add_layout(struct cuda_case *c, const struct tile *tile)
{
	int32_t layout[K3_VL_HEAD + PARTS * K3_VP_LEN];

	layout_of(layout, tile);
	cuda_case_values(c, CUDA_I32, CUDA_R, k3_vit_layout_len((size_t)tile->parts), layout,
			 "layout");
}

static struct k3_vit_attn_args
args_of(const struct shape *s, const struct tile *tile)
{
	return (struct k3_vit_attn_args){.n = patches(tile),
					 .dq = s->h * s->hd,
					 .h = s->h,
					 .scale = 1.0f / sqrtf((float)s->hd)};
}

/* Queries of a tile against keys of tiles from .. to - 1. */
static void
forward(const struct shape *s, size_t tile, size_t from, size_t to)
{
	struct k3_vit_attn_args a = args_of(s, &tiles[tile]);
	struct cuda_case c;

	cuda_case_begin(&c, tile + s->hd);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.n * a.dq, 0, "o");
	cuda_case_add(&c, CUDA_F32, CUDA_W, a.n * a.h, 0, "lse");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.n * 3 * a.dq, 1, "qkv");
	add_layout(&c, &tiles[tile]);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * k3_vit_attn_fwd_work_floats(a.n, s->hd), 0,
		      "work");
	a.kqkv = (struct k3_list){5, (uint32_t)(to - from)};
	for (size_t i = from; i < to; i++)
		cuda_case_add(&c, CUDA_T, CUDA_R, patches(&tiles[i]) * 3 * a.dq, 1, "kqkv");
	a.klayout = (struct k3_list){5 + a.kqkv.n, a.kqkv.n};
	for (size_t i = from; i < to; i++)
		add_layout(&c, &tiles[i]);
	CUDA_CASE_COMPARE(&c, "vit_attn_fwd", &a, k3_vit_attn_fwd_cpu_f32, vit_attn_fwd, 0);
	cuda_case_end(&c);
}

static void
backward(const struct shape *s, size_t tile, size_t keys, uint32_t init)
{
	struct k3_vit_attn_args a = args_of(s, &tiles[tile]);
	enum cuda_operand_mode mode = init ? CUDA_W : CUDA_RW;
	struct cuda_case c;

	a.nk = patches(&tiles[keys]);
	a.init_dq = a.init_dkv = init;
	cuda_case_begin(&c, tile + keys + s->hd);
	cuda_case_add(&c, CUDA_T, mode, a.n * a.dq, 0.1, "dq");
	cuda_case_add(&c, CUDA_T, mode, a.nk * 2 * a.dq, 0.1, "dkv");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.n * 3 * a.dq, 1, "qkv");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.nk * 3 * a.dq, 1, "kqkv");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.n * a.dq, 1, "do");
	cuda_case_add(&c, CUDA_F32, CUDA_R, a.n * a.h, 0.3, "lse");
	cuda_case_add(&c, CUDA_F32, CUDA_R, a.n * a.h, 0.3, "delta");
	for (size_t i = 0; i < a.n * a.h; i++)
		((float *)c.operand[5].host)[i] += 5.0f;
	add_layout(&c, &tiles[tile]);
	add_layout(&c, &tiles[keys]);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * k3_vit_attn_bwd_work_floats(s->hd), 0, "work");
	CUDA_CASE_COMPARE(&c, "vit_attn_bwd", &a, k3_vit_attn_bwd_cpu_f32, vit_attn_bwd, 0);
	cuda_case_end(&c);
}

TEST(forward_equals_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++) {
		forward(&shapes[i], 0, 0, 2);
		forward(&shapes[i], 1, 0, 2);
		forward(&shapes[i], 2, 2, 4);
		forward(&shapes[i], 3, 0, 4);
	}
}

TEST(gradients_are_written)
{
	for (size_t i = 0; i < SHAPES; i++) {
		backward(&shapes[i], 0, 0, 1);
		backward(&shapes[i], 0, 1, 1);
		backward(&shapes[i], 1, 0, 1);
		backward(&shapes[i], 2, 3, 1);
		backward(&shapes[i], 2, 0, 1);
	}
}

TEST(gradients_are_added)
{
	for (size_t i = 0; i < SHAPES; i++) {
		backward(&shapes[i], 0, 0, 0);
		backward(&shapes[i], 1, 0, 0);
		backward(&shapes[i], 3, 2, 0);
		backward(&shapes[i], 1, 3, 0);
	}
}
