/* Documents to tiles, by hand: segments, holes, halo counts, links between tiles.  Expected values
 * are counted from the document lengths in each case.  The trap: a hole takes a row, so it ends
 * neither a segment nor the history that the convolution carries over. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "plan_case.h"

#define TEST(name) Test(layout, name, .timeout = 60)

static struct k3_model *model;

/* Ids of runs "id:rows id:rows"; malloc'ed. */
static int32_t *
ids_of(const char *runs, size_t *n_tokens)
{
	int32_t *ids = NULL;
	int id, rows, used;

	*n_tokens = 0;
	for (; sscanf(runs, " %d:%d%n", &id, &rows, &used) == 2; runs += used) {
		ids = realloc(ids, (*n_tokens + (size_t)rows) * sizeof(*ids));
		cr_assert_not_null(ids);
		for (int i = 0; i < rows; i++)
			ids[(*n_tokens)++] = id;
	}
	return ids;
}

/* Loss-only plan for a rank of a mesh. */
static struct k3_plan *
plan_on(const char *mesh, uint32_t rank, const char *runs, uint32_t tile_tokens)
{
	const struct k3_microbatch what = {.first = true};
	struct k3_plan_options o;
	struct k3_layout layout = {0};
	struct k3_plan *plan;
	int32_t *ids = ids_of(runs, &layout.n_tokens);

	k3_plan_options_init(&o);
	o.tile_tokens = tile_tokens;
	model = case_model(mesh, rank, &o);
	layout.doc_ids = ids;
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	free(ids);
	return plan;
}

static void
destroy(struct k3_plan *plan)
{
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

struct want {
	int32_t rows, valid, segments, cont_in, cont_out, hist_in, hist_out, prev, next;
};

static void
expect_tile(const struct k3_plan *plan, size_t i, const struct want *w)
{
	const struct k3_tile *t = &plan->tile[i];
	const int32_t *l = t->layout;
	const int32_t got[] = {l[K3_TL_ROWS],	  l[K3_TL_VALID],    l[K3_TL_SEGMENTS],
			       l[K3_TL_CONT_IN],  l[K3_TL_CONT_OUT], l[K3_TL_HIST_IN],
			       l[K3_TL_HIST_OUT], t->prev,	     t->next};
	const int32_t want[] = {w->rows,    w->valid,	 w->segments, w->cont_in, w->cont_out,
				w->hist_in, w->hist_out, w->prev,     w->next};
	static const char *const name[] = {"rows",    "valid",	  "segments", "cont_in", "cont_out",
					   "hist_in", "hist_out", "prev",     "next"};

	for (size_t k = 0; k < sizeof(got) / sizeof(got[0]); k++)
		cr_expect_eq(got[k], want[k], "tile %zu, %s: expected %d, got %d", i, name[k],
			     want[k], got[k]);
	cr_expect_eq(l[K3_TL_ROW0], (int32_t)t->row0, "tile %zu", i);
	cr_expect_eq(t->rows, (size_t)w->rows, "tile %zu", i);
}

static void
expect_tiles(const char *runs, size_t n, const struct want *want)
{
	struct k3_plan *plan = plan_on("cp=1", 0, runs, 64);

	cr_assert_eq(plan->n_tiles, n, "\"%s\": %zu tiles", runs, plan->n_tiles);
	for (size_t i = 0; i < n; i++) {
		cr_expect_eq(plan->tile[i].row0, 64 * i);
		expect_tile(plan, i, &want[i]);
	}
	destroy(plan);
}

static bool
is_accessed(const struct k3_plan *plan, size_t datum)
{
	for (size_t i = 0; i < plan->n_access; i++)
		if (plan->access[i].datum == datum)
			return true;
	return false;
}

/* Status of the check of n ids; what it logs must hold `message`, or be nothing. */
static void
expect_check(const int32_t *ids, size_t n, int status, const char *message)
{
	struct k3_layout layout = {.n_tokens = n, .doc_ids = ids};

	capture_begin();
	int ret = k3_layout_check(&layout);
	char *text = capture_end();
	cr_expect_eq(ret, status, "%s instead of %s", k3_status_text(ret), k3_status_text(status));
	if (!message)
		cr_expect_str_empty(text);
	expect_message(text, message ? message : "");
}

TEST(ids_in_ascending_runs_with_holes_are_accepted)
{
	expect_check((const int32_t[]){1, 1, 0, 1, 1, 2, 2}, 7, K3_OK, NULL);
	expect_check((const int32_t[]){0, 0, 3, 0, 7, INT32_MAX, 0}, 7, K3_OK, NULL);
	expect_check((const int32_t[]){0}, 1, K3_OK, NULL);
}

TEST(an_id_that_comes_back_is_refused_with_its_position)
{
	expect_check((const int32_t[]){1, 2, 1}, 3, K3_EINVAL, "document id 1 at token 2");
	expect_check((const int32_t[]){5, 0, 6, 0, 5}, 5, K3_EINVAL, "document id 5 at token 4");
}

TEST(a_descending_id_is_refused_with_its_position)
{
	expect_check((const int32_t[]){4, 4, 3}, 3, K3_EINVAL,
		     "document id 3 at token 2 comes after document 4");
}

TEST(a_negative_id_is_refused_with_its_position)
{
	expect_check((const int32_t[]){1, -1, 1}, 3, K3_EINVAL,
		     "document id -1 at token 1: must not be negative");
	expect_check((const int32_t[]){INT32_MIN}, 1, K3_EINVAL, "-2147483648 at token 0");
}

TEST(no_token_and_more_than_31_bits_of_tokens_are_refused)
{
	expect_check(NULL, 0, K3_ESHAPE, "layout of 0 tokens");
	expect_check(NULL, (size_t)INT32_MAX + 1, K3_ESHAPE, "layout of 2147483648 tokens");
}

TEST(a_bad_layout_makes_no_plan)
{
	const int32_t ids[] = {1, 2, 1};
	const struct k3_layout layout = {.n_tokens = 3, .doc_ids = ids};
	const struct k3_microbatch what = {.first = true};
	struct k3_plan *plan = (struct k3_plan *)&what;
	struct k3_model *m = case_model("cp=1", 0, NULL);

	capture_begin();
	cr_expect_eq(k3_plan_microbatch(&plan, m, &layout, &what), K3_EINVAL);
	free(capture_end());
	cr_expect_null(plan);
	k3_model_destroy(m);
}

TEST(one_tile_holds_ids_order_and_segments)
{
	/* a hole in document 1 and one between 2 and 3 */
	struct k3_plan *plan = plan_on("cp=1", 0, "1:2 0:1 1:1 2:1 0:1 3:1", 0);
	const int32_t ids[] = {1, 1, 0, 1, 2, 0, 3}, order[] = {0, 1, 3, 4, 6},
		      segments[] = {0, 3, 4, 5};

	cr_assert_eq(plan->n_tiles, 1);
	expect_tile(plan, 0, &(struct want){7, 5, 3, 0, 0, 0, 0, -1, -1});
	const int32_t *l = plan->tile[0].layout;
	cr_expect_arr_eq(k3_tile_doc(l), ids, sizeof(ids));
	cr_expect_arr_eq(k3_tile_order(l), order, sizeof(order));
	cr_expect_arr_eq(k3_tile_segments(l), segments, sizeof(segments));
	cr_expect_eq(plan->tile[0].first_doc, 1);
	cr_expect_eq(plan->tile[0].last_doc, 3);
	destroy(plan);
}

TEST(the_last_tile_may_be_short)
{
	static const struct want want[] = {{64, 64, 1, 0, 1, 0, 3, -1, 1},
					   {36, 36, 1, 1, 0, 3, 0, 0, -1}};

	expect_tiles("1:100", 2, want);
}

TEST(tiles_larger_than_the_stream_are_cut_to_it)
{
	struct k3_plan *plan = plan_on("cp=1", 0, "1:5 2:6", 128);

	cr_assert_eq(plan->n_tiles, 1);
	expect_tile(plan, 0, &(struct want){11, 11, 2, 0, 0, 0, 0, -1, -1});
	destroy(plan);
}

/* The switch of tests: nothing passes from tile to tile, documents stay what they are. */
TEST(with_the_state_cut_every_tile_begins_anew)
{
	static const struct want want[] = {{64, 64, 1, 0, 0, 0, 0, -1, -1},
					   {64, 64, 2, 0, 0, 0, 0, -1, -1},
					   {64, 64, 1, 0, 0, 0, 0, -1, -1}};
	const struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_plan_options o;
	struct k3_layout layout = {0};
	struct k3_plan *plan;
	int32_t *ids = ids_of("1:80 2:112", &layout.n_tokens);

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.cut_state = true;
	model = case_model("cp=1", 0, &o);
	layout.doc_ids = ids;
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	cr_assert_eq(k3_plan_check(plan), K3_OK);
	for (size_t i = 0; i < 3; i++)
		expect_tile(plan, i, &want[i]);
	cr_expect(plan->tile[0].last_doc == 1 && plan->tile[1].first_doc == 1,
		  "the cut must not change what attention sees");
	for (size_t i = 0; i < plan->n_data; i++)
		if (strcmp(plan->data[i].what, "state") == 0)
			cr_expect(!is_accessed(plan, i), "state %zu is used", i);
	free(ids);
	destroy(plan);
}

TEST(documents_that_end_with_their_tile_are_not_linked)
{
	static const struct want want[] = {{64, 64, 1, 0, 0, 0, 0, -1, -1},
					   {64, 64, 2, 0, 0, 0, 0, -1, -1}};

	expect_tiles("1:64 2:10 3:54", 2, want);
}

TEST(the_halo_holds_what_the_document_has_behind_it_and_three_rows_at_most)
{
	static const struct want one[] = {{64, 64, 2, 0, 1, 0, 1, -1, 1},
					  {64, 64, 1, 1, 0, 1, 0, 0, -1}};
	static const struct want two[] = {{64, 64, 2, 0, 1, 0, 2, -1, 1},
					  {64, 64, 1, 1, 0, 2, 0, 0, -1}};
	static const struct want four[] = {{64, 64, 2, 0, 1, 0, 3, -1, 1},
					   {64, 64, 1, 1, 0, 3, 0, 0, -1}};

	expect_tiles("1:63 2:65", 2, one);
	expect_tiles("1:62 2:66", 2, two);
	expect_tiles("1:60 2:68", 2, four);
}

TEST(holes_at_the_cut_do_not_count_as_history)
{
	static const struct want want[] = {{64, 62, 2, 0, 1, 0, 1, -1, 1},
					   {64, 63, 1, 1, 0, 1, 0, 0, -1}};

	expect_tiles("1:61 2:1 0:3 2:63", 2, want);
}

TEST(a_tile_of_holes_inside_a_document_is_passed_by)
{
	static const struct want want[] = {{64, 64, 1, 0, 1, 0, 3, -1, 2},
					   {64, 0, 0, 0, 0, 0, 0, -1, -1},
					   {64, 64, 1, 1, 0, 3, 0, 0, -1}};

	expect_tiles("1:64 0:64 1:64", 3, want);
}

TEST(a_tile_of_holes_between_documents_links_nothing)
{
	static const struct want want[] = {{64, 64, 1, 0, 0, 0, 0, -1, -1},
					   {64, 0, 0, 0, 0, 0, 0, -1, -1},
					   {64, 64, 1, 0, 0, 0, 0, -1, -1}};

	expect_tiles("1:64 0:64 2:64", 3, want);
}

TEST(history_adds_up_over_tiles_with_few_rows_of_a_document)
{
	/* document 1 has one row in each of the first four tiles */
	static const struct want want[] = {
		{64, 1, 1, 0, 1, 0, 1, -1, 1}, {64, 1, 1, 1, 1, 1, 2, 0, 2},
		{64, 1, 1, 1, 1, 2, 3, 1, 3},  {64, 1, 1, 1, 1, 3, 3, 2, 4},
		{64, 1, 1, 1, 0, 3, 0, 3, -1},
	};

	expect_tiles("1:1 0:63 1:1 0:63 1:1 0:63 1:1 0:63 1:1 0:63", 5, want);
}

TEST(history_does_not_count_rows_of_an_earlier_document)
{
	/* document 1 enters tile 1 and ends there, document 2 has one row before the cut */
	static const struct want want[] = {{64, 64, 1, 0, 1, 0, 3, -1, 1},
					   {64, 64, 2, 1, 1, 3, 1, 0, 2},
					   {64, 64, 1, 1, 0, 1, 0, 1, -1}};

	expect_tiles("1:127 2:65", 3, want);
}

TEST(every_rank_sees_the_tiles_of_the_whole_stream)
{
	/* 100 tokens on two ranks: 50 rows each, so two tiles that the rank's end cuts */
	static const struct want want[] = {{50, 50, 1, 0, 1, 0, 3, -1, 1},
					   {50, 50, 1, 1, 0, 3, 0, 0, -1}};

	for (uint32_t rank = 0; rank < 2; rank++) {
		struct k3_plan *plan = plan_on("cp=2", rank, "1:100", 64);
		cr_assert_eq(plan->n_tiles, 2);
		for (uint32_t i = 0; i < 2; i++) {
			cr_expect_eq(plan->tile[i].owner_cp, i);
			cr_expect_eq(plan->tile[i].row0, 50 * i);
			expect_tile(plan, i, &want[i]);
		}
		cr_expect_eq(plan->own_first, rank);
		cr_expect_eq(plan->own_n, 1);
		destroy(plan);
	}
}

TEST(rows_that_pad_the_stream_to_the_ranks_are_holes)
{
	/* 7 tokens on two ranks: 4 rows each, the last without a document */
	struct k3_plan *plan = plan_on("cp=2", 1, "1:7", 64);

	cr_expect_eq(plan->n_tokens, 8);
	cr_expect_eq(plan->own_rows, 4);
	expect_tile(plan, 1, &(struct want){4, 3, 1, 1, 0, 3, 0, 0, -1});
	cr_expect_eq(k3_tile_doc(plan->tile[1].layout)[3], 0);
	destroy(plan);
}

TEST(the_hash_follows_length_and_every_id)
{
	int32_t ids[] = {1, 1, 2, 2, 0};
	struct k3_layout layout = {.n_tokens = 5, .doc_ids = ids};
	uint64_t h = k3_layout_hash(&layout);

	cr_expect_eq(k3_layout_hash(&(struct k3_layout){
			     .n_tokens = 5, .doc_ids = (const int32_t[]){1, 1, 2, 2, 0}}),
		     h);
	cr_expect_neq(k3_layout_hash(&(struct k3_layout){.n_tokens = 4, .doc_ids = ids}), h);
	for (size_t i = 0; i < 5; i++) {
		ids[i]++;
		cr_expect_neq(k3_layout_hash(&layout), h, "id %zu", i);
		ids[i]--;
	}
}
