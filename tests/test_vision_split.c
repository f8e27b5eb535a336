/* The split of images among cp ranks: hand-made cases, and a table that another planner wrote
 * (tests/data/vit_cp_plan.tsv: NeMo Automodel's rules, see model.md 9.2). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/vision_split.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(vision_split, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

TEST(an_item_is_cut_when_it_is_large_and_its_rows_are_whole_merge_rows)
{
	struct k3_grid g = {1, 16, 16};

	cr_expect(k3_vision_splits(&g, 2, 2, 256));
	cr_expect_not(k3_vision_splits(&g, 1, 2, 256));
	cr_expect_not(k3_vision_splits(&g, 2, 2, 257));
	g = (struct k3_grid){4, 17, 60};
	cr_expect_not(k3_vision_splits(&g, 2, 2, 256));
	g = (struct k3_grid){4, 4, 16}; /* frames count */
	cr_expect(k3_vision_splits(&g, 2, 2, 256));
}

TEST(groups_are_the_largest_divisor_of_cp_not_above_the_number_of_items)
{
	static const uint32_t cases[][3] = {{1, 8, 1}, {4, 8, 4}, {3, 8, 2}, {5, 8, 4},	 {9, 8, 8},
					    {5, 6, 3}, {7, 6, 6}, {2, 3, 1}, {4, 16, 4}, {6, 9, 3}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(k3_vision_groups(cases[i][0], cases[i][1]), cases[i][2], "%u of %u",
			     cases[i][0], cases[i][1]);
}

TEST(the_largest_item_goes_first_to_the_least_loaded_group_and_equals_keep_their_order)
{
	/* patches 4, 16, 8, 8, 16: the 16s open groups 0 and 1, then 8, 8, then 4 to the first */
	static const struct k3_grid grid[] = {
		{1, 2, 2}, {1, 4, 4}, {2, 2, 2}, {1, 2, 4}, {1, 2, 8}};
	static const uint32_t want[] = {0, 0, 0, 1, 1};
	uint32_t group[5];

	cr_assert_eq(k3_vision_balance(group, grid, 5, 2), K3_OK);
	cr_expect_arr_eq(group, want, sizeof(want));
}

TEST(rows_are_whole_merge_rows_and_the_last_parts_may_be_short_or_empty)
{
	struct k3_grid g = {1, 10, 8}; /* five merge rows */
	static const uint32_t want[4][2] = {{0, 4}, {4, 4}, {8, 2}, {10, 0}};

	for (uint32_t i = 0; i < 4; i++) {
		uint32_t row0, rows;
		k3_vision_rows(&g, 2, 4, i, &row0, &rows);
		cr_expect(row0 == want[i][0] && rows == want[i][1], "part %u: %u + %u", i, row0,
			  rows);
	}
	uint32_t row0, rows;
	k3_vision_rows(&g, 2, 1, 0, &row0, &rows);
	cr_expect(row0 == 0 && rows == 10);
}

/* Two frames of 6 rows and 4 columns on two ranks: bands of 4 and 2 rows.  Rank 1's keys are 8
 * patches, 8 of padding, 8, 8: valid keys are no prefix. */
TEST(padding_of_a_short_band_lies_between_the_frames)
{
	static const struct k3_grid grid[] = {{1, 3, 4}, {2, 6, 4}};
	static const struct k3_key_run want[] = {{0, 12}, {1, 16}, {1, 16}, {1, 8},
						 {-1, 8}, {1, 8},  {-1, 8}};
	struct k3_vision_plan plan;
	struct k3_key_run *run;
	size_t n;

	cr_assert_eq(k3_vision_plan_init(&plan, grid, 2, 2, 2, 1), K3_OK);
	cr_assert(plan.n_split == 1 && plan.split[0] == 1 && plan.n_groups == 1 &&
		  plan.group_size == 2);
	cr_assert_eq(k3_vision_key_runs(&run, &n, &plan, grid, 2, 2, 0), K3_OK);
	cr_assert_eq(n, sizeof(want) / sizeof(want[0]));
	for (size_t i = 0; i < n; i++)
		cr_expect(run[i].item == want[i].item && run[i].patches == want[i].patches,
			  "run %zu: %d:%llu", i, run[i].item, (unsigned long long)run[i].patches);
	free(run);
	k3_vision_plan_fini(&plan);
}

static void
expect_table(const char *name, size_t lines)
{
	const char *dir = getenv("K3_TEST_DATA");
	char path[4096];
	size_t passed, failed;

	snprintf(path, sizeof(path), "%s/%s", dir ? dir : "tests/data", name);
	cr_assert_eq(k3_vision_table_check(path, &passed, &failed), K3_OK);
	cr_expect_eq(passed, lines, "%s", name);
	cr_expect_eq(failed, 0);
}

TEST(plans_agree_with_the_table_of_another_planner)
{
	expect_table("vit_cp_plan.tsv", 40);
}

/* Odd rows, single merge rows, a huge image, many small ones, more ranks than images: made row
 * by row (make_vision_split.py). */
TEST(plans_at_the_edges_agree_with_a_table_made_row_by_row)
{
	expect_table("vision_split.tsv", 62);
}

TEST(each_field_that_differs_fails_its_line)
{
	static const char *const line[] = {
		"2 2 1\t1,4,4\t0\t0\t1 2\t0:8,0:8", /* right */
		"2 2 1\t1,4,4\t1\t0\t1 2\t0:8,0:8", "2 2 1\t1,4,4\t0\t1\t1 2\t0:8,0:8",
		"2 2 1\t1,4,4\t0\t0\t2 1\t0:8,0:8", "2 2 1\t1,4,4\t0\t0\t1 2\t0:16",
		"2 2 1\t1,4,4\t-\t-\t-\t-",	    "1 2 1\t1,4,4\t0\t0\t1 2\t0:8,0:8",
	};
	size_t passed, failed;

	for (size_t i = 0; i < sizeof(line) / sizeof(line[0]); i++) {
		scratch_write("one.tsv", line[i], strlen(line[i]));
		cr_assert_eq(k3_vision_table_check(scratch_path("one.tsv"), &passed, &failed),
			     K3_OK);
		cr_expect(passed == (i == 0) && failed == (i != 0), "line %zu", i);
	}
}

/* Groups in turn: the k-th item goes to group k mod n while all are equal. */
TEST(millions_of_items_are_dealt_to_thousands_of_groups_at_once)
{
	enum { N = 1 << 22, GROUPS = 1 << 16 };
	struct k3_grid *grid = malloc(N * sizeof(*grid));
	uint32_t *group = malloc(N * sizeof(*group));

	cr_assert(grid && group);
	for (size_t i = 0; i < N; i++)
		grid[i] = (struct k3_grid){1, 2, 2};
	cr_assert_eq(k3_vision_balance(group, grid, N, GROUPS), K3_OK);
	for (size_t i = 0; i < N; i++)
		cr_assert_eq(group[i], i % GROUPS, "item %zu: group %u", i, group[i]);
	free(grid);
	free(group);
}

/* The rule word by word: the least load, the first of equals. */
TEST(groups_are_dealt_as_a_search_of_all_of_them_would)
{
	enum { N = 500 };
	struct k3_grid grid[N];
	uint32_t group[N];

	for (uint32_t n_groups = 1; n_groups <= 40; n_groups++) {
		uint64_t load[40] = {0};
		/* never growing, so that the order of dealing is that of the items; runs of equals */
		for (uint32_t i = 0; i < N; i++)
			grid[i] = (struct k3_grid){1, 2, 2 * (i < 100 ? 500 - 3 * i : 20 - i / 30)};
		cr_assert_eq(k3_vision_balance(group, grid, N, n_groups), K3_OK);
		for (uint32_t i = 0; i < N; i++) {
			uint32_t least = 0;
			for (uint32_t g = 1; g < n_groups; g++)
				least = load[g] < load[least] ? g : least;
			cr_assert_eq(group[i], least, "%u groups, item %u", n_groups, i);
			load[least] += k3_grid_patches(&grid[i]);
		}
	}
}

TEST(tables_that_are_none_are_refused_with_the_line)
{
	static const char *const bad[] = {
		"2 2 1\t1,4,4\t0\t0\t1 2",
		"2 2 1\t1,4,4\t0\t0\t1 2\t0:8,0:8\tmore",
		"2 2\t1,4,4\t0\t0\t1 2\t0:8,0:8",
		"0 2 1\t1,4,4\t-\t-\t-\t-",
		"2 -2 1\t1,4,4\t-\t-\t-\t-",
		"2 2 1\t1,0,4\t-\t-\t-\t-",
		"2 2 1\t1,4\t-\t-\t-\t-",
		"2 2 1\t1,4,4;\t-\t-\t-\t-",
		"2 2 1\t1,4,99999999999999999999\t-\t-\t-\t-",
		"2 2 1\t65535,65535,65535\t-\t-\t-\t-",
		"65536 2 1\t9999,64,2\t0\t0\t1 65536\t0:1",
		"no table",
	};
	size_t passed, failed;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[512];
		int n = snprintf(text, sizeof(text), "# comment\n\n%s\n", bad[i]);
		scratch_write("bad.tsv", text, (size_t)n);
		scratch_log();
		cr_expect_eq(k3_vision_table_check(scratch_path("bad.tsv"), &passed, &failed),
			     K3_EFORMAT, "%s", bad[i]);
		cr_expect(strstr(scratch_log(), "line 3"), "%s", bad[i]);
	}
}
