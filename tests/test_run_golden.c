/* Golden cases through planner, submission and StarPU, in this process. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../drivers/verify.h"
#include "golden.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_golden, name, .init = scratch_start, .fini = scratch_stop, .timeout = 120)

/* Classes that failed; the table goes nowhere unless it must be shown. */
static size_t
failures(const char *name, struct k3_verify_options options, size_t at_least)
{
	struct k3_verify_report report;
	char *table;
	size_t bytes;
	FILE *out = open_memstream(&table, &bytes);

	k3_verify_report_init(&report, &options);
	cr_assert_eq(k3_verify_file(golden_case(name), &options, &report), K3_OK, "%s did not run: %s",
		     name, scratch_log());
	k3_verify_print(&report, name, out);
	fclose(out);
	size_t failed = report.failed;
	cr_assert(report.passed + failed >= at_least, "%zu classes, at least %zu are expected",
		  report.passed + failed, at_least);
	if (failed > 0 && !options.plant_fault)
		cr_log_error("%s", table);
	if (options.plant_fault)
		cr_assert(failed == 0 || strstr(table, options.plant_fault),
			  "the spoilt tensor is not named:\n%s", table);
	free(table);
	k3_verify_report_fini(&report);
	return failed;
}

TEST(text_tiny_passes_in_tiles_of_64)
{
	cr_assert_eq(failures("text_tiny", (struct k3_verify_options){.tile_tokens = 64}, 11), 0);
}

TEST(text_tiny_passes_in_tiles_of_128)
{
	cr_assert_eq(failures("text_tiny", (struct k3_verify_options){.tile_tokens = 128}, 11), 0);
}

TEST(text_tiny_passes_in_one_tile)
{
	cr_assert_eq(failures("text_tiny", (struct k3_verify_options){0}, 11), 0);
}

TEST(text_packed_passes_in_tiles_of_64)
{
	cr_assert_eq(failures("text_packed", (struct k3_verify_options){.tile_tokens = 64}, 11), 0);
}

TEST(text_packed_passes_in_one_tile)
{
	cr_assert_eq(failures("text_packed", (struct k3_verify_options){0}, 11), 0);
}

TEST(recomputed_activations_pass_as_kept_ones_do)
{
	static const char *const policy[] = {"recompute", "0-0:recompute,2-2:recompute"};

	for (size_t i = 0; i < 2; i++) {
		struct k3_verify_options o = {.tile_tokens = 64, .activations = policy[i]};
		cr_assert_eq(failures("text_tiny", o, 11), 0);
		cr_assert_eq(failures("text_packed", o, 11), 0);
	}
}

TEST(forced_routes_equal_the_free_ones)
{
	cr_assert_eq(failures("text_packed",
			      (struct k3_verify_options){.tile_tokens = 64, .forced_routing = true},
			      11),
		     0);
}

TEST(a_small_window_changes_nothing)
{
	cr_assert_eq(failures("text_tiny",
			      (struct k3_verify_options){.tile_tokens = 64, .runtime.window = 4}, 11),
		     0);
}

TEST(operators_pass_in_tiles_of_64)
{
	cr_assert_eq(failures("kda_ops_d32", (struct k3_verify_options){.tile_tokens = 64}, 8), 0);
}

TEST(operators_pass_in_one_tile)
{
	cr_assert_eq(failures("kda_ops_d32", (struct k3_verify_options){0}, 8), 0);
}

/* 1 % off in one gradient must turn the verdict, whatever the kind of tensor. */
TEST(a_wrong_weight_gradient_is_red)
{
	cr_assert_eq(failures("text_tiny",
			      (struct k3_verify_options){.plant_fault =
								 "grad.language_model.model.layers."
								 "1.self_attn.q_proj.weight"},
			      11),
		     1);
}

TEST(a_wrong_vector_gradient_is_red)
{
	cr_assert_eq(failures("text_tiny",
			      (struct k3_verify_options){
				      .plant_fault =
					      "grad.language_model.model.layers.2.self_attn.A_log"},
			      11),
		     1);
}

TEST(a_wrong_expert_gradient_is_red)
{
	cr_assert_eq(failures("text_packed",
			      (struct k3_verify_options){
				      .plant_fault = "grad.language_model.model.layers.3.block_"
						     "sparse_moe.experts.2.w3.weight"},
			      11),
		     1);
}

TEST(a_wrong_activation_is_red)
{
	cr_assert_eq(
		failures("text_tiny", (struct k3_verify_options){.plant_fault = "prefix.2"}, 11),
		1);
}

TEST(a_wrong_operator_result_is_red)
{
	cr_assert_eq(
		failures("kda_ops_d32", (struct k3_verify_options){.plant_fault = "T65.dk"}, 8), 1);
}

static int
run_status(const char *path)
{
	struct k3_verify_options options = {0};
	struct k3_verify_report report;

	k3_verify_report_init(&report, &options);
	int ret = k3_verify_file(path, &options, &report);
	k3_verify_report_fini(&report);
	return ret;
}

TEST(a_file_that_is_no_golden_case_is_refused)
{
	scratch_write("x.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43);
	cr_assert_neq(run_status(scratch_path("x.safetensors")), K3_OK);
	cr_assert(*scratch_log());
}

TEST(a_file_that_does_not_exist_is_refused)
{
	cr_assert_neq(run_status(scratch_path("nothing.safetensors")), K3_OK);
}
