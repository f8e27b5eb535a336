/* The projections around latent attention against the oracle: queries, compressed keys, their
 * expansion and the gated output. Head groups are uneven, and blocks of weights do not end where
 * heads do. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "../common/op/mla.h"
#include "held.h"

enum { T = 7, H = 3, KQ = 8, V = 7, GROUP = 2, GROUPS = 2 };

/* Pushes x [T, H * w], cut into its head groups. */
static struct k3_list
push_groups(struct held_task *task, const float *x, size_t w)
{
	struct k3_list l = {task->n, GROUPS};

	held_push(task, held_columns(x, T, H * w, 0, GROUP * w));
	held_push(task, held_columns(x, T, H * w, GROUP * w, H * w));
	return l;
}

/* Pushes poisoned outputs of the two groups. */
static struct k3_list
push_group_outputs(struct held_task *task, size_t w)
{
	struct k3_list l = {task->n, GROUPS};

	held_push(task, held_out(T * GROUP * w));
	held_push(task, held_out(T * (H - GROUP) * w));
	return l;
}

/* The outputs of the groups side by side. */
static float *
joined(const struct held_task *task, struct k3_list l, size_t w)
{
	float *x = held_out(T * H * w), *group[] = {task->buf[l.first], task->buf[l.first + 1]};

	for (size_t i = 0; i < T; i++) {
		memcpy(x + i * H * w, group[0] + i * GROUP * w, GROUP * w * sizeof(*x));
		memcpy(x + (i * H + GROUP) * w, group[1] + i * (H - GROUP) * w,
		       (H - GROUP) * w * sizeof(*x));
	}
	return x;
}

enum { D = 9, RQ = 6, RKV = 5, ROPE = 3 };

static struct k3_mla_proj_args
proj_args(void)
{
	struct k3_mla_proj_args a = {.t = T,
				     .d = D,
				     .h = H,
				     .kq = KQ,
				     .v = V,
				     .rq = RQ,
				     .rkv = RKV,
				     .rope = ROPE,
				     .eps = 1e-6f,
				     .group_heads = GROUP};

	return a;
}

/* The four matrices in three blocks each, in the order of the operands. */
static void
push_proj_weights(struct held_task *task, struct k3_mla_proj_args *a, float *const w[4],
		  int accumulate)
{
	a->wqa = held_push_weight(task, w[0], RQ, D, 2, accumulate);
	a->wqb = held_push_weight(task, w[1], H * KQ, RQ, 9, accumulate);
	a->wkva = held_push_weight(task, w[2], RKV + ROPE, D, 3, accumulate);
	a->wgate = held_push_weight(task, w[3], H * V, D, 8, accumulate);
	a->n_buf = task->n;
}

static void
proj_weights(float *w[4])
{
	w[0] = held_input("mla", "proj.wqa");
	w[1] = held_input("mla", "proj.wqb");
	w[2] = held_input("mla", "proj.wkva");
	w[3] = held_input("mla", "proj.wgate");
}

Test(mla_proj, queries_keys_and_gate_match_the_oracle, .timeout = 60)
{
	float *qa = held_out(T * RQ), *q = held_out(T * H * KQ), *c = held_out(T * (RKV + ROPE)),
	      *zg = held_out(T * H * V), *w[4];
	struct held_task task = {{qa, q, c, zg, held_input("mla", "proj.x"), held_out(T * RQ)}, 6};
	struct k3_mla_proj_args a = proj_args();

	proj_weights(w);
	a.wqa = held_push_weight(&task, w[0], RQ, D, 2, 0);
	a.qn = held_push_weight(&task, held_input("mla", "proj.qn"), 1, RQ, 1, 0);
	a.wqb = held_push_weight(&task, w[1], H * KQ, RQ, 9, 0);
	a.wkva = held_push_weight(&task, w[2], RKV + ROPE, D, 3, 0);
	a.wgate = held_push_weight(&task, w[3], H * V, D, 8, 0);
	a.n_buf = task.n;
	k3_mla_proj_fwd_cpu_f32(task.buf, &a);
	held_expect(qa, "mla", "proj.qa", 1e-6);
	held_expect(q, "mla", "proj.q", 1e-6);
	held_expect(c, "mla", "proj.c", 1e-6);
	held_expect(zg, "mla", "proj.zg", 1e-6);
	held_end();
}

Test(mla_proj, input_gradient_joins_the_three_branches, .timeout = 60)
{
	float *dx = held_out(T * D), *dqa = held_out(T * RQ), *dqn = held_out(RQ), *w[4];
	struct held_task task = {{dx, dqa, held_input("mla", "proj.dc"),
				  held_input("mla", "proj.dzg"), held_input("mla", "proj.qa"),
				  held_out(T * RQ)},
				 6};
	struct k3_mla_proj_args a = proj_args();

	proj_weights(w);
	a.dq = push_groups(&task, held_input("mla", "proj.dq"), KQ);
	a.dqn = held_push_weight(&task, dqn, 1, RQ, 1, 0);
	a.wqa = held_push_weight(&task, w[0], RQ, D, 2, 0);
	a.qn = held_push_weight(&task, held_input("mla", "proj.qn"), 1, RQ, 1, 0);
	a.wqb = held_push_weight(&task, w[1], H * KQ, RQ, 9, 0);
	a.wkva = held_push_weight(&task, w[2], RKV + ROPE, D, 3, 0);
	a.wgate = held_push_weight(&task, w[3], H * V, D, 8, 0);
	a.n_buf = task.n;
	k3_mla_proj_bwd_dx_cpu_f32(task.buf, &a);
	held_expect(dqa, "mla", "proj.dqa", 2e-6);
	held_expect(dqn, "mla", "proj.dqn", 2e-6);
	held_expect(dx, "mla", "proj.dx", 2e-6);
	a.dqn.accumulate = 1;
	k3_mla_proj_bwd_dx_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < RQ; i++)
		dqn[i] /= 2;
	held_expect(dqn, "mla", "proj.dqn", 2e-6);
	held_end();
}

/* The weight gradients of the projections, once or twice into the same blocks. */
static void
proj_weight_gradients(float *dw[4], int times)
{
	size_t n[] = {RQ * D, H * KQ * RQ, (RKV + ROPE) * D, H * V * D};

	for (size_t i = 0; i < 4; i++)
		dw[i] = held_out(n[i]);
	for (int pass = 0; pass < times; pass++) {
		struct held_task task = {
			{held_input("mla", "proj.dqa"), held_input("mla", "proj.dc"),
			 held_input("mla", "proj.dzg"), held_input("mla", "proj.qa"),
			 held_input("mla", "proj.x"), held_out(T * RQ)},
			6};
		struct k3_mla_proj_args a = proj_args();
		a.dq = push_groups(&task, held_input("mla", "proj.dq"), KQ);
		a.qn = held_push_weight(&task, held_input("mla", "proj.qn"), 1, RQ, 1, 0);
		push_proj_weights(&task, &a, dw, pass);
		k3_mla_proj_bwd_dw_cpu_f32(task.buf, &a);
	}
	for (size_t i = 0; i < 4; i++)
		for (size_t j = 0; j < n[i]; j++)
			dw[i][j] /= (float)times;
	held_expect(dw[0], "mla", "proj.dwqa", 1e-6);
	held_expect(dw[1], "mla", "proj.dwqb", 1e-6);
	held_expect(dw[2], "mla", "proj.dwkva", 1e-6);
	held_expect(dw[3], "mla", "proj.dwgate", 1e-6);
}

Test(mla_proj, weight_gradients_are_written_first, .timeout = 60)
{
	float *dw[4];

	proj_weight_gradients(dw, 1);
	held_end();
}

Test(mla_proj, weight_gradients_of_later_tiles_are_added, .timeout = 60)
{
	float *dw[4];

	proj_weight_gradients(dw, 3);
	held_end();
}

enum { NOPE = KQ - ROPE, LATENT = 6, WIDE = H * (NOPE + V) };

static struct k3_mla_expand_args
expand_args(void)
{
	struct k3_mla_expand_args a = {.t = T,
				       .h = H,
				       .nope = NOPE,
				       .rope = ROPE,
				       .v = V,
				       .rkv = LATENT,
				       .eps = 1e-6f,
				       .group_heads = GROUP};

	return a;
}

/* Gradient rows of the two groups, each with its share of the common key part behind. */
static struct k3_list
push_dkv(struct held_task *task)
{
	const float *dkv = held_input("mla", "expand.dkv"),
		    *common = held_input("mla", "expand.dshared");
	struct k3_list l = {task->n, GROUPS};

	for (size_t g = 0; g < GROUPS; g++) {
		size_t from = g * GROUP * (NOPE + V), n = (g ? H - GROUP : GROUP) * (NOPE + V);
		float *x = held_out(T * (n + ROPE));
		for (size_t i = 0; i < T; i++) {
			memcpy(x + i * (n + ROPE), dkv + i * WIDE + from, n * sizeof(*x));
			memcpy(x + i * (n + ROPE) + n, common + (g * T + i) * ROPE,
			       ROPE * sizeof(*x));
		}
		held_push(task, x);
	}
	return l;
}

Test(mla_expand, keys_and_values_match_the_oracle, .timeout = 60)
{
	float *kv = held_out(T * (WIDE + ROPE));
	struct held_task task = {{kv, held_input("mla", "expand.c"), held_out(T * LATENT)}, 3};
	struct k3_mla_expand_args a = expand_args();

	a.kn = held_push_weight(&task, held_input("mla", "expand.kn"), 1, LATENT, 1, 0);
	a.wkvb = held_push_weight(&task, held_input("mla", "expand.wkvb"), WIDE, LATENT, 13, 0);
	a.n_buf = task.n;
	k3_mla_expand_fwd_cpu_f32(task.buf, &a);
	held_expect(kv, "mla", "expand.kv", 1e-6);
	held_end();
}

Test(mla_expand, latent_gradient_sums_over_head_groups, .timeout = 60)
{
	float *dc = held_out(T * (LATENT + ROPE)), *dkn = held_out(LATENT);
	struct held_task task = {{dc, held_input("mla", "expand.c"), held_out(T * LATENT)}, 3};
	struct k3_mla_expand_args a = expand_args();

	a.dkv = push_dkv(&task);
	a.dkn = held_push_weight(&task, dkn, 1, LATENT, 1, 0);
	a.kn = held_push_weight(&task, held_input("mla", "expand.kn"), 1, LATENT, 1, 0);
	a.wkvb = held_push_weight(&task, held_input("mla", "expand.wkvb"), WIDE, LATENT, 13, 0);
	a.n_buf = task.n;
	k3_mla_expand_bwd_dx_cpu_f32(task.buf, &a);
	held_expect(dc, "mla", "expand.dc", 2e-6);
	held_expect(dkn, "mla", "expand.dkn", 2e-6);
	a.dkn.accumulate = 1;
	k3_mla_expand_bwd_dx_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < LATENT; i++)
		dkn[i] /= 2;
	held_expect(dkn, "mla", "expand.dkn", 2e-6);
	held_end();
}

Test(mla_expand, weight_gradient_is_written_then_added, .timeout = 60)
{
	float *dw = held_out(WIDE * LATENT);
	struct held_task task = {{held_input("mla", "expand.c"), held_out(T * LATENT)}, 2};
	struct k3_mla_expand_args a = expand_args();

	a.dkv = push_dkv(&task);
	a.kn = held_push_weight(&task, held_input("mla", "expand.kn"), 1, LATENT, 1, 0);
	a.wkvb = held_push_weight(&task, dw, WIDE, LATENT, 13, 0);
	a.n_buf = task.n;
	k3_mla_expand_bwd_dw_cpu_f32(task.buf, &a);
	held_expect(dw, "mla", "expand.dwkvb", 1e-6);
	a.wkvb.accumulate = 1;
	k3_mla_expand_bwd_dw_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < WIDE * LATENT; i++)
		dw[i] /= 2;
	held_expect(dw, "mla", "expand.dwkvb", 1e-6);
	held_end();
}

enum { MODEL = 10 };

static struct k3_mla_out_args
out_args(void)
{
	struct k3_mla_out_args a = {.t = T, .d = MODEL, .h = H, .v = V, .group_heads = GROUP};

	return a;
}

Test(mla_out, gated_output_is_added_to_the_prefix, .timeout = 60)
{
	float *p_out = held_out(T * MODEL), *p_in = held_input("mla", "out.p_in");
	struct held_task task = {{p_out, held_input("mla", "out.zg"), held_out(T * H * V)}, 3};
	struct k3_mla_out_args a = out_args();

	a.o = push_groups(&task, held_input("mla", "out.o"), V);
	a.p_in = held_push_list(&task, p_in);
	a.wo = held_push_weight(&task, held_input("mla", "out.wo"), MODEL, H * V, 4, 0);
	a.n_buf = task.n;
	k3_mla_out_fwd_cpu_f32(task.buf, &a);
	held_expect(p_out, "mla", "out.p_out", 1e-6);
	held_expect_same(p_in, held_input("mla", "out.p_in"), T * MODEL, "the prefix read");
	held_end();
}

Test(mla_out, without_a_prefix_the_output_stands_alone, .timeout = 60)
{
	float *p_out = held_out(T * MODEL), *p_in = held_input("mla", "out.p_in");
	struct held_task task = {{p_out, held_input("mla", "out.zg"), held_out(T * H * V)}, 3};
	struct k3_mla_out_args a = out_args();

	a.o = push_groups(&task, held_input("mla", "out.o"), V);
	a.wo = held_push_weight(&task, held_input("mla", "out.wo"), MODEL, H * V, 4, 0);
	a.n_buf = task.n;
	k3_mla_out_fwd_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < T * MODEL; i++)
		p_out[i] += p_in[i];
	held_expect(p_out, "mla", "out.p_out", 1e-6);
	held_end();
}

Test(mla_out, gate_and_head_gradients_match_the_oracle, .timeout = 60)
{
	float *dzg = held_out(T * H * V);
	struct held_task task = {{dzg, held_input("mla", "out.dp"), held_input("mla", "out.zg"),
				  held_out(T * H * V)},
				 4};
	struct k3_mla_out_args a = out_args();

	a.da = push_group_outputs(&task, V);
	a.delta = push_group_outputs(&task, 1);
	a.o = push_groups(&task, held_input("mla", "out.o"), V);
	a.wo = held_push_weight(&task, held_input("mla", "out.wo"), MODEL, H * V, 4, 0);
	a.n_buf = task.n;
	k3_mla_out_bwd_dx_cpu_f32(task.buf, &a);
	held_expect(dzg, "mla", "out.dzg", 1e-6);
	held_expect(joined(&task, a.da, V), "mla", "out.da", 1e-6);
	held_expect(joined(&task, a.delta, 1), "mla", "out.delta", 1e-6);
	held_end();
}

Test(mla_out, weight_gradient_is_written_then_added, .timeout = 60)
{
	float *dwo = held_out(MODEL * H * V);
	struct held_task task = {
		{held_input("mla", "out.dp"), held_input("mla", "out.zg"), held_out(T * H * V)}, 3};
	struct k3_mla_out_args a = out_args();

	a.o = push_groups(&task, held_input("mla", "out.o"), V);
	a.wo = held_push_weight(&task, dwo, MODEL, H * V, 4, 0);
	a.n_buf = task.n;
	k3_mla_out_bwd_dw_cpu_f32(task.buf, &a);
	held_expect(dwo, "mla", "out.dwo", 1e-6);
	a.wo.accumulate = 1;
	k3_mla_out_bwd_dw_cpu_f32(task.buf, &a);
	for (size_t i = 0; i < MODEL * H * V; i++)
		dwo[i] /= 2;
	held_expect(dwo, "mla", "out.dwo", 1e-6);
	held_end();
}

Test(mla_out, gates_of_30000_are_finite, .timeout = 60)
{
	float *zg = held_random(1, T * H * V, 30000, 30000), *dzg = held_out(T * H * V),
	      *o = held_input("mla", "out.o");
	struct held_task task = {{dzg, held_input("mla", "out.dp"), zg, held_out(T * H * V)}, 4};
	struct k3_mla_out_args a = out_args();

	for (size_t i = 0; i < T * H * V; i += 2)
		zg[i] = -30000;
	a.da = push_group_outputs(&task, V);
	a.delta = push_group_outputs(&task, 1);
	a.o = push_groups(&task, o, V);
	a.wo = held_push_weight(&task, held_input("mla", "out.wo"), MODEL, H * V, 4, 0);
	a.n_buf = task.n;
	k3_mla_out_bwd_dx_cpu_f32(task.buf, &a);
	held_expect_all(dzg, 0, T * H * V, "gradient of a saturated gate");
	float *da = joined(&task, a.da, V);
	for (size_t i = 0; i < T * H * V; i++)
		cr_assert(i % 2 ? isfinite(da[i]) && da[i] != 0 : da[i] == 0, "da[%zu] is %g", i,
			  (double)da[i]);
	held_end();
}
