/* Schedules on paper against graphs whose schedules are known. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "../common/status.h"
#include "../planner/critical_path.h"
#include "../planner/estimate.h"
#include "plan_case.h"

static struct k3_estimate
estimate(const struct k3_plan *plan, uint32_t workers)
{
	struct k3_estimate e;

	cr_assert_eq(k3_plan_estimate(&e, plan, workers), K3_OK);
	return e;
}

static void
expect(const struct hand *h, uint32_t workers, double makespan_us, double critical_us)
{
	struct k3_estimate e = estimate(&h->plan, workers);

	cr_expect_float_eq(e.makespan_us, makespan_us, 1e-9, "%u workers: %g us, expected %g",
			   workers, e.makespan_us, makespan_us);
	cr_expect_float_eq(e.critical_us, critical_us, 1e-9);
	cr_expect_float_eq(e.idle_share, 1 - e.work_us / (workers * makespan_us), 1e-12);
}

Test(estimate, a_chain_takes_the_sum_on_any_number_of_workers, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_task(&h, "make", "0:W", 5);
	hand_task(&h, "change", "0:RW", 7);
	hand_task(&h, "read", "0:R", 11);
	expect(&h, 1, 23, 23);
	expect(&h, 2, 23, 23);
	expect(&h, 64, 23, 23);
	struct k3_estimate e = estimate(&h.plan, 4);
	cr_expect_float_eq(e.idle_share, 0.75, 1e-12);
	cr_expect_float_eq(e.mean_task_us, 23.0 / 3, 1e-12);
	cr_expect_eq(e.n_tasks, 3);
}

Test(estimate, tasks_without_edges_fill_the_workers, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	for (uint32_t i = 0; i < 8; i++) {
		char access[8];
		hand_data(&h, "x", (int32_t)i, i, i);
		snprintf(access, sizeof(access), "%u:W", i);
		hand_task(&h, "make", access, 10);
	}
	expect(&h, 1, 80, 10);
	expect(&h, 3, 30, 10);
	expect(&h, 4, 20, 10);
	expect(&h, 100, 10, 10);
}

/* a -> b, c -> d; d takes the slot of a. */
Test(estimate, branches_run_side_by_side_and_join, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_data(&h, "b", 1, 1, 3);
	hand_data(&h, "c", 2, 2, 3);
	hand_data(&h, "d", 0, 3, 3);
	hand_task(&h, "a", "0:W", 1);
	hand_task(&h, "b", "1:W 0:R", 10);
	hand_task(&h, "c", "2:W 0:R", 100);
	hand_task(&h, "d", "3:W 1:R", 1000);
	/* d waits for c as well: c reads what is in its slot */
	expect(&h, 1, 1111, 1101);
	expect(&h, 2, 1101, 1101);
	h.data[3].slot = 3;
	h.slot[3].bytes = 256;
	h.plan.n_slots = 4;
	expect(&h, 2, 1011, 1011);
}

/* Three short tasks and a long one on two workers: the long one first gives 6, last gives 8. */
Test(estimate, the_higher_priority_goes_first_and_then_the_earlier_task, .timeout = 60)
{
	struct hand h;
	static const double cost[] = {2, 2, 2, 6};

	hand_init(&h);
	for (uint32_t i = 0; i < 4; i++) {
		char access[8];
		hand_data(&h, "x", (int32_t)i, i, i);
		snprintf(access, sizeof(access), "%u:W", i);
		hand_task(&h, "make", access, cost[i]);
	}
	expect(&h, 2, 8, 6);
	h.task[3].priority = 1;
	expect(&h, 2, 6, 6);
}

/* What ends at one moment frees all its followers before a worker chooses. */
Test(estimate, ends_at_one_moment_count_together, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	hand_data(&h, "a", 0, 0, 2);
	hand_data(&h, "b", 1, 1, 4);
	hand_data(&h, "c", 2, 2, 2);
	hand_data(&h, "d", 3, 3, 3);
	hand_data(&h, "e", 4, 4, 4);
	hand_task(&h, "a", "0:W", 1);
	hand_task(&h, "b", "1:W", 1);
	hand_task(&h, "long", "2:W 0:R", 20);
	hand_task(&h, "urgent", "3:W 1:R", 9);
	hand_task(&h, "urgent too", "4:W 1:R", 9);
	h.task[3].priority = h.task[4].priority = 9;
	/* at 1 both workers are free and both urgent tasks ready: the long one begins at 10 */
	expect(&h, 2, 30, 21);
}

Test(estimate, an_empty_plan_takes_no_time, .timeout = 60)
{
	struct hand h;

	hand_init(&h);
	struct k3_estimate e = estimate(&h.plan, 3);
	cr_expect(e.n_tasks == 0 && e.makespan_us == 0 && e.idle_share == 0 && e.mean_task_us == 0);
}

/* Graham's bound holds for every list schedule, the critical path and the work for every one. */
Test(estimate, a_real_plan_keeps_the_bounds_of_list_schedules, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "100 92 64", true);
	struct k3_critical_path path;
	cr_assert_eq(k3_critical_path_init(&path, plan), K3_OK);
	for (uint32_t w = 1; w <= 16; w *= 2) {
		struct k3_estimate e = estimate(plan, w);
		double least = fmax(e.work_us / w, path.length_us);
		cr_expect_float_eq(e.critical_us, path.length_us, 1e-6 * path.length_us);
		cr_expect_geq(e.makespan_us, least * (1 - 1e-12), "%u workers", w);
		cr_expect_leq(e.makespan_us,
			      (e.work_us / w + (1 - 1.0 / w) * e.critical_us) * (1 + 1e-9),
			      "%u workers", w);
	}
	k3_critical_path_fini(&path);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
