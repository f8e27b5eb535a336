/* Document-causal attention on CUDA against the CPU kernels: all fast widths and odd ones,
 * documents that begin and end inside blocks, holes and padding with NaN, several key tiles,
 * ranges merged. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "../../common/op/mla.h"
#include "../fixture.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_attn, name, .init = cuda_case_need_device, .timeout = 120)

enum { ROWS = 700, DOCS = 6, HOLES = 10 };

static const struct shape {
	size_t h, h0, h1, nope, rope, v;
} shapes[] = {{2, 0, 2, 128, 64, 128}, {4, 1, 3, 64, 32, 64}, {3, 0, 2, 32, 16, 32},
	      {2, 0, 2, 128, 0, 128},  {2, 0, 2, 40, 9, 35},  {3, 1, 3, 20, 4, 16},
	      {2, 0, 2, 7, 1, 5},      {1, 0, 1, 150, 58, 90}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* First rows of documents; the last one ends at row 690. */
static const size_t starts[DOCS] = {0, 130, 147, 148, 256, 500},
		    holes[HOLES] = {7, 31, 129, 200, 255, 256, 400, 401, 415, 510};

/* A query tile, and the bounds of key tiles; all of them end at the query tile's end or before. */
static const struct cut {
	size_t q0, q1, n_keys, key[4];
	uint32_t one; /* the stream is one document */
} cuts[] = {{0, 300, 1, {0, 300}, 0},	     {0, 256, 1, {0, 256}, 1},
	    {300, 700, 2, {0, 300, 700}, 0}, {384, 640, 3, {0, 128, 384, 640}, 1},
	    {149, 150, 1, {0, 150}, 0},	     {600, 700, 1, {0, 120}, 0}};
enum { CUTS = sizeof(cuts) / sizeof(cuts[0]) };

static int32_t
document(size_t row, const struct cut *cut)
{
	int32_t doc = 0;

	if (cut->one)
		return 5;
	for (size_t i = 0; i < HOLES; i++)
		if (holes[i] == row)
			return 0;
	for (size_t d = 0; d < DOCS && row < 690; d++)
		doc = row >= starts[d] ? (int32_t)(3 * d + 2) : doc;
	return doc;
}

static uint32_t
add_layout(struct cuda_case *c, const struct cut *cut, size_t from, size_t to)
{
	int32_t doc[ROWS];

	for (size_t i = from; i < to; i++)
		doc[i - from] = document(i, cut);
	int32_t *layout = fixture_layout(doc, to - from, (int)from, 0, 0, 0, 0);
	uint32_t at = cuda_case_values(c, CUDA_I32, CUDA_R, k3_tile_layout_len(to - from), layout,
				       "layout");
	free(layout);
	return at;
}

/* Rows from .. without a document become NaN. */
static void
spoil(struct cuda_case *c, uint32_t operand, const struct cut *cut, size_t from, size_t to)
{
	struct cuda_operand *o = &c->operand[operand];
	size_t width = o->elems / (to - from);

	for (size_t i = 0; i < o->elems; i++)
		if (document(from + i / width, cut) == 0)
			((float *)o->host)[i] = NAN;
}

static struct k3_mla_attn_args
args_of(const struct shape *s, const struct cut *cut)
{
	struct k3_mla_attn_args a = {.t = cut->q1 - cut->q0,
				     .h = s->h,
				     .nope = s->nope,
				     .rope = s->rope,
				     .v = s->v,
				     .h0 = (uint32_t)s->h0,
				     .h1 = (uint32_t)s->h1,
				     .first = 1,
				     .scale = 1.0f / sqrtf((float)(s->nope + s->rope))};

	for (size_t i = 0; i < cut->n_keys; i++)
		if (cut->key[i + 1] - cut->key[i] > a.tk_max)
			a.tk_max = cut->key[i + 1] - cut->key[i];
	return a;
}

static size_t
key_width(const struct shape *s)
{
	return s->h * (s->nope + s->v) + s->rope;
}

/* Earlier ranges: every fifth query has seen no key yet. */
static void
earlier(struct cuda_case *c, const struct shape *s, size_t t)
{
	float *o = c->operand[0].host, *lse = c->operand[1].host;
	size_t hg = s->h1 - s->h0;

	for (size_t i = 0; i < t * hg; i++) {
		if (i / hg % 5)
			continue;
		lse[i] = -INFINITY;
		for (size_t k = 0; k < s->v; k++)
			o[i * s->v + k] = 0;
	}
}

/* 0, or on how few processors the bf16 kernels are to believe they run, so that each has many items
 * of work. */
static uint32_t processors;

static void
fwd_bf16(void *const *buf, const void *args, const struct k3_cuda *cuda)
{
	struct k3_cuda few = *cuda;

	few.processors = processors ? processors : cuda->processors;
	k3_mla_attn_fwd_cuda_bf16(buf, args, &few);
}

static void
bwd_bf16(void *const *buf, const void *args, const struct k3_cuda *cuda)
{
	struct k3_cuda few = *cuda;

	few.processors = processors ? processors : cuda->processors;
	k3_mla_attn_bwd_cuda_bf16(buf, args, &few);
}

static void
forward(const struct shape *s, const struct cut *cut, uint32_t first)
{
	struct k3_mla_attn_args a = args_of(s, cut);
	size_t hg = s->h1 - s->h0;
	enum cuda_operand_mode mode = first ? CUDA_W : CUDA_RW;
	struct cuda_case c;

	a.first = first;
	cuda_case_begin(&c, cut->q0 + s->v);
	cuda_case_add(&c, CUDA_T, mode, a.t * hg * s->v, 1, "o");
	cuda_case_add(&c, CUDA_F32, mode, a.t * hg, 2, "lse");
	if (!first)
		earlier(&c, s, a.t);
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * s->h * (s->nope + s->rope), 1.5, "q");
	spoil(&c, 2, cut, cut->q0, cut->q1);
	add_layout(&c, cut, cut->q0, cut->q1);
	cuda_case_add(&c, CUDA_WORK, CUDA_W,
		      4 * k3_mla_attn_fwd_work_floats(a.tk_max, s->nope, s->rope, s->v), 0, "work");
	a.kv = (struct k3_list){5, (uint32_t)cut->n_keys};
	for (size_t i = 0; i < cut->n_keys; i++)
		spoil(&c,
		      cuda_case_add(&c, CUDA_T, CUDA_R,
				    (cut->key[i + 1] - cut->key[i]) * key_width(s), 1, "kv"),
		      cut, cut->key[i], cut->key[i + 1]);
	a.klayout = (struct k3_list){5 + a.kv.n, a.kv.n};
	for (size_t i = 0; i < cut->n_keys; i++)
		add_layout(&c, cut, cut->key[i], cut->key[i + 1]);
	cuda_case_compare(&c, "mla_attn_fwd", &a,
			  (cuda_case_cpu *)(void (*)(void))k3_mla_attn_fwd_cpu_f32,
			  (cuda_case_cuda *)(void (*)(void))k3_mla_attn_fwd_cuda_f32, fwd_bf16, 0);
	cuda_case_end(&c);
}

/* Gradients of key tile j; the log-sum-exp is about what the scores give. */
static void
backward(const struct shape *s, const struct cut *cut, size_t j, uint32_t init)
{
	struct k3_mla_attn_args a = args_of(s, cut);
	size_t hg = s->h1 - s->h0, kq = s->nope + s->rope, k0 = cut->key[j],
	       tk = cut->key[j + 1] - k0;
	enum cuda_operand_mode mode = init ? CUDA_W : CUDA_RW;
	struct cuda_case c;

	a.init_dq = a.init_dkv = init;
	cuda_case_begin(&c, cut->q0 + s->v + j);
	cuda_case_add(&c, CUDA_T, mode, a.t * hg * kq, 0.1, "dq");
	cuda_case_add(&c, CUDA_T, mode, tk * (hg * (s->nope + s->v) + s->rope), 0.1, "dkv");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * s->h * kq, 1.5, "q");
	cuda_case_add(&c, CUDA_T, CUDA_R, tk * key_width(s), 1, "kv");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * hg * s->v, 1, "da");
	cuda_case_add(&c, CUDA_F32, CUDA_R, a.t * hg, 0.3, "lse");
	cuda_case_add(&c, CUDA_F32, CUDA_R, a.t * hg, 0.3, "delta");
	for (size_t i = 0; i < a.t * hg; i++)
		((float *)c.operand[5].host)[i] +=
			1.0f + logf((float)(cut->q0 + i / hg - k0 / 2 + 1));
	for (uint32_t i = 2; i < 7; i++)
		spoil(&c, i, cut, i == 3 ? k0 : cut->q0, i == 3 ? k0 + tk : cut->q1);
	add_layout(&c, cut, cut->q0, cut->q1);
	add_layout(&c, cut, k0, k0 + tk);
	cuda_case_add(&c, CUDA_WORK, CUDA_W,
		      4 * k3_mla_attn_bwd_work_floats(a.tk_max, s->nope, s->rope, s->v), 0, "work");
	cuda_case_compare(&c, "mla_attn_bwd", &a,
			  (cuda_case_cpu *)(void (*)(void))k3_mla_attn_bwd_cpu_f32,
			  (cuda_case_cuda *)(void (*)(void))k3_mla_attn_bwd_cuda_f32, bwd_bf16,
			  k3_mla_attn_bwd_cuda_scratch(&a));
	cuda_case_end(&c);
}

TEST(forward_equals_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (size_t k = 0; k < CUTS; k++)
			forward(&shapes[i], &cuts[k], 1);
}

TEST(a_further_range_is_merged)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (size_t k = 0; k < CUTS; k++)
			forward(&shapes[i], &cuts[k], 0);
}

TEST(gradients_are_written)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (size_t k = 0; k < CUTS; k++)
			backward(&shapes[i], &cuts[k], cuts[k].n_keys - 1, 1);
}

TEST(gradients_are_added)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (size_t k = 0; k < CUTS; k++)
			backward(&shapes[i], &cuts[k], 0, 0);
}

/* A multiprocessor does one item of work after another; 1 and 3 of them leave other remainders. */
TEST(items_follow_each_other)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (size_t k = 0; k < CUTS; k++) {
			processors = i % 2 ? 1 : 3;
			forward(&shapes[i], &cuts[k], k % 2);
			backward(&shapes[i], &cuts[k], cuts[k].n_keys - 1, k % 2);
		}
}

/* More key tiles than one launch takes. */
TEST(many_key_tiles_are_merged)
{
	enum { TILES = 40, TILE = 8, T = TILES * TILE };
	const struct shape *s = &shapes[1];
	struct cut cut = {T - TILE, T, 1, {0, TILE}, 1};
	struct k3_mla_attn_args a = args_of(s, &cut);
	size_t hg = s->h1 - s->h0;
	struct cuda_case c;

	cuda_case_begin(&c, 9);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * hg * s->v, 1, "o");
	cuda_case_add(&c, CUDA_F32, CUDA_W, a.t * hg, 1, "lse");
	cuda_case_add(&c, CUDA_T, CUDA_R, a.t * s->h * (s->nope + s->rope), 1.5, "q");
	add_layout(&c, &cut, cut.q0, cut.q1);
	cuda_case_add(&c, CUDA_WORK, CUDA_W,
		      4 * k3_mla_attn_fwd_work_floats(a.tk_max, s->nope, s->rope, s->v), 0, "work");
	a.kv = cuda_case_list(&c, CUDA_T, CUDA_R, TILES, TILE * key_width(s), 1, "kv");
	a.klayout = (struct k3_list){(uint32_t)c.n, TILES};
	for (size_t i = 0; i < TILES; i++)
		add_layout(&c, &cut, i * TILE, (i + 1) * TILE);
	CUDA_CASE_COMPARE(&c, "mla_attn_fwd, 40 tiles", &a, k3_mla_attn_fwd_cpu_f32, mla_attn_fwd,
			  0);
	cuda_case_end(&c);
}
