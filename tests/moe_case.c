#include "moe_case.h"

#include <string.h>

#include "held.h"

void
moe_outputs(struct moe_case *l)
{
	size_t tk = l->t * l->k, e = l->n_experts;

	l->route = held_out_ints(k3_route_len(l->t, e, l->k));
	l->routew = held_out(k3_routew_len(l->t, e, l->k));
	l->zs = held_out(tk * l->r);
	l->gu = held_out(tk * 2 * l->f);
	l->ys = held_out(tk * l->r);
	l->y = held_out(l->t * l->r);
	l->p_out = held_out(l->t * l->d);
	l->dys = held_out(tk * l->r);
	l->dgu = held_out(tk * 2 * l->f);
	l->dzs = held_out(tk * l->r);
	l->dwt = held_out(tk);
	l->dx = held_copy(l->shared, l->t * l->d);
	l->dz = held_out(l->t * l->r);
	l->dl = held_out(l->t * e);
	l->dnorm = held_out(l->r);
	l->dwr = held_out(e * l->d);
	l->dwdown = held_out(l->r * l->d);
	l->dw13 = held_out(e * 2 * l->f * l->r);
	l->dw2 = held_out(e * l->r * l->f);
	l->dwup = held_out(l->d * l->r);
}

void
moe_one_group(struct moe_case *l)
{
	l->blocks = 1;
	l->scale = 1;
	l->n_groups = 1;
	l->edge[0] = 0;
	l->edge[1] = (uint32_t)l->n_experts;
}

struct moe_case
moe_golden(void)
{
	struct moe_case l = {.t = 11, .d = 10, .r = 7, .f = 5, .n_experts = 9, .k = 3};
	float **in[] = {&l.x,	 &l.wr,	 &l.bias, &l.wdown,  &l.w13, &l.w2,
			&l.norm, &l.wup, &l.p_in, &l.shared, &l.dp};
	const char *name[] = {"chain.x",    "chain.wr",	    "chain.bias", "chain.wdown",
			      "chain.w13",  "chain.w2",	    "chain.norm", "chain.wup",
			      "chain.p_in", "chain.shared", "chain.dp"};

	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		*in[i] = held_input("moe", name[i]);
	moe_one_group(&l);
	moe_outputs(&l);
	return l;
}

/* A layer of random numbers for tests that compare it with itself or look for exact values. */
struct moe_case
moe_random(size_t t, size_t n_experts, size_t k)
{
	struct moe_case l = {.t = t, .d = 6, .r = 4, .f = 3, .n_experts = n_experts, .k = k};

	l.x = held_random(1, t * l.d, -1, 1);
	l.wr = held_random(2, n_experts * l.d, -1, 1);
	l.bias = held_random(3, n_experts, 0, 0);
	l.wdown = held_random(4, l.r * l.d, -1, 1);
	l.w13 = held_random(5, n_experts * 2 * l.f * l.r, -1, 1);
	l.w2 = held_random(6, n_experts * l.r * l.f, -1, 1);
	l.norm = held_random(7, l.r, 0.5, 1.5);
	l.wup = held_random(8, l.d * l.r, -1, 1);
	l.p_in = held_random(9, t * l.d, -1, 1);
	l.shared = held_random(10, t * l.d, -1, 1);
	l.dp = held_random(11, t * l.d, -1, 1);
	moe_one_group(&l);
	moe_outputs(&l);
	return l;
}

static size_t
block_rows(const struct moe_case *l, size_t rows)
{
	return (rows + l->blocks - 1) / l->blocks;
}

static struct k3_weight
push_blocks(struct held_task *task, const struct moe_case *l, float *x, size_t rows, size_t cols,
	    int accumulate)
{
	return held_push_weight(task, x, rows, cols, block_rows(l, rows), accumulate);
}

void
moe_route(struct moe_case *l)
{
	struct held_task task = {{l->route, l->routew, l->x}, 3};
	struct k3_moe_route_args a = {.t = l->t,
				      .d = l->d,
				      .n_experts = l->n_experts,
				      .k = l->k,
				      .sum_eps = 1e-20f,
				      .scale = l->scale};

	a.forced = held_push_list(&task, l->forced);
	a.wr = push_blocks(&task, l, l->wr, l->n_experts, l->d, 0);
	a.bias = held_push_weight(&task, l->bias, 1, l->n_experts, 1, 0);
	a.n_buf = task.n;
	k3_moe_route_fwd_cpu_f32(task.buf, &a);
}

static struct k3_moe_dispatch_args
dispatch_args(const struct moe_case *l)
{
	struct k3_moe_dispatch_args a = {.t = l->t,
					 .d = l->d,
					 .r = l->r,
					 .n_experts = l->n_experts,
					 .k = l->k,
					 .sum_eps = 1e-20f,
					 .scale = l->scale};

	return a;
}

void
moe_dispatch(struct moe_case *l)
{
	struct held_task task = {{l->zs, l->x, l->route, held_out(l->t * l->r)}, 4};
	struct k3_moe_dispatch_args a = dispatch_args(l);

	a.wdown = push_blocks(&task, l, l->wdown, l->r, l->d, 0);
	a.n_buf = task.n;
	k3_moe_dispatch_fwd_cpu_f32(task.buf, &a);
}

/* Arguments of group g with its slices of two tensors shaped like the expert weights. */
static struct k3_expert_args
expert_args(struct held_task *task, const struct moe_case *l, uint32_t g, float *w13, float *w2,
	    int accumulate)
{
	size_t e0 = l->edge[g], n = l->edge[g + 1] - e0, n13 = 2 * l->f * l->r, n2 = l->r * l->f;
	struct k3_expert_args a = {.t = l->t,
				   .n_experts = l->n_experts,
				   .k = l->k,
				   .r = l->r,
				   .f = l->f,
				   .e0 = l->edge[g],
				   .e1 = l->edge[g + 1],
				   .beta1 = 4,
				   .beta2 = 25};

	a.w13 = held_push_weight(task, w13 + e0 * n13, n * 2 * l->f, l->r, n * 2 * l->f,
				 accumulate);
	a.w2 = held_push_weight(task, w2 + e0 * n2, n * l->r, l->f, n * l->r, accumulate);
	a.n_buf = task->n;
	return a;
}

void
moe_group_forward(struct moe_case *l, uint32_t g)
{
	struct held_task task = {{l->gu, l->ys, l->zs, l->route, held_out(l->t * l->k * l->f)}, 5};
	struct k3_expert_args a = expert_args(&task, l, g, l->w13, l->w2, 0);

	k3_expert_fwd_cpu_f32(task.buf, &a);
}

void
moe_group_dgrad(struct moe_case *l, uint32_t g)
{
	struct held_task task = {{l->dgu, l->dzs, l->dwt, l->dys, l->gu, l->route, l->routew,
				  held_out(l->t * l->k * l->f)},
				 8};
	struct k3_expert_args a = expert_args(&task, l, g, l->w13, l->w2, 0);

	k3_expert_dgrad_cpu_f32(task.buf, &a);
}

void
moe_group_wgrad(struct moe_case *l, uint32_t g, int accumulate)
{
	struct held_task task = {
		{l->dgu, l->dys, l->gu, l->zs, l->route, l->routew, held_out(l->t * l->k * l->f)},
		7};
	struct k3_expert_args a = expert_args(&task, l, g, l->dw13, l->dw2, accumulate);

	k3_expert_wgrad_cpu_f32(task.buf, &a);
}

static struct k3_moe_combine_args
combine_args(const struct moe_case *l)
{
	struct k3_moe_combine_args a = {.t = l->t,
					.d = l->d,
					.r = l->r,
					.n_experts = l->n_experts,
					.k = l->k,
					.eps = 1e-5f};

	return a;
}

void
moe_combine(struct moe_case *l)
{
	struct held_task task = {{l->p_out, l->y, l->ys, l->route, l->routew, l->shared, l->p_in,
				  held_out(l->t * l->r)},
				 8};
	struct k3_moe_combine_args a = combine_args(l);

	a.norm = held_push_weight(&task, l->norm, 1, l->r, 1, 0);
	a.wup = push_blocks(&task, l, l->wup, l->d, l->r, 0);
	a.n_buf = task.n;
	k3_moe_combine_fwd_cpu_f32(task.buf, &a);
}

void
moe_combine_back(struct moe_case *l, int accumulate)
{
	struct held_task task = {{l->dys, l->dp, l->y, l->route, held_out(2 * l->t * l->r)}, 5};
	struct k3_moe_combine_args a = combine_args(l);

	a.dnorm = held_push_weight(&task, l->dnorm, 1, l->r, 1, accumulate);
	a.norm = held_push_weight(&task, l->norm, 1, l->r, 1, 0);
	a.wup = push_blocks(&task, l, l->wup, l->d, l->r, 0);
	a.n_buf = task.n;
	k3_moe_combine_bwd_dx_cpu_f32(task.buf, &a);
}

void
moe_dispatch_back(struct moe_case *l)
{
	struct held_task task = {{l->dx, l->dz, l->dl, l->dzs, l->dwt, l->route, l->routew}, 7};
	struct k3_moe_dispatch_args a = dispatch_args(l);

	a.wdown = push_blocks(&task, l, l->wdown, l->r, l->d, 0);
	a.wr = push_blocks(&task, l, l->wr, l->n_experts, l->d, 0);
	a.n_buf = task.n;
	k3_moe_dispatch_bwd_dx_cpu_f32(task.buf, &a);
}

void
moe_weights_back(struct moe_case *l, int accumulate)
{
	struct held_task up = {{l->dp, l->y, held_out(l->t * l->r)}, 3},
			 down = {{l->dz, l->dl, l->x}, 3};
	struct k3_moe_combine_args c = combine_args(l);
	struct k3_moe_dispatch_args a = dispatch_args(l);

	c.norm = held_push_weight(&up, l->norm, 1, l->r, 1, 0);
	c.wup = push_blocks(&up, l, l->dwup, l->d, l->r, accumulate);
	c.n_buf = up.n;
	k3_moe_combine_bwd_dw_cpu_f32(up.buf, &c);
	for (uint32_t g = 0; g < l->n_groups; g++)
		moe_group_wgrad(l, g, accumulate);
	a.wdown = push_blocks(&down, l, l->dwdown, l->r, l->d, accumulate);
	a.wr = push_blocks(&down, l, l->dwr, l->n_experts, l->d, accumulate);
	a.n_buf = down.n;
	k3_moe_dispatch_bwd_dw_cpu_f32(down.buf, &a);
}

void
moe_forward(struct moe_case *l)
{
	moe_route(l);
	moe_dispatch(l);
	for (uint32_t g = 0; g < l->n_groups; g++)
		moe_group_forward(l, g);
	moe_combine(l);
}

void
moe_backward(struct moe_case *l)
{
	moe_combine_back(l, 0);
	for (uint32_t g = 0; g < l->n_groups; g++)
		moe_group_dgrad(l, g);
	moe_dispatch_back(l);
}
