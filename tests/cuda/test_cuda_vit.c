/* The tower's kernels around attention on CUDA against the CPU kernels: patches to queries, keys and
 * values, and the output product. */
#include <criterion/criterion.h>

#include "vit_tiles.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_vit, name, .init = cuda_case_need_device, .timeout = 120)

static void
patch_embedding(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	struct k3_vit_embed_args a = {.n = tile->n,
				      .d = s->d,
				      .pixels = s->pixels,
				      .table_h = s->table_h,
				      .table_w = s->table_w};
	size_t table = s->table_h * s->table_w;
	struct cuda_case c;
	cuda_case_begin(&c, seed);
	add_out(&c, tile->n * s->d, "x");
	cuda_case_add(&c, CUDA_T, CUDA_R, tile->n * s->pixels, 1, "patches");
	add_layout(&c, tile);
	a.wpe = matrix(&c, s->d, s->pixels, s->block, "wpe");
	a.pos = cuda_case_weight(&c, CUDA_T, CUDA_R, table, s->d, table / 3 + 1, 1, "pos");
	CUDA_CASE_COMPARE(&c, "vit_patch_embed_fwd", &a, k3_vit_patch_embed_fwd_cpu_f32,
			  vit_patch_embed_fwd, 0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_R, tile->n * s->d, 1, "dx");
	cuda_case_add(&c, CUDA_T, CUDA_R, tile->n * s->pixels, 1, "patches");
	add_layout(&c, tile);
	a.wpe = gradient(&c, adds, s->d, s->pixels, s->block, "dwpe");
	a.pos = gradient(&c, adds, table, s->d, table / 3 + 1, "dpos");
	CUDA_CASE_COMPARE(&c, "vit_patch_embed_bwd", &a, k3_vit_patch_embed_bwd_cpu_f32,
			  vit_patch_embed_bwd, 0);
	cuda_case_end(&c);
}

TEST(patch_embedding_equal_the_cpu)
{
	each_shape(patch_embedding);
}

static struct k3_vit_qkv_args
qkv_args(const struct shape *s, const struct tile *tile)
{
	return (struct k3_vit_qkv_args){
		.n = tile->n, .d = s->d, .dq = s->dq, .h = s->h, .eps = 1e-5f};
}

static void
queries_keys_and_values(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	struct k3_vit_qkv_args a = qkv_args(s, tile);
	size_t n = tile->n, work = 4 * k3_vit_qkv_work_floats(n, s->d, s->dq / s->h);
	struct cuda_case c;
	if (adds)
		return;
	cuda_case_begin(&c, seed);
	add_out(&c, n * 3 * s->dq, "qkv");
	cuda_case_add(&c, CUDA_F32, CUDA_W, n, 0, "rstd");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "x");
	add_layout(&c, tile);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, work, 0, "work");
	a.norm = vector(&c, CUDA_R, s->d, "norm");
	a.w = matrix(&c, 3 * s->dq, s->d, s->block, "w");
	CUDA_CASE_COMPARE(&c, "vit_qkv_fwd", &a, k3_vit_qkv_fwd_cpu_f32, vit_qkv_fwd, 0);
	cuda_case_end(&c);
}

TEST(queries_keys_and_values_equal_the_cpu)
{
	each_shape(queries_keys_and_values);
}

static void
gradients_of_queries_keys_and_values(const struct shape *s, const struct tile *tile, bool adds,
				     uint64_t seed)
{
	struct k3_vit_qkv_args a = qkv_args(s, tile);
	size_t n = tile->n, work = 4 * k3_vit_qkv_work_floats(n, s->d, s->dq / s->h);
	struct cuda_case c;
	cuda_case_begin(&c, seed);
	add_out(&c, n * s->d, "dx");
	add_out(&c, n * 3 * s->dq, "dp");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->dq, 1, "dq");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * 2 * s->dq, 1, "dkv");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "x");
	add_factors(&c, n);
	add_layout(&c, tile);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, work, 0, "work");
	a.dnorm = vector(&c, adds ? CUDA_RW : CUDA_W, s->d, "dnorm");
	a.norm = vector(&c, CUDA_R, s->d, "norm");
	a.w = matrix(&c, 3 * s->dq, s->d, s->block, "w");
	CUDA_CASE_COMPARE(&c, "vit_qkv_bwd_dx", &a, k3_vit_qkv_bwd_dx_cpu_f32, vit_qkv_bwd_dx,
			  k3_vit_qkv_bwd_dx_cuda_scratch(&a));
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_R, n * 3 * s->dq, 1, "dp");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "x");
	add_factors(&c, n);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * n * s->d, 0, "work");
	a.norm = vector(&c, CUDA_R, s->d, "norm");
	a.w = gradient(&c, adds, 3 * s->dq, s->d, s->block, "dw");
	CUDA_CASE_COMPARE(&c, "vit_qkv_bwd_dw", &a, k3_vit_qkv_bwd_dw_cpu_f32, vit_qkv_bwd_dw, 0);
	cuda_case_end(&c);
}

TEST(gradients_of_queries_keys_and_values_equal_the_cpu)
{
	each_shape(gradients_of_queries_keys_and_values);
}

static void
output_product(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	struct k3_vit_out_args a = {.n = tile->n, .d = s->d, .dq = s->dq, .h = s->h};
	size_t n = tile->n;
	struct cuda_case c;
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, n * s->d, 0, "y");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "x");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->dq, 1, "o");
	a.w = matrix(&c, s->d, s->dq, s->block, "w");
	CUDA_CASE_COMPARE(&c, "vit_out_fwd", &a, k3_vit_out_fwd_cpu_f32, vit_out_fwd, 0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	add_out(&c, n * s->dq, "do");
	cuda_case_add(&c, CUDA_F32, CUDA_W, n * s->h, 0, "delta");
	cuda_case_tolerance(&c, 1e-5, 1e-2); /* of rounded do */
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->dq, 1, "o");
	a.w = matrix(&c, s->d, s->dq, s->block, "w");
	CUDA_CASE_COMPARE(&c, "vit_out_bwd_dx", &a, k3_vit_out_bwd_dx_cpu_f32, vit_out_bwd_dx, 0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->d, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * s->dq, 1, "o");
	a.w = gradient(&c, adds, s->d, s->dq, s->block, "dw");
	CUDA_CASE_COMPARE(&c, "vit_out_bwd_dw", &a, k3_vit_out_bwd_dw_cpu_f32, vit_out_bwd_dw, 0);
	cuda_case_end(&c);
}

TEST(output_product_equal_the_cpu)
{
	each_shape(output_product);
}
