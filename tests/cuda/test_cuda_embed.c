/* Token embedding on CUDA against the CPU kernels.  Sums have the CPU's order, so they are equal bit by
 * bit, in bf16 too, where the summands are the same. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "../../common/op/embed.h"
#include "../../common/rng.h"
#include "cuda_case.h"
#include "../../codelets/cuda/kernels.h"

#define TEST(name) Test(cuda_embed, name, .init = cuda_case_need_device, .timeout = 120)

static const struct shape {
	size_t t, d, vocab, block, ids; /* ids: how many different ones occur */
} shapes[] = {{0, 16, 20, 20, 20},	  {1, 8, 3, 2, 3},
	      {33, 31, 50, 7, 9},	  {700, 72, 300, 128, 300},
	      {3000, 64, 5000, 700, 400}, {900, 24, 40, 40, 1},
	      {515, 1024, 900, 250, 60},  {64, 2049, 11, 4, 5}};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void
add_ids(struct cuda_case *c, const struct shape *s)
{
	int32_t *ids = malloc((s->t + 1) * sizeof(*ids));

	for (size_t i = 0; i < s->t; i++) /* spread over the whole vocabulary */
		ids[i] = (int32_t)(k3_rng_bits(7, i) % s->ids * s->vocab / s->ids);
	cuda_case_values(c, CUDA_I32, CUDA_R, s->t, ids, "ids");
	free(ids);
}

static struct k3_list
add_map(struct cuda_case *c, const struct shape *s, bool present)
{
	struct k3_list list = {(uint32_t)c->n, present};
	int32_t *map = malloc((s->t + 1) * sizeof(*map));

	for (size_t i = 0; i < s->t; i++)
		map[i] = k3_rng_bits(9, i) % 3 ? -1 : (int32_t)i;
	if (present)
		cuda_case_values(c, CUDA_I32, CUDA_R, s->t, map, "map");
	free(map);
	return list;
}

TEST(rows_are_copied)
{
	for (size_t i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		struct k3_embed_args a = {.t = s->t, .d = s->d};
		struct cuda_case c;
		cuda_case_begin(&c, i);
		cuda_case_add(&c, CUDA_T, CUDA_W, s->t * s->d, 0, "y");
		cuda_case_tolerance(&c, 1e-30, 1e-30);
		add_ids(&c, s);
		a.table =
			cuda_case_weight(&c, CUDA_T, CUDA_R, s->vocab, s->d, s->block, 1, "table");
		CUDA_CASE_COMPARE(&c, "embed_fwd", &a, k3_embed_fwd_cpu_f32, embed_fwd, 0);
		cuda_case_end(&c);
	}
}

TEST(gradients_have_the_bits_of_the_cpu)
{
	for (size_t i = 0; i < SHAPES; i++)
		for (int variant = 0; variant < 4; variant++) {
			const struct shape *s = &shapes[i];
			struct k3_embed_args a = {.t = s->t, .d = s->d};
			struct cuda_case c;
			cuda_case_begin(&c, i);
			cuda_case_add(&c, CUDA_T, CUDA_R, s->t * s->d, 1, "dy");
			add_ids(&c, s);
			a.map = add_map(&c, s, variant & 1);
			a.table = cuda_case_weight(&c, CUDA_F32, variant & 2 ? CUDA_RW : CUDA_W,
						   s->vocab, s->d, s->block, 1, "dtable");
			for (size_t k = a.table.first; k < c.n; k++)
				c.operand[k].tolerance_f32 = c.operand[k].tolerance_bf16 = 1e-30;
			CUDA_CASE_COMPARE(&c, "embed_bwd", &a, k3_embed_bwd_cpu_f32, embed_bwd,
					  k3_embed_bwd_cuda_scratch(&a));
			cuda_case_end(&c);
		}
}
