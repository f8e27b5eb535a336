/* The recurrent KDA kernels: golden file, oracle, closed forms. */
#include <criterion/criterion.h>

#include "kda_suite.h"

#define FWD k3_kda_recurrent_fwd_cpu_f32
#define BWD k3_kda_recurrent_bwd_cpu_f32

Test(kda_recurrent, matches_the_golden_operator_file, .timeout = 60)
{
	kda_check_golden(FWD, BWD);
}

Test(kda_recurrent, takes_key_and_value_widths_that_differ, .timeout = 60)
{
	kda_check_shapes(FWD, BWD);
}

Test(kda_recurrent, matches_the_oracle_of_a_layer_with_short_documents_and_holes, .timeout = 60)
{
	kda_check_layer(FWD, BWD);
}

Test(kda_recurrent, beta_one_returns_the_last_value_at_any_decay, .timeout = 60)
{
	kda_check_running_value(FWD, 0.0f);
	kda_check_running_value(FWD, -5.0f);
	kda_check_running_value(FWD, -1000.0f);
}

Test(kda_recurrent, half_steps_follow_their_geometric_series, .timeout = 60)
{
	kda_check_half_steps(FWD);
}

Test(kda_recurrent, channels_of_unlike_decay_keep_apart, .timeout = 60)
{
	kda_check_two_channels(FWD);
}

Test(kda_recurrent, gate_stays_within_its_bound_at_huge_inputs, .timeout = 60)
{
	kda_check_saturated_gates(FWD, BWD);
}

Test(kda_recurrent, documents_restart_the_state, .timeout = 60)
{
	kda_check_documents(FWD);
}

Test(kda_recurrent, empty_documents_change_nothing, .timeout = 60)
{
	kda_check_empty_segments(FWD, BWD);
}

Test(kda_recurrent, hole_equals_the_compacted_row, .timeout = 60)
{
	kda_check_hole(FWD, BWD);
}

Test(kda_recurrent, tiles_with_states_equal_the_whole, .timeout = 60)
{
	kda_check_tiles(FWD, BWD, 200, 64);
	kda_check_tiles(FWD, BWD, 33, 16);
}
