/* KDA's convolution on CUDA against the CPU kernels: documents of any length, holes, halos. */
#include <criterion/criterion.h>

#include "../../codelets/cuda/kernels.h"
#include "../../common/op/kda.h"
#include "kda_tile.h"

#define TEST(name) Test(cuda_kda_conv, name, .init = cuda_case_need_device, .timeout = 120)
#define COUNT(x) (sizeof(x) / sizeof((x)[0]))

static const struct shape {
	size_t h, k, taps;
	uint32_t group;
	struct kda_tile tile;
} shapes[] = {
	{2, 128, 4, 2, {100, {100}, 0, 0, 0}},
	{3, 32, 4, 2, {131, {40, 1, 2, 3, 60}, 0, 0, 0}},
	{2, 128, 4, 1, {130, {10, 70, 30}, 7, 3, 3}},
	{1, 128, 4, 1, {65, {65}, 0, 1, 2}},
	{2, 24, 4, 2, {2, {2}, 0, 3, 3}},
	{2, 64, 4, 2, {1, {1}, 0, 2, 3}},
	{1, 128, 4, 1, {3, {0}, 0, 3, 3}},
	{1, 128, 4, 1, {0, {0}, 0, 2, 2}},
	{2, 17, 4, 1, {70, {30, 20}, 5, 2, 0}},
	{1, 200, 4, 1, {20, {9, 9}, 0, 0, 1}},
	{1, 16, 3, 1, {40, {22, 18}, 0, 2, 2}},
	{1, 16, 1, 1, {9, {4, 5}, 0, 0, 0}},
	{1, 16, 7, 1, {90, {3, 80}, 4, 6, 6}},
	{2, 8, 64, 2, {150, {20, 120}, 9, 63, 63}},
	{16, 128, 4, 16, {128, {50, 78}, 0, 3, 3}},
	{3, 128, 4, 2, {1000, {1, 2, 3, 4, 5, 300, 6, 7, 1, 1, 200, 460}, 11, 3, 3}},
	{5, 16, 4, 5, {600, {301, 298}, 0, 1, 3}},
	{1, 256, 4, 1, {77, {40, 37}, 0, 0, 2}},
	{2, 8, 4, 1, {40, {17, 2, 19}, 3, 2, 1}},
	{3, 32, 4, 2, {90, {44, 30}, 9, 3, 3}},
	{2, 16, 4, 2, {40, {17, 2, 19}, 0, 2, 1}},
	{16, 128, 4, 16, {2000, {700, 1300}, 0, 3, 3}},
};

static struct k3_kda_conv_args
args_of(const struct shape *s)
{
	return (struct k3_kda_conv_args){.t = s->tile.t,
					 .p = s->h * s->k,
					 .h = s->h,
					 .k = s->k,
					 .taps = s->taps,
					 .l2_eps = 1e-6f,
					 .group_heads = s->group};
}

static void
taps(struct cuda_case *c, struct k3_kda_conv_args *a)
{
	a->cq = cuda_case_weight(c, CUDA_F32, CUDA_R, a->p, a->taps, a->p, 0.5, "cq");
	a->ck = cuda_case_weight(c, CUDA_F32, CUDA_R, a->p, a->taps, a->p, 0.5, "ck");
	a->cv = cuda_case_weight(c, CUDA_F32, CUDA_R, a->p, a->taps, a->p, 0.5, "cv");
}

/* Buffers of the forward pass: 0 qkv, 1 rstd, 2 qkvr, 3 layout, the halos, taps. */
static struct k3_kda_conv_args
forward_case(struct cuda_case *c, const struct shape *s, uint64_t seed)
{
	struct k3_kda_conv_args a = args_of(s);
	size_t width = 3 * a.p, halo = (a.taps - 1) * width;

	cuda_case_begin(c, seed);
	cuda_case_add(c, CUDA_T, CUDA_W, a.t * width, 0, "qkv");
	cuda_case_add(c, CUDA_F32, CUDA_W, a.t * 2 * a.h, 0, "rstd");
	cuda_case_add(c, CUDA_T, CUDA_R, a.t * width, 1, "qkvr");
	kda_tile_add(c, &s->tile);
	a.halo_in = cuda_case_list(c, CUDA_T, CUDA_R, s->tile.hist_in > 0, halo, 1, "halo_in");
	a.halo_out = cuda_case_list(c, CUDA_T, CUDA_W, s->tile.hist_out > 0, halo, 0, "halo_out");
	taps(c, &a);
	return a;
}

TEST(forward_equals_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		struct cuda_case c;
		struct k3_kda_conv_args a = forward_case(&c, &shapes[i], i);
		CUDA_CASE_COMPARE(&c, "kda_conv_fwd", &a, k3_kda_conv_fwd_cpu_f32, kda_conv_fwd, 0);
		cuda_case_end(&c);
	}
}

/* Adds a buffer of the forward case. */
static void
copy_operand(struct cuda_case *c, const struct cuda_case *from, uint32_t i)
{
	const struct cuda_operand *o = &from->operand[i];

	cuda_case_values(c, o->type, CUDA_R, o->elems, o->host, o->name);
}

/* A kernel may take q, k and v from the buffer or form them again, so they have to be those of the
 * inputs. */
static void
backward(const struct shape *s, size_t seed, enum cuda_operand_mode mode)
{
	struct cuda_case c, forward;
	struct k3_kda_conv_args f = forward_case(&forward, s, seed), a = args_of(s);
	size_t width = 3 * a.p, halo = (a.taps - 1) * width;
	struct k3_weight *dw[] = {&a.dcq, &a.dck, &a.dcv}, *w[] = {&a.cq, &a.ck, &a.cv};
	const struct k3_weight *given[] = {&f.cq, &f.ck, &f.cv};
	void *buf[CUDA_CASE_MAX];

	for (size_t i = 0; i < forward.n; i++)
		buf[i] = forward.operand[i].host;
	k3_kda_conv_fwd_cpu_f32(buf, &f);
	cuda_case_begin(&c, seed);
	cuda_case_add(&c, CUDA_T, CUDA_W, a.t * width, 0, "dqkvr");
	for (uint32_t i = 0; i < 4; i++)
		copy_operand(&c, &forward, i);
	a.dqkv.first = (uint32_t)c.n;
	for (size_t h = 0; h < a.h; h += a.group_heads, a.dqkv.n++)
		cuda_case_add(&c, CUDA_T, CUDA_R,
			      a.t * 3 * a.k * (a.h - h < a.group_heads ? a.h - h : a.group_heads),
			      1, "dqkv");
	a.halo_in = (struct k3_list){(uint32_t)c.n, f.halo_in.n};
	if (f.halo_in.n)
		copy_operand(&c, &forward, f.halo_in.first);
	a.dhalo_out =
		cuda_case_list(&c, CUDA_T, CUDA_R, s->tile.hist_out > 0, halo, 1, "dhalo_out");
	a.dhalo_in = cuda_case_list(&c, CUDA_T, CUDA_W, s->tile.hist_in > 0, halo, 0, "dhalo_in");
	for (int j = 0; j < 3; j++)
		*dw[j] = cuda_case_weight(&c, CUDA_F32, mode, a.p, a.taps, a.p, 1, "dc");
	for (int j = 0; j < 3; j++) {
		*w[j] = *given[j];
		w[j]->first = (uint32_t)c.n;
		copy_operand(&c, &forward, given[j]->first);
	}
	CUDA_CASE_COMPARE(&c, "kda_conv_bwd", &a, k3_kda_conv_bwd_cpu_f32, kda_conv_bwd,
			  k3_kda_conv_bwd_cuda_scratch(&a));
	cuda_case_end(&forward);
	cuda_case_end(&c);
}

TEST(backward_equals_the_cpu)
{
	for (size_t i = 0; i < COUNT(shapes); i++) {
		backward(&shapes[i], i, CUDA_W);
		backward(&shapes[i], i, CUDA_RW);
	}
}
