/* Choosing tiles and groups: on machines where the best cut is known, against every cut of a grid,
 * and that nothing else than model, tokens and machine counts. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/choose.h"
#include "scratch.h"

TestSuite(choose, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

/* Every task costs call_us and the flops at a rate (0: free), on so many cores. */
static struct k3_machine
flat_machine(uint32_t cores, double call_us, double flops_per_us)
{
	struct k3_machine m;

	k3_machine_init(&m, "", cores);
	m.task_us = 0;
	for (int op = 0; op < K3_N_OPS; op++)
		m.rate[op] = (struct k3_rate){call_us, flops_per_us, 0, 0};
	return m;
}

static struct k3_config
config_of(const char *preset)
{
	struct k3_config c;

	cr_assert_eq(k3_config_preset(&c, preset), K3_OK);
	c.vision.present = false;
	return c;
}

static struct k3_choice
choose(const char *preset, const struct k3_machine *m, size_t tokens)
{
	struct k3_config c = config_of(preset);
	struct k3_plan_options o;
	struct k3_choice choice;

	k3_plan_options_init(&o);
	o.machine = m;
	cr_assert_eq(k3_choose(&choice, &c, &o, tokens), K3_OK, "%s", scratch_log());
	return choice;
}

/* Estimate of a cut of the layers that were looked at, by the planner's ordinary way. */
static struct k3_estimate
estimate(const char *preset, const struct k3_machine *m, size_t tokens,
	 const struct k3_choice *choice)
{
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_config c = config_of(preset);
	int32_t *docs = malloc(tokens * sizeof(*docs));
	struct k3_layout layout = {.n_tokens = tokens, .doc_ids = docs};
	struct k3_plan_options o;
	struct k3_model *model;
	struct k3_plan *plan;
	struct k3_estimate e;

	for (size_t i = 0; i < tokens; i++)
		docs[i] = 1;
	k3_plan_options_init(&o);
	o.machine = m;
	k3_choice_apply(choice, &o);
	cr_assert_eq(k3_config_set_layers(&c, choice->layers), K3_OK);
	cr_assert_eq(k3_model_create(&model, &c, &o), K3_OK);
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	cr_assert_eq(k3_plan_estimate(&e, plan, m->cores), K3_OK);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
	free(docs);
	return e;
}

Test(choose, where_a_task_costs_and_work_is_free_one_core_takes_the_fewest_tasks)
{
	struct k3_machine m = flat_machine(1, 2000, 0);
	struct k3_choice c = choose("debug17", &m, 1024);

	cr_expect_eq(c.tile_tokens, 0);
	cr_expect_eq(c.kda_groups, 1);
	cr_expect_eq(c.mla_groups, 1);
	cr_expect_eq(c.expert_groups, 1);
	cr_expect_float_eq(c.estimate.makespan_us, 2000.0 * (double)c.estimate.n_tasks, 1e-3);
}

Test(choose, where_tasks_are_free_more_cores_take_finer_cuts)
{
	struct k3_machine one = flat_machine(1, 0, 1e3), eight = flat_machine(8, 0, 1e3);
	struct k3_choice a = choose("debug17", &one, 1024), b = choose("debug17", &eight, 1024);

	cr_expect_gt(b.estimate.n_tasks, a.estimate.n_tasks);
	cr_expect_lt(b.estimate.makespan_us, a.estimate.makespan_us / 2);
}

Test(choose, tasks_of_less_than_a_millisecond_are_not_chosen)
{
	/* the rate at which finer tiles would pay, and are too short: 0.2 ms at 64 rows */
	for (double rate = 5e3; rate <= 320e3; rate *= 2) {
		struct k3_machine m = flat_machine(4, 1, rate);
		struct k3_choice c = choose("debug17", &m, 1024);
		struct k3_choice coarse = {.kda_groups = 1, .mla_groups = 1, .layers = c.layers};
		if (estimate("debug17", &m, 1024, &coarse).mean_task_us >= 1000)
			cr_expect_geq(c.estimate.mean_task_us, 1000, "rate %g: tile %u, %g us",
				      rate, c.tile_tokens, c.estimate.mean_task_us);
	}
}

Test(choose, a_model_too_small_for_the_limit_stays_in_one_tile_with_groups_that_pay)
{
	struct k3_machine m = flat_machine(2, 1, 100e3);
	struct k3_choice c = choose("tiny", &m, 1024), other = c;

	cr_expect_lt(c.estimate.mean_task_us, 1000);
	cr_expect_eq(c.tile_tokens, 0);
	for (uint32_t g = 1; g <= 2; g++) {
		other.kda_groups = other.mla_groups = g;
		cr_expect_geq(estimate("tiny", &m, 1024, &other).makespan_us,
			      0.995 * c.estimate.makespan_us, "%u groups", g);
	}
	/* where a task costs more than its work, the fewest win */
	m = flat_machine(2, 500, 1e9);
	c = choose("tiny", &m, 1024);
	cr_expect(c.tile_tokens == 0 && c.kda_groups == 1 && c.mla_groups == 1);
}

Test(choose, what_is_told_is_the_estimate_of_the_cut_that_is_told)
{
	static const size_t tokens[] = {200, 1024, 3000};
	struct k3_machine m;

	k3_machine_init(&m, "", 4);
	for (size_t i = 0; i < 3; i++) {
		struct k3_choice c = choose("debug17", &m, tokens[i]);
		struct k3_estimate e = estimate("debug17", &m, tokens[i], &c);
		cr_expect_float_eq(e.makespan_us, c.estimate.makespan_us, 1e-6 * e.makespan_us);
		cr_expect_eq(e.n_tasks, c.estimate.n_tasks);
		cr_expect_eq(c.tile_tokens % 64, 0);
		cr_expect_lt(c.tile_tokens, tokens[i]);
	}
}

Test(choose, no_cut_of_a_grid_is_better_by_more_than_two_percent)
{
	static const uint32_t tiles[] = {0, 512, 384, 256, 128}, groups[] = {1, 2, 4};
	struct k3_machine m;

	for (uint32_t cores = 1; cores <= 8; cores *= 2) {
		k3_machine_init(&m, "", cores);
		struct k3_choice best = choose("debug17", &m, 1024);
		for (size_t i = 0; i < 5; i++)
			for (size_t g = 0; g < 3; g++) {
				struct k3_choice c = {.tile_tokens = tiles[i],
						      .kda_groups = groups[g],
						      .mla_groups = groups[g],
						      .layers = best.layers};
				struct k3_estimate e = estimate("debug17", &m, 1024, &c);
				if (e.mean_task_us < 1000)
					continue;
				cr_expect_geq(e.makespan_us, 0.98 * best.estimate.makespan_us,
					      "%u cores: tile %u, groups %u take %g us, chosen "
					      "were tile %u, groups %u and %u with %g us",
					      cores, tiles[i], groups[g], e.makespan_us,
					      best.tile_tokens, best.kda_groups, best.mla_groups,
					      best.estimate.makespan_us);
			}
	}
}

Test(choose, groups_that_are_given_stay)
{
	struct k3_config c = config_of("debug17");
	struct k3_plan_options o;
	struct k3_choice choice;
	struct k3_machine m;

	k3_machine_init(&m, "", 2);
	k3_plan_options_init(&o);
	o.machine = &m;
	o.kda_groups = 4;
	o.mla_groups = 3;
	o.expert_groups = 8;
	o.tile_tokens = 64; /* does not count */
	cr_assert_eq(k3_choose(&choice, &c, &o, 1024), K3_OK);
	cr_expect_eq(choice.kda_groups, 4);
	cr_expect_eq(choice.mla_groups, 3);
	cr_expect_eq(choice.expert_groups, 8);
	k3_choice_apply(&choice, &o);
	cr_expect_eq(o.tile_tokens, choice.tile_tokens);
}

Test(choose, the_same_question_has_the_same_answer)
{
	struct k3_machine m;

	k3_machine_init(&m, "", 6);
	struct k3_choice a = choose("debug17", &m, 1500), b = choose("debug17", &m, 1500);
	cr_expect_eq(a.tile_tokens, b.tile_tokens);
	cr_expect_eq(a.kda_groups, b.kda_groups);
	cr_expect_eq(a.mla_groups, b.mla_groups);
	cr_expect_eq(a.expert_groups, b.expert_groups);
	cr_expect_eq(a.n_plans, b.n_plans);
}

Test(choose, deciding_is_bounded_for_any_model_and_machine)
{
	static const char *const presets[] = {"debug17", "debug24", "Kimi-K3"};
	struct k3_machine m;

	for (size_t i = 0; i < 3; i++) {
		k3_machine_init(&m, "", 128);
		struct k3_choice c = choose(presets[i], &m, 65536);
		cr_expect_lt(c.n_tasks, 500000, "%s: %zu tasks", presets[i], c.n_tasks);
		cr_expect_leq(c.layers, 5);
	}
}

Test(choose, experts_that_a_block_cannot_hold_together_are_left_to_the_planner)
{
	struct k3_machine m;

	k3_machine_init(&m, "", 2);
	cr_expect_eq(choose("Kimi-K3", &m, 2048).expert_groups, 0);
}

Test(choose, more_tokens_than_a_plan_may_have_are_refused)
{
	struct k3_config c = config_of("debug17");
	struct k3_plan_options o;
	struct k3_choice choice;

	k3_plan_options_init(&o);
	cr_expect_eq(k3_choose(&choice, &c, &o, (size_t)K3_MAX_TOKENS + 1), K3_ELIMIT);
	cr_expect(strstr(scratch_log(), "tokens"));
}
