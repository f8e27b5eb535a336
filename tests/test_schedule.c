/* Learning-rate factors against the numbers that the reference's schedule gives by hand. */
#include <criterion/criterion.h>
#include <math.h>

#include "../common/schedule.h"

static void
expect_factors(const double *want, long long steps, long long warmup, double ratio, double floor)
{
	for (long long n = 0; n < steps; n++) {
		double got = k3_lr_factor(n, steps, warmup, ratio, floor);

		cr_expect(fabs(got - want[n]) < 1e-15, "step %lld of %lld: %.17g, expected %.17g",
			  n, steps, got, want[n]);
	}
}

Test(schedule, ten_steps_warm_up_for_two_and_decay_for_eight, .timeout = 60)
{
	static const double want[] = {0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125};

	expect_factors(want, 10, 2, 0.8, 0.0);
}

Test(schedule, decay_shrinks_when_the_warm_up_needs_its_steps, .timeout = 60)
{
	static const double want[] = {0.25, 0.5, 0.75, 1, 1, 0.5};

	expect_factors(want, 6, 4, 0.9, 0.0);
}

Test(schedule, floor_scales_the_decay_and_not_the_warm_up, .timeout = 60)
{
	/* decay 4 steps, factors 0.75 0.5 0.25 mapped to 0.2 + 0.8 x */
	static const double want[] = {0.5, 1, 1, 0.8, 0.6, 0.4};

	expect_factors(want, 6, 2, 4.0 / 6.0, 0.2);
}

Test(schedule, constant_without_warm_up_and_decay, .timeout = 60)
{
	static const double want[] = {1, 1, 1, 1};

	expect_factors(want, 4, 0, 0.0, 0.0);
}

Test(schedule, half_a_step_of_decay_rounds_to_even, .timeout = 60)
{
	/* 0.5 * 5 = 2.5 decays over 2 steps, as Python's round() has it; 3 would give 2/3 and 1/3
	 */
	static const double want[] = {1, 1, 1, 1, 0.5};

	expect_factors(want, 5, 0, 0.5, 0.0);
}

Test(schedule, warm_up_longer_than_the_run_ends_at_one, .timeout = 60)
{
	static const double want[] = {0.25, 0.5, 0.75, 1};

	expect_factors(want, 4, 9, 0.8, 0.0);
}

Test(schedule, one_step_trains_with_the_full_rate, .timeout = 60)
{
	cr_expect_eq(k3_lr_factor(0, 1, 0, 1.0, 0.0), 1.0);
	cr_expect_eq(k3_lr_factor(0, 1, 1, 1.0, 0.0), 1.0);
}

Test(schedule, steps_after_the_last_keep_the_floor, .timeout = 60)
{
	cr_expect_eq(k3_lr_factor(10, 10, 2, 0.8, 0.25), 0.25);
	cr_expect_eq(k3_lr_factor(1000, 10, 2, 0.8, 0.25), 0.25);
}
