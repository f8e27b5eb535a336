/* The tower's MLP, merge and projector on CUDA against the CPU kernels; features into the text and
 * back; the zeros of a microbatch without images. */
#include <criterion/criterion.h>

#include "../../common/rng.h"
#include "vit_tiles.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_vit_ends, name, .init = cuda_case_need_device, .timeout = 120)

static void
mlp(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	size_t n = tile->n, d = s->d, f = s->f;
	struct k3_vit_mlp_args a = {.n = n, .d = d, .f = f, .eps = 1e-5f};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, n * d, 0, "y");
	cuda_case_tolerance(&c, 1e-5, 1e-2);
	add_out(&c, n * f, "u");
	cuda_case_add(&c, CUDA_F32, CUDA_W, n, 0, "rstd");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "x");
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * n * (d + f), 0, "work");
	a.norm = vector(&c, CUDA_R, d, "norm");
	a.fc0 = matrix(&c, f, d, s->block, "fc0");
	a.fc1 = matrix(&c, d, f, s->block, "fc1");
	CUDA_CASE_COMPARE(&c, "vit_mlp_fwd", &a, k3_vit_mlp_fwd_cpu_f32, vit_mlp_fwd, 0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	add_out(&c, n * d, "dx");
	add_out(&c, n * f, "du");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * f, 2, "u");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "x");
	add_factors(&c, n);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * n * d, 0, "work");
	a.dnorm = vector(&c, adds ? CUDA_RW : CUDA_W, d, "dnorm");
	a.norm = vector(&c, CUDA_R, d, "norm");
	a.fc0 = matrix(&c, f, d, s->block, "fc0");
	a.fc1 = matrix(&c, d, f, s->block, "fc1");
	CUDA_CASE_COMPARE(&c, "vit_mlp_bwd_dx", &a, k3_vit_mlp_bwd_dx_cpu_f32, vit_mlp_bwd_dx,
			  k3_vit_mlp_bwd_dx_cuda_scratch(&a));
	cuda_case_end(&c);
}

static void
mlp_weights(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	size_t n = tile->n, d = s->d, f = s->f;
	struct k3_vit_mlp_args a = {.n = n, .d = d, .f = f, .eps = 1e-5f};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_R, n * f, 1, "du");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * f, 2, "u");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "x");
	add_factors(&c, n);
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * n * (d + f), 0, "work");
	a.norm = vector(&c, CUDA_R, d, "norm");
	a.fc0 = gradient(&c, adds, f, d, s->block, "dfc0");
	a.fc1 = gradient(&c, adds, d, f, s->block, "dfc1");
	CUDA_CASE_COMPARE(&c, "vit_mlp_bwd_dw", &a, k3_vit_mlp_bwd_dw_cpu_f32, vit_mlp_bwd_dw, 0);
	cuda_case_end(&c);
}

TEST(mlp_equals_the_cpu)
{
	each_shape(mlp);
	each_shape(mlp_weights);
}

static void
merge(const struct shape *s, const struct tile *tile, bool adds, uint64_t seed)
{
	size_t n = tile->n, d = s->d;
	struct k3_vit_merge_args a = {
		.n = n, .m = tile->m, .d = d, .merge_h = 2, .merge_w = 2, .eps = 1e-5f};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	add_out(&c, tile->m * 4 * d, "z"); /* mean of normed rows that are rounded */
	cuda_case_add(&c, CUDA_T, CUDA_W, n * d, 0, "xf");
	cuda_case_add(&c, CUDA_F32, CUDA_W, n, 0, "rstd");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "x");
	add_layout(&c, tile);
	a.norm = vector(&c, CUDA_R, d, "norm");
	CUDA_CASE_COMPARE(&c, "vit_merge_fwd", &a, k3_vit_merge_fwd_cpu_f32, vit_merge_fwd, 0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	add_out(&c, n * d, "dx");
	cuda_case_add(&c, CUDA_T, CUDA_W, n * d, 0, "dxf");
	cuda_case_add(&c, CUDA_T, CUDA_R, tile->m * 4 * d, 1, "dz");
	cuda_case_add(&c, CUDA_T, CUDA_R, n * d, 1, "x");
	add_factors(&c, n);
	add_layout(&c, tile);
	a.dnorm = vector(&c, adds ? CUDA_RW : CUDA_W, d, "dnorm");
	a.norm = vector(&c, CUDA_R, d, "norm");
	CUDA_CASE_COMPARE(&c, "vit_merge_bwd", &a, k3_vit_merge_bwd_cpu_f32, vit_merge_bwd,
			  k3_vit_merge_bwd_cuda_scratch(&a));
	cuda_case_end(&c);
}

TEST(merge_equals_the_cpu)
{
	each_shape(merge);
}

static void
project(const struct shape *s, size_t m, bool adds, uint64_t seed)
{
	size_t c4 = s->f, dt = s->text;
	struct k3_vit_project_args a = {.m = m, .c = c4, .dt = dt, .eps = 1e-5f};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	add_out(&c, m * dt, "y");
	cuda_case_add(&c, CUDA_T, CUDA_W, m * c4, 0, "u");
	add_out(&c, m * dt, "s");
	cuda_case_add(&c, CUDA_F32, CUDA_W, m, 0, "rstd");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * c4, 1, "z");
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * m * c4, 0, "work");
	a.w1 = matrix(&c, c4, c4, s->block, "w1");
	a.w2 = matrix(&c, dt, c4, s->block, "w2");
	a.norm = vector(&c, CUDA_R, dt, "norm");
	CUDA_CASE_COMPARE(&c, "vit_project_fwd", &a, k3_vit_project_fwd_cpu_f32, vit_project_fwd,
			  0);
	cuda_case_end(&c);
	cuda_case_begin(&c, seed);
	add_out(&c, m * c4, "dz");
	add_out(&c, m * c4, "du");
	cuda_case_add(&c, CUDA_T, CUDA_W, m * dt, 0, "ds");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * dt, 1, "dy");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * c4, 2, "u");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * dt, 1, "s");
	add_factors(&c, m);
	a.dnorm = vector(&c, adds ? CUDA_RW : CUDA_W, dt, "dnorm");
	a.w1 = matrix(&c, c4, c4, s->block, "w1");
	a.w2 = matrix(&c, dt, c4, s->block, "w2");
	a.norm = vector(&c, CUDA_R, dt, "norm");
	CUDA_CASE_COMPARE(&c, "vit_project_bwd_dx", &a, k3_vit_project_bwd_dx_cpu_f32,
			  vit_project_bwd_dx, k3_vit_project_bwd_dx_cuda_scratch(&a));
	cuda_case_end(&c);
}

static void
project_weights(const struct shape *s, size_t m, bool adds, uint64_t seed)
{
	size_t c4 = s->f, dt = s->text;
	struct k3_vit_project_args a = {.m = m, .c = c4, .dt = dt, .eps = 1e-5f};
	struct cuda_case c;

	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_R, m * c4, 1, "du");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * dt, 1, "ds");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * c4, 2, "u");
	cuda_case_add(&c, CUDA_T, CUDA_R, m * c4, 1, "z");
	cuda_case_add(&c, CUDA_WORK, CUDA_W, 4 * m * c4, 0, "work");
	a.w1 = gradient(&c, adds, c4, c4, s->block, "dw1");
	a.w2 = gradient(&c, adds, dt, c4, s->block, "dw2");
	CUDA_CASE_COMPARE(&c, "vit_project_bwd_dw", &a, k3_vit_project_bwd_dw_cpu_f32,
			  vit_project_bwd_dw, 0);
	cuda_case_end(&c);
}

TEST(projector_equals_the_cpu)
{
	static const size_t rows[] = {0, 1, 37};

	for (size_t i = 0; i < SHAPES; i++)
		for (size_t r = 0; r < 3; r++)
			for (int adds = 0; adds < 2; adds++) {
				project(&shapes[i], rows[r], adds, i);
				project_weights(&shapes[i], rows[r], adds, i);
			}
}

/* Vision tiles of 30, 1 and 50 merged tokens; every second row of the text asks for the next one. */
enum { TILES = 3 };
static const int32_t held[TILES] = {30, 1, 50};

static void
add_vision_layout(struct cuda_case *c, int32_t tile)
{
	int32_t layout[K3_VL_HEAD] = {0};

	layout[K3_VL_MERGED] = held[tile];
	for (int32_t i = 0; i < tile; i++)
		layout[K3_VL_MERGED0] += held[i];
	cuda_case_values(c, CUDA_I32, CUDA_R, K3_VL_HEAD, layout, "layout");
}

/* Rows 0 .. t-1 ask for tokens from `first` on; some beyond the last tile. */
static void
add_map(struct cuda_case *c, size_t t, int32_t first)
{
	int32_t map[200];

	for (size_t i = 0; i < t; i++)
		map[i] = i % 2 ? first++ : -1;
	cuda_case_values(c, CUDA_I32, CUDA_R, t, map, "map");
}

TEST(features_replace_rows)
{
	static const size_t widths[] = {3, 64, 1032};

	for (size_t i = 0; i < 3; i++)
		for (size_t t = 0; t <= 200; t += 100) {
			struct k3_vision_scatter_args a = {.t = t, .d = widths[i]};
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_RW, t * a.d, 1, "p");
			cuda_case_tolerance(&c, 1e-30, 1e-30);
			add_map(&c, t, 5);
			a.y = (struct k3_list){(uint32_t)c.n, TILES};
			for (int32_t k = 0; k < TILES; k++)
				cuda_case_add(&c, CUDA_T, CUDA_R, (size_t)held[k] * a.d, 1, "y");
			a.layout = (struct k3_list){(uint32_t)c.n, TILES};
			for (int32_t k = 0; k < TILES; k++)
				add_vision_layout(&c, k);
			CUDA_CASE_COMPARE(&c, "vision_scatter_fwd", &a,
					  k3_vision_scatter_fwd_cpu_f32, vision_scatter_fwd, 0);
			cuda_case_end(&c);
		}
}

TEST(gradients_of_features_are_gathered)
{
	static const size_t widths[] = {3, 64, 1032};
	static const uint32_t rows[] = {60, 0, 1, 70};

	for (size_t i = 0; i < 3; i++)
		for (int32_t tile = 0; tile < TILES; tile++) {
			struct k3_vision_scatter_args a = {
				.m = (size_t)held[tile], .d = widths[i], .rows = rows};
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_W, a.m * a.d, 0, "dy");
			cuda_case_tolerance(&c, 1e-30, 1e-30);
			add_vision_layout(&c, tile);
			a.dp = (struct k3_list){(uint32_t)c.n, 4};
			for (size_t k = 0; k < 4; k++)
				cuda_case_add(&c, CUDA_T, CUDA_R, rows[k] * a.d, 1, "dp");
			a.map = (struct k3_list){(uint32_t)c.n, 4};
			for (size_t k = 0; k < 4; k++)
				add_map(&c, rows[k], k < 3 ? 0 : 30);
			CUDA_CASE_COMPARE(&c, "vision_scatter_bwd", &a,
					  k3_vision_scatter_bwd_cpu_f32, vision_scatter_bwd, 0);
			cuda_case_end(&c);
		}
}

TEST(gradients_become_zeros_or_stay)
{
	static const size_t elems[] = {5, 1, 70000, 0};

	for (uint32_t adds = 0; adds < 2; adds++) {
		struct k3_zero_args a = {.accumulate = adds, .elems = elems};
		struct cuda_case c;
		cuda_case_begin(&c, adds);
		for (size_t i = 0; i < 4; i++)
			cuda_case_add(&c, CUDA_F32, adds ? CUDA_RW : CUDA_W, elems[i], 1, "grad");
		CUDA_CASE_COMPARE(&c, "zero_grads", &a, k3_zero_grads_cpu_f32, zero_grads, 0);
		cuda_case_end(&c);
	}
}
