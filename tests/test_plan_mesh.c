/* Meshes: groups, shards, and the plans of every rank. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/mesh_comm.h"
#include "../planner/shard.h"
#include "plan_case.h"

Test(plan_mesh, keys_come_in_any_order_and_missing_ones_are_one, .timeout = 60)
{
	struct k3_mesh m;

	cr_assert_eq(k3_mesh_parse(&m, "cp=3,dp_replicate=2"), K3_OK);
	cr_expect(m.dp_replicate == 2 && m.dp_shard == 1 && m.cp == 3 && m.rank == 0);
	cr_expect_eq(k3_mesh_ranks(&m), 6);
	cr_assert_eq(k3_mesh_parse(&m, "dp_shard=2048"), K3_OK);
	cr_expect_eq(k3_mesh_group_size(&m, K3_GROUP_SHARD), 2048);
}

Test(plan_mesh, what_is_no_mesh_is_refused_with_the_text, .timeout = 60)
{
	static const char *const bad[] = {"",
					  "cp",
					  "cp=",
					  "cp=0",
					  "cp=-1",
					  "cp=2x",
					  "cp=1e3",
					  "cp= 2",
					  "tp=2",
					  "cp=2,",
					  "cp=2,cp=2",
					  "cp=65537",
					  "dp_shard=99999999999999999999",
					  "=2",
					  "dp_shard=256,cp=257"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct k3_mesh m;
		capture_begin();
		cr_expect_eq(k3_mesh_parse(&m, bad[i]), K3_EINVAL, "\"%s\"", bad[i]);
		expect_message(capture_end(), "--mesh");
	}
}

/* Every rank is in one group of each kind of more than one rank, at the place that
 * k3_mesh_group_rank says. */
static void
expect_groups(struct k3_mesh m)
{
	struct k3_arena *arena = k3i_arena_create();
	struct k3_comm *comm, *first = NULL;
	size_t n, n_first = 0;

	for (m.rank = 0; m.rank < k3_mesh_ranks(&m); m.rank++) {
		cr_assert_eq(k3i_mesh_comms(arena, &m, &comm, &n), K3_OK);
		if (!first) {
			first = comm;
			n_first = n;
		}
		cr_assert_eq(n, n_first);
		for (size_t i = 0; i < n; i++) {
			cr_expect_eq(comm[i].n_members, first[i].n_members);
			cr_expect_arr_eq(comm[i].member, first[i].member,
					 comm[i].n_members * sizeof(*comm[i].member));
		}
		for (int kind = 0; kind < K3_N_GROUPS; kind++) {
			enum k3_group group = (enum k3_group)kind;
			int32_t at = k3_mesh_comm(&m, group);
			uint32_t size = k3_mesh_group_size(&m, group);
			cr_expect_eq(at < 0, size == 1, "%ux%ux%u, kind %d", m.dp_replicate,
				     m.dp_shard, m.cp, kind);
			if (at < 0)
				continue;
			cr_assert_lt(at, n);
			cr_expect_eq(comm[at].n_members, size);
			cr_expect_eq(comm[at].member[k3_mesh_group_rank(&m, group, m.rank)],
				     m.rank);
		}
	}
	k3i_arena_destroy(arena);
}

Test(plan_mesh, all_layouts_of_six_and_twelve_ranks_have_the_same_groups_everywhere, .timeout = 60)
{
	for (uint32_t ranks = 1; ranks <= 12; ranks++)
		for (uint32_t r = 1; r <= ranks; r++)
			for (uint32_t s = 1; r * s <= ranks; s++)
				if (ranks % (r * s) == 0)
					expect_groups(
						(struct k3_mesh){r, s, ranks / (r * s), 0, false});
}

Test(plan_mesh, groups_are_created_world_first_then_replicas_shards_and_cp, .timeout = 60)
{
	static const char *const name[] = {"world",	 "replicate0", "replicate1", "replicate2",
					   "replicate3", "shard0",     "shard1",     "cp0",
					   "cp1",	 "cp2",	       "cp3"};
	static const uint32_t replica[] = {1, 5}, shard[] = {4, 5, 6, 7}, cp[] = {2, 3};
	struct k3_mesh m = {2, 2, 2, 0, false};
	struct k3_arena *arena = k3i_arena_create();
	struct k3_comm *comm;
	size_t n;

	cr_assert_eq(k3i_mesh_comms(arena, &m, &comm, &n), K3_OK);
	cr_assert_eq(n, sizeof(name) / sizeof(name[0]));
	for (size_t i = 0; i < n; i++)
		cr_expect_str_eq(comm[i].name, name[i]);
	cr_expect_arr_eq(comm[2].member, replica, sizeof(replica));
	cr_expect_arr_eq(comm[6].member, shard, sizeof(shard));
	cr_expect_arr_eq(comm[8].member, cp, sizeof(cp));
	k3i_arena_destroy(arena);
}

/* Rows that each rank of a shard group holds of the one block of a parameter with `rows` rows. */
static void
expect_shards(uint32_t ranks, size_t rows, size_t experts, const size_t *want)
{
	struct k3_model model = {.options.mesh = {1, ranks, 1, 0, false}};
	struct k3_param p = {.rows = rows,
			     .cols = 3,
			     .block_rows = rows,
			     .n_blocks = 1,
			     .experts_per_block = experts};
	size_t row0, n, next = 0;

	for (uint32_t r = 0; r < ranks; r++) {
		k3i_shard_block(&model, &p, 0, r, &row0, &n);
		cr_expect_eq(n, want[r], "rank %u of %u: %zu rows, expected %zu", r, ranks, n,
			     want[r]);
		cr_expect_eq(row0, next, "rank %u", r);
		cr_expect_leq(n, k3i_shard_pitch(&model, &p, 0));
		next += n;
	}
	cr_expect_eq(next, rows);
}

Test(plan_mesh, shards_are_ceil_rows_and_may_be_empty, .timeout = 60)
{
	expect_shards(4, 5, 0, (const size_t[]){2, 2, 1, 0});
	expect_shards(8, 1, 0, (const size_t[]){1, 0, 0, 0, 0, 0, 0, 0});
	expect_shards(1, 5, 0, (const size_t[]){5});
	expect_shards(5, 96, 0, (const size_t[]){20, 20, 20, 20, 16});
}

Test(plan_mesh, experts_stay_whole_unless_there_are_fewer_than_ranks, .timeout = 60)
{
	expect_shards(4, 7 * 10, 7, (const size_t[]){20, 20, 20, 10});
	expect_shards(4, 2 * 10, 2, (const size_t[]){5, 5, 5, 5});
}

Test(plan_mesh, a_mesh_of_two_by_two_by_two_is_proved, .timeout = 60)
{
	static const char *const documents[] = {"70 -5 125", "200", "3 1 196", "-200"};
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	case_prove("dp_replicate=2,dp_shard=2,cp=2", &o, documents, 1);
	o.tile_tokens = 64;
	case_prove("dp_replicate=2,dp_shard=2,cp=2", &o, documents, 2);
}

Test(plan_mesh, accumulation_does_the_same_collectives_in_every_microbatch, .timeout = 60)
{
	static const char *const documents[] = {"20", "-20", "5 5 5 5", "1 19"};

	case_prove("dp_shard=4", NULL, documents, 4);
	case_prove("dp_replicate=4", NULL, documents, 4);
}

Test(plan_mesh, uneven_groups_and_pieces_are_proved, .timeout = 60)
{
	static const char *const documents[] = {"99", "64 -1 34", "40 30 29", "-9 90"};
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.block_bytes = 5000;
	o.piece_bytes = 12000;
	o.gather_slots = 3;
	case_prove("dp_shard=4,cp=3", &o, documents, 1);
	o.gather_slots = 1;
	case_prove("dp_shard=3,cp=1", &o, documents, 1);
}

Test(plan_mesh, seven_tokens_on_two_and_three_ranks_are_padded, .timeout = 60)
{
	static const size_t rows[] = {0, 0, 4, 3};

	for (uint32_t cp = 2; cp <= 3; cp++) {
		static const char *const documents[] = {"7"};
		char mesh[16];
		snprintf(mesh, sizeof(mesh), "cp=%u", cp);
		case_prove(mesh, NULL, documents, 1);
		struct k3_model *model = case_model(mesh, cp - 1, NULL);
		struct k3_plan *plan = case_plan(model, "7", true);
		const struct k3_tile *last = &plan->tile[plan->own_first];
		cr_expect_eq(plan->n_tokens, cp * rows[cp]);
		cr_expect_eq(plan->own_rows, rows[cp]);
		for (size_t i = 0; i < last->rows; i++)
			cr_expect_eq(k3_tile_doc(last->layout)[i], last->row0 + i < 7, "row %zu",
				     last->row0 + i);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
}

Test(plan_mesh, fewer_rows_than_the_convolution_needs_are_refused, .timeout = 60)
{
	static const int32_t ids[7] = {1, 1, 1, 1, 1, 1, 1};
	struct k3_layout layout = {.n_tokens = 7, .doc_ids = ids};
	struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_model *model = case_model("cp=4", 0, NULL);
	struct k3_plan *plan;

	capture_begin();
	cr_expect_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_ESHAPE);
	expect_message(capture_end(), "7 tokens on 4 cp ranks: 2 rows a rank, at least 3");
	k3_model_destroy(model);
}

/* The halo task of a plan, NULL when there is none. */
static const struct k3_task *
find_task(const struct k3_plan *plan, enum k3_op op)
{
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (plan->task[i].op == op)
			return &plan->task[i];
	return NULL;
}

Test(plan_mesh, a_document_passes_by_a_rank_of_holes, .timeout = 60)
{
	static const char *const documents[] = {"4 -4"};
	static const int32_t ids[12] = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
	struct k3_layout layout = {.n_tokens = 12, .doc_ids = ids};
	struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_order *order = k3_order_create(3, false);

	case_prove("cp=2", NULL, documents, 1);
	for (uint32_t rank = 0; rank < 3; rank++) {
		struct k3_model *model = case_model("cp=3", rank, NULL);
		struct k3_plan *plan;
		cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
		cr_expect_eq(k3_plan_check(plan), K3_OK);
		cr_expect_eq(k3_order_add(order, plan, rank), K3_OK);
		const struct k3_task *send = find_task(plan, K3_OP_HALO_SEND),
				     *recv = find_task(plan, K3_OP_HALO_RECV);
		const struct k3_task *combine = find_task(plan, K3_OP_KDA_STATE_COMBINE);
		cr_expect_eq(send != NULL, rank != 1);
		cr_expect_eq(recv != NULL, rank != 1);
		cr_expect_eq(combine != NULL, rank != 1);
		if (rank == 0)
			cr_expect_eq(send->peer, 2);
		if (rank == 2) {
			const struct k3_kda_state_combine_args *a = combine->args;
			cr_expect_eq(recv->peer, 0);
			cr_expect_eq(a->n_from, 1);
			cr_expect_eq(a->from[0], 0);
		}
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
	cr_expect_eq(k3_order_check(order), K3_OK);
	k3_order_destroy(order);
}

Test(plan_mesh, states_are_combined_in_the_order_of_the_document, .timeout = 60)
{
	struct k3_model *model = case_model("cp=4", 2, NULL);
	struct k3_plan *plan = case_plan(model, "32", true);
	uint32_t seen = 0;

	/* rank 2 takes the state of ranks 0, 1 forward, and the gradient of rank 3 backward */
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_kda_state_combine_args *a = plan->task[i].args;
		if (plan->task[i].op != K3_OP_KDA_STATE_COMBINE || plan->task[i].layer != 0 ||
		    plan->task[i].group != 0)
			continue;
		if (seen++ == 0)
			cr_expect(a->n_from == 2 && a->from[0] == 0 && a->from[1] == 1);
		else
			cr_expect(a->n_from == 1 && a->from[0] == 3);
	}
	cr_expect_eq(seen, 2);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_mesh, positions_and_slots_do_not_depend_on_the_documents, .timeout = 60)
{
	static const char *const documents[] = {"400", "100 -100 200", "7 -1 60 130 2 -40 160",
						"-400", "101 99 100 100"};
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.key_tiles = 2;
	for (uint32_t rank = 0; rank < 3; rank++) {
		struct k3_model *model = case_model("cp=3", rank, &o);
		uint64_t bytes = 0;
		uint32_t n_pos = 0;
		for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
			struct k3_plan *plan = case_plan(model, documents[i], true);
			if (i > 0) {
				cr_expect_eq(plan->n_pos, n_pos, "rank %u, \"%s\"", rank,
					     documents[i]);
				cr_expect_eq(plan->slot_bytes, bytes, "rank %u, \"%s\"", rank,
					     documents[i]);
			}
			n_pos = plan->n_pos;
			bytes = plan->slot_bytes;
			k3_plan_destroy(plan);
		}
		k3_model_destroy(model);
	}
}

Test(plan_mesh, two_shards_halve_the_persistent_memory, .timeout = 60)
{
	struct k3_model *one = case_model("cp=1", 0, NULL),
			*two = case_model("dp_shard=2", 0, NULL);
	double buffers = 0;

	for (size_t i = 4 * (size_t)one->n_blocks; i < one->n_persist; i++)
		buffers += (double)one->persist[i].bytes;
	double ratio =
		((double)two->persist_bytes - buffers) / ((double)one->persist_bytes - buffers);
	/* rank 0 has all of each vector, which is one row: so much of so small a model */
	cr_expect(ratio >= 0.5 && ratio < 0.55, "ratio %g", ratio);
	k3_model_destroy(one);
	k3_model_destroy(two);
}

Test(plan_mesh, shards_of_all_ranks_make_the_whole_parameter_once, .timeout = 60)
{
	struct k3_model *whole = case_model("cp=1", 0, NULL);
	size_t n = whole->params.n_elems, sum = 0;

	for (uint32_t rank = 0; rank < 6; rank++) {
		struct k3_model *part = case_model("dp_shard=3,cp=2", rank, NULL);
		cr_expect_eq(part->n_blocks, whole->n_blocks);
		cr_expect_eq(part->n_norm_partial, whole->n_norm_partial,
			     "all ranks sum the same partial norms");
		for (uint32_t i = 0; i < part->n_blocks; i++)
			sum += part->persist[i].rows * part->persist[i].row_elems;
		k3_model_destroy(part);
	}
	cr_expect_eq(sum, n);
	k3_model_destroy(whole);
}

Test(plan_mesh, a_gather_holds_no_more_than_a_piece_or_a_block, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.block_bytes = 4096;
	o.piece_bytes = 20000;
	struct k3_model *model = case_model("dp_shard=2", 0, &o);
	struct k3_plan *plan = case_plan(model, "64", true);

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->op == K3_OP_GATHER_PARAMS)
			cr_expect(t->count * 2 * sizeof(float) <= o.piece_bytes || t->n_access == 2,
				  "%s: %zu elements", t->name, (size_t)t->count);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Most expert groups (by their first stack) that are gathered at once. */
static uint32_t
experts_alive(const struct k3_plan *plan)
{
	uint32_t most = 0;

	for (uint32_t pos = 0; pos < plan->n_pos; pos++) {
		uint32_t alive = 0;
		for (size_t i = plan->model->n_persist; i < plan->n_data; i++) {
			const struct k3_datum *d = &plan->data[i];
			if (d->kind == K3_DATA_GATHERED && strcmp(d->what, "full") == 0 &&
			    d->first_pos <= pos && pos <= d->last_pos)
				alive +=
					plan->model->params.param[d->param].role == K3_P_EXPERT_W13;
		}
		most = alive > most ? alive : most;
	}
	return most;
}

Test(plan_mesh, gather_slots_bound_what_is_gathered_ahead, .timeout = 60)
{
	for (uint32_t slots = 1; slots <= 3; slots++) {
		struct k3_plan_options o;
		k3_plan_options_init(&o);
		o.gather_slots = slots;
		o.expert_groups = 6;
		struct k3_model *model = case_model("dp_shard=2", 0, &o);
		struct k3_plan *plan = case_plan(model, "64", true);
		cr_expect_eq(experts_alive(plan), slots);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
}

Test(plan_mesh, one_rank_plans_no_communication, .timeout = 60)
{
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "64", true);

	cr_expect_eq(plan->n_comms, 0);
	for (size_t i = 0; i < plan->n_tasks; i++)
		cr_expect_lt(plan->task[i].comm, 0);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

Test(plan_mesh, blocks_restart_at_documents_so_the_last_may_be_one_more, .timeout = 60)
{
	/* 781 and 1267 tokens in blocks of 32: 25 and 40, not 2048 / 32 */
	struct k3_model *model = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(model, "781 1267", true);
	const int32_t *layout = plan->tile[0].layout, *seg = k3_tile_segments(layout);
	int32_t blocks = 0;

	for (int32_t s = 0; s < layout[K3_TL_SEGMENTS]; s++)
		blocks += (seg[s + 1] - seg[s] + 31) / 32;
	cr_expect_eq(blocks, 65);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
