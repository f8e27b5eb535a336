/* Norm, clip and AdamW.  A step that must not happen leaves every bit as it was. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/op/loss.h"
#include "../common/op/optim.h"
#include "../common/schedule.h"
#include "../codelets/vec/vec.h"
#include "held.h"

/* Sum of squares of up to 4 blocks. */
static double
squares(float *const *blocks, const size_t *n_elems, uint32_t n)
{
	double partial = NAN;
	struct held_task task = {{&partial}, 1};
	struct k3_grad_norm_args a = {.grads = {1, n}, .n_elems = n_elems};

	for (uint32_t b = 0; b < n; b++)
		held_push(&task, blocks[b]);
	a.n_buf = task.n;
	k3_grad_norm_cpu_f32(task.buf, &a);
	return partial;
}

/* The verdict over n partial sums; out is poisoned first. */
static void
judge(double *out, double loss_sum, double valid, double max_norm, double *partials, uint32_t n)
{
	double acc[K3_LOSS_LEN] = {loss_sum, valid, 3, 11};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = valid};
	struct held_task task = {{out, acc, hyper}, 3};
	struct k3_clip_args a = {.max_norm = max_norm, .eps = 1e-6, .partials = {3, n}};

	for (size_t i = 0; i < K3_OUT_LEN; i++)
		out[i] = NAN;
	for (uint32_t i = 0; i < n; i++)
		held_push(&task, partials + i);
	a.n_buf = task.n;
	k3_clip_factor_cpu(task.buf, &a);
}

Test(grad_norm, shards_of_3_and_4_are_clipped_to_6_and_8_tenths, .timeout = 60)
{
	float shard[] = {3, 4}, *block[] = {&shard[0], &shard[1]};
	const size_t one = 1;
	double partials[] = {squares(&block[0], &one, 1), squares(&block[1], &one, 1)},
	       out[K3_OUT_LEN];

	cr_assert(partials[0] == 9 && partials[1] == 16);
	judge(out, 1, 1, 1, partials, 2);
	cr_assert_eq(out[K3_OUT_NORM], 5);
	cr_assert_float_eq(3 * out[K3_OUT_COEF], 0.6, 1e-6);
	cr_assert_float_eq(4 * out[K3_OUT_COEF], 0.8, 1e-6);
	cr_assert_eq(out[K3_OUT_COEF], 1 / (5 + 1e-6), "eps is part of the rule");
}

Test(grad_norm, every_length_is_summed_to_its_end, .timeout = 60)
{
	for (size_t n = 0; n <= 33; n++) {
		float *g = held_out(n), *rest = held_out(33 - n), *blocks[] = {g, rest};
		size_t n_elems[] = {n, 33 - n};

		for (size_t i = 0; i < 33; i++)
			*(i < n ? g + i : rest + i - n) = -2;
		cr_assert_eq(squares(blocks, n_elems, 2), 4 * 33, "cut at %zu", n);
		cr_assert_eq(squares(blocks, n_elems, 1), 4 * (double)n);
	}
	held_end();
}

Test(grad_norm, small_and_huge_elements_survive, .timeout = 60)
{
	float mixed[] = {1e4f, 0.5f}, huge[] = {3e30f, 4e30f}, *block = mixed;
	const size_t two = 2;

	cr_assert_eq(squares(&block, &two, 1), 1e8 + 0.25, "a float sum loses the quarter");
	block = huge;
	cr_assert_float_eq(sqrt(squares(&block, &two, 1)) / 5e30, 1, 1e-6);
}

Test(clip, a_norm_below_the_limit_changes_nothing, .timeout = 60)
{
	double partials[] = {0.25, 0.5}, out[K3_OUT_LEN];

	judge(out, 8, 2, 1, partials, 2);
	cr_assert_eq(out[K3_OUT_COEF], 1);
	cr_assert_eq(out[K3_OUT_NORM], sqrt(0.75));
	cr_assert_eq(out[K3_OUT_STATE], K3_STEP_OK);
}

Test(clip, limit_0_means_no_clip, .timeout = 60)
{
	double partials[] = {1e6}, out[K3_OUT_LEN];

	judge(out, 8, 2, 0, partials, 1);
	cr_assert_eq(out[K3_OUT_COEF], 1);
	cr_assert_eq(out[K3_OUT_NORM], 1e3);
}

Test(clip, sums_of_the_loss_are_handed_on, .timeout = 60)
{
	double partials[] = {1}, out[K3_OUT_LEN];

	judge(out, 8.25, 2, 1, partials, 1);
	cr_assert(out[K3_OUT_LOSS_SUM] == 8.25 && out[K3_OUT_VALID] == 2);
	cr_assert(out[K3_OUT_CORRECT] == 3 && out[K3_OUT_TOKENS] == 11);
	for (size_t i = 0; i < K3_OUT_LEN; i++)
		cr_assert(isfinite(out[i]), "field %zu was not set", i);
}

Test(clip, a_loss_or_norm_that_is_not_finite_is_reported, .timeout = 60)
{
	const double bad[] = {NAN, INFINITY, -INFINITY};
	double partials[] = {1, 1}, out[K3_OUT_LEN];

	for (size_t i = 0; i < 3; i++) {
		judge(out, bad[i], 2, 1, partials, 2);
		cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NOT_FINITE);
		partials[1] = bad[i];
		judge(out, 1, 2, 1, partials, 2);
		cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NOT_FINITE);
		judge(out, 0, 0, 1, partials, 2);
		cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NOT_FINITE, "no labels must not hide it");
		partials[1] = 1;
	}
}

Test(clip, a_nan_in_any_element_of_a_gradient_is_seen, .timeout = 60)
{
	for (size_t at = 0; at < 19; at++) {
		float *g = held_random(1, 19, -1, 1);
		const size_t n = 19;
		double partial, out[K3_OUT_LEN];

		g[at] = NAN;
		partial = squares(&g, &n, 1);
		judge(out, 1, 1, 1, &partial, 1);
		cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NOT_FINITE, "element %zu", at);
	}
	held_end();
}

Test(clip, labels_of_the_whole_step_count_not_those_summed_here, .timeout = 60)
{
	double acc[K3_LOSS_LEN] = {0}, hyper[K3_HYPER_LEN] = {[K3_HYPER_VALID] = 5};
	double partial = 4, out[K3_OUT_LEN];
	void *buf[] = {out, acc, hyper, &partial};
	struct k3_clip_args a = {.n_buf = 4, .max_norm = 1, .eps = 1e-6, .partials = {3, 1}};

	for (size_t i = 0; i < K3_OUT_LEN; i++)
		out[i] = NAN;
	k3_clip_factor_cpu(buf, &a);
	cr_assert_eq(out[K3_OUT_STATE], K3_STEP_OK, "one without labels must step with the others");
	cr_assert_eq(out[K3_OUT_VALID], 0);
	hyper[K3_HYPER_VALID] = 0;
	k3_clip_factor_cpu(buf, &a);
	cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NO_LABELS);
}

Test(clip, a_step_without_labels_is_no_step, .timeout = 60)
{
	double partials[] = {0}, out[K3_OUT_LEN];

	judge(out, 0, 0, 1, partials, 1);
	cr_assert_eq(out[K3_OUT_STATE], K3_STEP_NO_LABELS);
	cr_assert(out[K3_OUT_NORM] == 0 && out[K3_OUT_COEF] == 1);
}

struct adam {
	uint32_t n;
	size_t n_elems[2];
	float *p[2], *m[2], *v[2];
	double weight_decay;
};

static void
adam_step(struct adam *s, float *const *grads, double state, double coef, double lr, double step)
{
	double out[K3_OUT_LEN] = {[K3_OUT_STATE] = state, [K3_OUT_COEF] = coef};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = lr, [K3_HYPER_STEP] = step};
	struct held_task task = {{out, hyper}, 2};
	struct k3_adamw_args a = {.beta1 = 0.9,
				  .beta2 = 0.95,
				  .eps = 1e-8,
				  .weight_decay = s->weight_decay,
				  .params = {2, s->n},
				  .exp_avg = {2 + s->n, s->n},
				  .exp_avg_sq = {2 + 2 * s->n, s->n},
				  .grads = {2 + 3 * s->n, s->n},
				  .n_elems = s->n_elems};
	float *const *lists[] = {s->p, s->m, s->v, grads};

	for (size_t k = 0; k < 4; k++)
		for (uint32_t b = 0; b < s->n; b++)
			held_push(&task, lists[k][b]);
	a.n_buf = task.n;
	k3_adamw_step_cpu_f32(task.buf, &a);
}

Test(adamw, two_steps_follow_the_hand_calculation, .timeout = 60)
{
	float p = 1, m = 0, v = 0, g = 0.5f, *grad = &g;
	struct adam s = {
		.n = 1, .n_elems = {1}, .p = {&p}, .m = {&m}, .v = {&v}, .weight_decay = 0.1};

	/* decay 1 - .01; m^ = .5 and sqrt(v^) = .5, so the first step is the learning rate */
	adam_step(&s, &grad, K3_STEP_OK, 1, 0.1, 1);
	cr_assert_float_eq(p, 0.89, 1e-7);
	cr_assert_float_eq(m, 0.05, 1e-8);
	cr_assert_float_eq(v, 0.0125, 1e-9);
	/* .89 * .99 + .1 * (.055 / .19) / sqrt(.061875 / .0975) */
	g = -1;
	adam_step(&s, &grad, K3_STEP_OK, 1, 0.1, 2);
	cr_assert_float_eq(p, 0.91743740, 1e-7);
	cr_assert_float_eq(m, -0.055, 1e-8);
	cr_assert_float_eq(v, 0.061875, 1e-8);
}

/* Blocks of 37 and 6 elements of the dumped run. */
static struct adam
golden(float **start)
{
	struct adam s = {.n = 2, .n_elems = {37, 6}, .weight_decay = 0.1};

	*start = held_input("adamw", "start");
	for (size_t b = 0; b < 2; b++) {
		s.p[b] = held_copy(*start + 37 * b, s.n_elems[b]);
		s.m[b] = held_copy(memset(held_out(37), 0, 37 * sizeof(float)), s.n_elems[b]);
		s.v[b] = held_copy(memset(held_out(37), 0, 37 * sizeof(float)), s.n_elems[b]);
	}
	return s;
}

/* Two blocks side by side, less what is to be subtracted. */
static float *
joined(float *const *blocks, const float *less)
{
	float *x = held_out(43);

	for (size_t i = 0; i < 43; i++)
		x[i] = (i < 37 ? blocks[0][i] : blocks[1][i - 37]) - (less ? less[i] : 0);
	return x;
}

Test(adamw, twenty_steps_with_clip_decay_and_schedule_match_numpy, .timeout = 60)
{
	float *start, *grads = held_input("adamw", "grads");
	struct adam s = golden(&start);
	struct k3_st *st = fixture_open("adamw");
	double *norm = fixture_f64(st, "norm", NULL), *coef = fixture_f64(st, "coef", NULL);
	double *path = fixture_f64(st, "path", NULL), out[K3_OUT_LEN];

	for (size_t n = 0; n < 20; n++) {
		float *g[] = {grads + n * 43, grads + n * 43 + 37};
		double partials[] = {squares(&g[0], &s.n_elems[0], 1),
				     squares(&g[1], &s.n_elems[1], 1)};

		judge(out, 1, 1, 1, partials, 2);
		cr_assert_float_eq(out[K3_OUT_NORM] / norm[n], 1, 1e-12);
		cr_assert_float_eq(out[K3_OUT_COEF] / coef[n], 1, 1e-12);
		double lr = 8e-4 * k3_lr_factor((long long)n, 20, 3, 0.8, 0);
		adam_step(&s, g, out[K3_OUT_STATE], out[K3_OUT_COEF], lr, (double)(n + 1));
		fixture_expect_close(joined(s.p, NULL), path + n * 43, 43, 2e-7, "parameters");
	}
	/* the update alone shows what hides behind the large parameters */
	for (size_t i = 0; i < 43; i++)
		path[19 * 43 + i] -= (double)start[i];
	fixture_expect_close(joined(s.p, start), path + 19 * 43, 43, 1e-4, "update");
	held_expect(joined(s.m, NULL), "adamw", "exp_avg", 1e-6);
	held_expect(joined(s.v, NULL), "adamw", "exp_avg_sq", 1e-6);
	free(norm);
	free(coef);
	free(path);
	k3_st_close(st);
	held_end();
}

Test(adamw, without_gradient_a_parameter_only_decays, .timeout = 60)
{
	float p[] = {1, -3, 0.01f}, m[3] = {0}, v[3] = {0}, zero[3] = {0}, *grad = zero;
	const float start[] = {1, -3, 0.01f};
	struct adam s = {.n = 1, .n_elems = {3}, .p = {p}, .m = {m}, .v = {v}, .weight_decay = 0.1};

	for (int n = 1; n <= 100; n++)
		adam_step(&s, &grad, K3_STEP_OK, 1, 8e-4, n);
	for (size_t i = 0; i < 3; i++) {
		double moved = (double)p[i] - (double)start[i];
		double want = (double)start[i] * (pow(1 - 8e-5, 100) - 1);
		cr_assert_float_eq(moved / want, 1, 1e-3, "moved by %g, expected %g", moved, want);
		cr_assert(m[i] == 0 && v[i] == 0);
	}
}

Test(adamw, eps_stands_beside_the_root_and_not_in_it, .timeout = 60)
{
	float p = 0, m = 0, v = 0, g = 1e-8f, *grad = &g;
	struct adam s = {.n = 1, .n_elems = {1}, .p = {&p}, .m = {&m}, .v = {&v}};

	adam_step(&s, &grad, K3_STEP_OK, 1, 1, 1); /* 1e-8 / (1e-8 + 1e-8) */
	cr_assert_float_eq(p, -0.5, 1e-5, "p is %g", (double)p);
}

Test(adamw, late_steps_need_no_bias_correction, .timeout = 60)
{
	float p = 0, m = 0.5f, v = 4, g = 0.5f, *grad = &g;
	struct adam s = {.n = 1, .n_elems = {1}, .p = {&p}, .m = {&m}, .v = {&v}};

	adam_step(&s, &grad, K3_STEP_OK, 1, 1, 1e6);
	cr_assert_float_eq(p, -0.5 / sqrt(0.95 * 4 + 0.05 * 0.25), 1e-6);
}

Test(adamw, a_step_that_is_not_ok_changes_no_bit, .timeout = 60)
{
	const double states[] = {K3_STEP_NOT_FINITE, K3_STEP_NO_LABELS};

	for (size_t k = 0; k < 2; k++) {
		float *start;
		struct adam s = golden(&start);
		float *nan[] = {held_out(37), held_out(6)};

		adam_step(&s, nan, states[k], 1, 8e-4, 1);
		held_expect_same(joined(s.p, NULL), start, 43, "parameters");
		held_expect_all(joined(s.m, NULL), 0, 43, "exp_avg");
		held_expect_all(joined(s.v, NULL), 0, 43, "exp_avg_sq");
	}
	held_end();
}

/* Copies: of the second and the fourth parameter, in the other order. */
static void
expect_copies(uint16_t *const *copy, float *const *p, const size_t *n_elems)
{
	for (size_t i = 0; i < n_elems[1]; i++) {
		uint16_t want;
		k3_vec_base.to_bf16(&want, &p[1][i], 1);
		cr_assert_eq(copy[1][i], want, "copy of parameter 1, element %zu", i);
	}
	for (size_t i = 0; i < n_elems[3]; i++) {
		uint16_t want;
		k3_vec_base.to_bf16(&want, &p[3][i], 1);
		cr_assert_eq(copy[0][i], want, "copy of parameter 3, element %zu", i);
	}
}

static uint32_t
push_all(struct held_task *task, float *const *data, uint32_t n)
{
	uint32_t first = task->n;

	for (uint32_t i = 0; i < n; i++)
		held_push(task, data[i]);
	return first;
}

Test(adamw, copies_are_the_rounded_parameters_after_any_step, .timeout = 60)
{
	static const size_t n_elems[] = {5, 37, 1, 19};
	static const int32_t place[] = {-1, 1, -1, 0};
	const double states[] = {K3_STEP_OK, K3_STEP_NOT_FINITE};

	for (size_t k = 0; k < 2; k++) {
		double out[K3_OUT_LEN] = {[K3_OUT_STATE] = states[k], [K3_OUT_COEF] = 1};
		double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = 0.1, [K3_HYPER_STEP] = 1};
		struct held_task task = {{out, hyper}, 2};
		float *p[4], *m[4], *v[4], *g[4];
		uint16_t first[19], second[37], *copy[] = {first, second};
		for (size_t i = 0; i < 4; i++) {
			p[i] = held_random(i, n_elems[i], -1, 1);
			g[i] = held_random(10 + i, n_elems[i], -1, 1);
			m[i] = held_random(20 + i, n_elems[i], -1, 1);
			v[i] = held_random(30 + i, n_elems[i], 0, 1);
		}
		struct k3_adamw_args a = {.beta1 = 0.9,
					  .beta2 = 0.95,
					  .eps = 1e-8,
					  .n_elems = n_elems,
					  .copy = place};
		a.params = (struct k3_list){push_all(&task, p, 4), 4};
		a.exp_avg = (struct k3_list){push_all(&task, m, 4), 4};
		a.exp_avg_sq = (struct k3_list){push_all(&task, v, 4), 4};
		a.grads = (struct k3_list){push_all(&task, g, 4), 4};
		a.copies = (struct k3_list){task.n, 2};
		held_push(&task, first);
		held_push(&task, second);
		a.n_buf = task.n;
		float before = p[1][0];
		k3_adamw_step_cpu_f32(task.buf, &a);
		cr_assert_eq(p[1][0] == before, states[k] != K3_STEP_OK);
		expect_copies(copy, p, n_elems);

		struct held_task cast = {{first, second}, 2};
		memset(first, 0xff, sizeof(first));
		memset(second, 0xff, sizeof(second));
		struct k3_cast_args c = {.copies = {0, 2}, .n_elems = n_elems, .copy = place};
		c.params = (struct k3_list){push_all(&cast, p, 4), 4};
		c.n_buf = cast.n;
		k3_cast_params_cpu(cast.buf, &c);
		expect_copies(copy, p, n_elems);
	}
	held_end();
}

/* Parameter and moments in bf16: as float ones of the same values, rounded after the step. */
Test(adamw, a_state_of_halves_is_the_rounded_one_of_floats, .timeout = 60)
{
	enum { N = 1500 };
	static const size_t n_elems[] = {N, N};
	static const bool half[] = {false, true};
	const double states[] = {K3_STEP_OK, K3_STEP_NOT_FINITE};

	for (size_t k = 0; k < 2; k++) {
		double out[K3_OUT_LEN] = {[K3_OUT_STATE] = states[k], [K3_OUT_COEF] = 0.5};
		double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = 0.1, [K3_HYPER_STEP] = 3};
		struct held_task task = {{out, hyper}, 2};
		struct k3_adamw_args a = {.beta1 = 0.9,
					  .beta2 = 0.95,
					  .eps = 1e-8,
					  .weight_decay = 0.1,
					  .n_elems = n_elems,
					  .half = half};
		struct k3_list *const list[] = {&a.params, &a.exp_avg, &a.exp_avg_sq};
		uint16_t narrow[3][N], before[3][N], want[N];
		float *wide[3], *g = held_random(9, N, -1, 1);
		for (size_t i = 0; i < 3; i++) {
			wide[i] = held_random(20 + i, N, i == 2 ? 0 : -1, 1);
			k3_vec_base.to_bf16(narrow[i], wide[i], N);
			k3_vec_base.from_bf16(wide[i], narrow[i], N);
			memcpy(before[i], narrow[i], sizeof(before[i]));
			*list[i] = (struct k3_list){task.n, 2};
			held_push(&task, wide[i]);
			held_push(&task, narrow[i]);
		}
		a.grads = (struct k3_list){task.n, 2};
		held_push(&task, g);
		held_push(&task, g);
		a.n_buf = task.n;
		k3_adamw_step_cpu_f32(task.buf, &a);
		for (size_t i = 0; i < 3; i++) {
			k3_vec_base.to_bf16(want, wide[i], N);
			cr_assert_arr_eq(narrow[i], want, sizeof(want), "operand %zu", i);
			cr_assert_eq(memcmp(narrow[i], before[i], sizeof(want)) == 0,
				     states[k] != K3_STEP_OK);
		}
	}
	held_end();
}
