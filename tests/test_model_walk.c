/* The model's walk as tasks: which operations, in which order, on which tiles, with which access to
 * gradients; what comes out for slots, memory and priorities.  Counts follow from the configuration
 * (preset tiny: layers 0 1 2 are KDA, 3 4 MLA, layer 0 is dense, a residual block every two layers)
 * and from the documents of each case. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/build.h"
#include "plan_case.h"

#define TEST(name) Test(model_walk, name, .timeout = 60)

enum { LAYERS = 5, KDA_LAYERS = 3, MLA_LAYERS = 2, MOE_LAYERS = 4, GROUPS = 2, EXPERTS = 6 };

/* Options of most cases: tiles of 64 rows. */
static struct k3_plan_options
tiled(void)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	return o;
}

static struct k3_model *
tiled_model(void)
{
	struct k3_plan_options o = tiled();

	return case_model("cp=1", 0, &o);
}

static struct k3_plan *
plan_as(const struct k3_model *model, const char *documents, struct k3_microbatch what)
{
	struct k3_layout layout = {0};
	struct k3_plan *plan;
	int32_t *ids = case_documents(documents, &layout.n_tokens);

	layout.doc_ids = ids;
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	free(ids);
	return plan;
}

static const struct k3_access *
access_of(const struct k3_plan *plan, size_t task, uint32_t k)
{
	return &plan->access[plan->task[task].first_access + k];
}

TEST(every_operation_runs_once_per_tile_of_its_layers)
{
	static const struct {
		size_t each_tile;
		enum k3_op op[4]; /* EMBED_FWD behind the first: none */
	} want[] = {
		{1, {K3_OP_EMBED_FWD}},
		{1, {K3_OP_BATCH_LOAD, K3_OP_EMBED_BWD, K3_OP_LM_HEAD_CE, K3_OP_LOSS_SUM}},
		{2 * LAYERS + 1, {K3_OP_MIX_NORM_FWD, K3_OP_MIX_NORM_BWD}},
		{KDA_LAYERS, {K3_OP_KDA_PROJ_FWD, K3_OP_KDA_PROJ_BWD_DX, K3_OP_KDA_PROJ_BWD_DW}},
		{KDA_LAYERS, {K3_OP_KDA_GATE_FWD, K3_OP_KDA_GATE_BWD_DX, K3_OP_KDA_GATE_BWD_DW}},
		{KDA_LAYERS, {K3_OP_KDA_CONV_FWD, K3_OP_KDA_CONV_BWD}},
		{KDA_LAYERS * GROUPS, {K3_OP_KDA_CHUNK_FWD, K3_OP_KDA_CHUNK_BWD}},
		{KDA_LAYERS, {K3_OP_KDA_OUT_FWD, K3_OP_KDA_OUT_BWD_DX, K3_OP_KDA_OUT_BWD_DW}},
		{MLA_LAYERS, {K3_OP_MLA_PROJ_FWD, K3_OP_MLA_PROJ_BWD_DX, K3_OP_MLA_PROJ_BWD_DW}},
		{MLA_LAYERS,
		 {K3_OP_MLA_EXPAND_FWD, K3_OP_MLA_EXPAND_BWD_DX, K3_OP_MLA_EXPAND_BWD_DW}},
		{MLA_LAYERS * GROUPS, {K3_OP_MLA_ATTN_FWD}},
		{MLA_LAYERS, {K3_OP_MLA_OUT_FWD, K3_OP_MLA_OUT_BWD_DX, K3_OP_MLA_OUT_BWD_DW}},
		{1, {K3_OP_DENSE_FFN_FWD, K3_OP_DENSE_FFN_BWD_DX, K3_OP_DENSE_FFN_BWD_DW}},
		{MOE_LAYERS,
		 {K3_OP_SHARED_FFN_FWD, K3_OP_SHARED_FFN_BWD_DX, K3_OP_SHARED_FFN_BWD_DW,
		  K3_OP_MOE_COUNT}},
		{MOE_LAYERS,
		 {K3_OP_MOE_ROUTE_FWD, K3_OP_MOE_DISPATCH_FWD, K3_OP_MOE_DISPATCH_BWD_DX,
		  K3_OP_MOE_DISPATCH_BWD_DW}},
		{MOE_LAYERS,
		 {K3_OP_MOE_COMBINE_FWD, K3_OP_MOE_COMBINE_BWD_DX, K3_OP_MOE_COMBINE_BWD_DW}},
		{MOE_LAYERS * GROUPS, {K3_OP_EXPERT_FWD, K3_OP_EXPERT_DGRAD, K3_OP_EXPERT_WGRAD}},
	};
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = case_plan(model, "256", true);

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		for (size_t k = 0; k < 4 && (k == 0 || want[i].op[k]); k++)
			cr_expect_eq(case_count(plan, want[i].op[k]), 4 * want[i].each_tile, "%s",
				     k3_op_name(want[i].op[k]));
	cr_expect_eq(case_count(plan, K3_OP_STEP_LOAD), 1);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(layers_and_tiles_ascend_forward_and_descend_backward)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = case_plan(model, "300", true);
	struct {
		int layer, tile;
	} last[K3_N_OPS][GROUPS];
	int layer = 0;
	bool turned = false;

	memset(last, -1, sizeof(last));
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		bool backward = t->pass == K3_PASS_BACKWARD;
		if (t->layer >= 0) {
			if (backward && !turned)
				cr_expect_eq(layer, LAYERS - 1, "%s", t->name);
			turned = turned || backward;
			cr_expect_eq(turned, backward, "%s", t->name);
			cr_expect(turned ? t->layer <= layer : t->layer >= layer, "%s after l%d",
				  t->name, layer);
			layer = t->layer;
		}
		/* mixers come twice a layer, attention's pairs are in another case */
		if (t->layer < 0 || t->op == K3_OP_MIX_NORM_FWD || t->op == K3_OP_MIX_NORM_BWD ||
		    t->op == K3_OP_MLA_ATTN_BWD)
			continue;
		int group = t->group < 0 ? 0 : t->group;
		int before = last[t->op][group].tile;
		if (last[t->op][group].layer == t->layer)
			cr_expect(turned ? t->tile < before : t->tile > before, "%s after t%d",
				  t->name, before);
		last[t->op][group].layer = t->layer;
		last[t->op][group].tile = t->tile;
	}
	cr_expect_eq(layer, 0);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Tasks of an operation take all tiles, then all again for its next use. */
static void
expect_rounds(const struct k3_plan *plan, enum k3_op op, enum k3_pass pass)
{
	int32_t n = (int32_t)plan->n_tiles, at = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->op != op)
			continue;
		cr_expect_eq(t->pass, pass, "%s", t->name);
		cr_expect_eq(t->tile, pass == K3_PASS_FORWARD ? at : n - 1 - at, "%s", t->name);
		at = (at + 1) % n;
	}
	cr_expect_eq(at, 0);
}

TEST(mixers_and_embeddings_take_the_tiles_in_the_order_of_their_pass)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = case_plan(model, "200", true);

	expect_rounds(plan, K3_OP_MIX_NORM_FWD, K3_PASS_FORWARD);
	expect_rounds(plan, K3_OP_MIX_NORM_BWD, K3_PASS_BACKWARD);
	expect_rounds(plan, K3_OP_EMBED_FWD, K3_PASS_FORWARD);
	expect_rounds(plan, K3_OP_EMBED_BWD, K3_PASS_BACKWARD);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(the_head_changes_passes_within_a_tile)
{
	struct k3_plan_options o = tiled();
	size_t n = 0;

	o.tile_tokens = 128;
	o.head_rows = 64; /* two parts a tile: the second loss comes after the first gradient */
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "256", true);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (k3_op_family(t->op) != K3_FAMILY_LOSS)
			continue;
		bool gradient = t->op == K3_OP_LM_HEAD_DX || t->op == K3_OP_LM_HEAD_DW;
		cr_expect_eq(t->pass, gradient ? K3_PASS_BACKWARD : K3_PASS_FORWARD, "%s", t->name);
		n++;
	}
	cr_expect_eq(n, 2 * (2 * 3 + 1), "%zu tasks", n);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(a_layer_has_the_attention_and_the_feed_forward_of_its_kind)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = case_plan(model, "64", true);

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		enum k3_family family = k3_op_family(t->op);
		if (family == K3_FAMILY_KDA)
			cr_expect_lt(t->layer, 3, "%s", t->name);
		if (family == K3_FAMILY_MLA)
			cr_expect_geq(t->layer, 3, "%s", t->name);
		if (family == K3_FAMILY_MOE || t->op == K3_OP_SHARED_FFN_FWD)
			cr_expect_geq(t->layer, 1, "%s", t->name);
		if (t->op == K3_OP_DENSE_FFN_FWD)
			cr_expect_eq(t->layer, 0, "%s", t->name);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(mixers_see_the_residual_blocks_that_are_open)
{
	/* blocks open at layers 0, 2, 4: what the attention of a layer mixes was opened before it,
	 * its feed-forward sees the own one too */
	static const uint32_t want[] = {0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3};
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = case_plan(model, "64", true);
	size_t n = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_mix_norm_fwd_args *a = plan->task[i].args;
		if (plan->task[i].op != K3_OP_MIX_NORM_FWD)
			continue;
		cr_assert_lt(n, sizeof(want) / sizeof(want[0]));
		cr_expect_eq(a->blocks.n, want[n], "mixer %zu", n);
		n++;
	}
	cr_expect_eq(n, 2 * LAYERS + 1);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Bit j of seen[i]: query tile i has a task that reads the keys of tile j; of layer 3, group 0. */
static void
pairs_seen(const struct k3_plan *plan, enum k3_op op, uint32_t *seen)
{
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->op != op || t->layer != 3 || t->group != 0)
			continue;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_datum *d = &plan->data[access_of(plan, i, k)->datum];
			if (strcmp(d->what, "kv") != 0)
				continue;
			cr_expect_eq(seen[t->tile] >> d->tile & 1, 0, "%s: t%d twice", t->name,
				     d->tile);
			seen[t->tile] |= 1u << d->tile;
		}
	}
}

static void
expect_pairs(const struct k3_plan *plan, size_t n, const uint32_t *want)
{
	static const enum k3_op op[] = {K3_OP_MLA_ATTN_FWD, K3_OP_MLA_ATTN_BWD};

	cr_assert_eq(plan->n_tiles, n);
	for (size_t k = 0; k < 2; k++) {
		uint32_t seen[16] = {0};
		pairs_seen(plan, op[k], seen);
		for (size_t i = 0; i < n; i++)
			cr_expect_eq(seen[i], want[i], "%s, tile %zu: expected %#x, got %#x",
				     k3_op_name(op[k]), i, want[i], seen[i]);
	}
}

static void
expect_document_pairs(const char *documents, uint32_t key_tiles, size_t n, const uint32_t *want)
{
	struct k3_plan_options o = tiled();

	o.key_tiles = key_tiles;
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, documents, true);
	expect_pairs(plan, n, want);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(one_document_attends_to_every_earlier_tile)
{
	expect_document_pairs("256", 0, 4, (const uint32_t[]){1, 3, 7, 15});
}

TEST(tiles_without_a_common_document_are_no_pair)
{
	expect_document_pairs("64 64 64 64", 0, 4, (const uint32_t[]){1, 2, 4, 8});
	/* documents end in tiles 1 and 4: rows 0..99, 100..127, 128..299, 300..319 */
	expect_document_pairs("100 28 172 20", 0, 5, (const uint32_t[]){1, 3, 4, 12, 28});
}

TEST(a_tile_of_holes_is_paired_with_itself_alone)
{
	expect_document_pairs("64 -64 64", 0, 3, (const uint32_t[]){1, 2, 4});
	expect_document_pairs("64 -128 64", 0, 4, (const uint32_t[]){1, 2, 4, 8});
}

TEST(a_document_attends_across_a_tile_of_holes)
{
	struct k3_model *model = tiled_model();
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	int32_t ids[192];
	const struct k3_layout layout = {.n_tokens = 192, .doc_ids = ids};
	struct k3_plan *plan;

	for (size_t i = 0; i < 192; i++)
		ids[i] = i / 64 != 1;
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	expect_pairs(plan, 3, (const uint32_t[]){1, 2, 5});
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(ranges_of_keys_cover_every_pair_once)
{
	expect_document_pairs("320", 2, 5, (const uint32_t[]){1, 3, 7, 15, 31});
	struct k3_plan_options o = tiled();
	o.key_tiles = 2;
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "320", true);
	/* 1 + 1 + 2 + 2 + 3 ranges of at most two key tiles */
	cr_expect_eq(case_count(plan, K3_OP_MLA_ATTN_FWD), 9 * MLA_LAYERS * GROUPS);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_mla_attn_args *a = plan->task[i].args;
		if (plan->task[i].op == K3_OP_MLA_ATTN_FWD)
			cr_expect(a->kv.n >= 1 && a->kv.n <= 2, "%s: %u", plan->task[i].name,
				  a->kv.n);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(head_groups_follow_the_options)
{
	struct k3_plan_options o = tiled();

	o.kda_groups = 1;
	o.mla_groups = 1;
	o.expert_groups = 3;
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "64", true);
	cr_expect_eq(case_count(plan, K3_OP_KDA_CHUNK_FWD), KDA_LAYERS);
	cr_expect_eq(case_count(plan, K3_OP_MLA_ATTN_FWD), MLA_LAYERS);
	cr_expect_eq(case_count(plan, K3_OP_EXPERT_FWD), 3 * MOE_LAYERS);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(a_plan_of_the_loss_alone_names_no_gradient)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = plan_as(model, "100", (struct k3_microbatch){.first = true});

	cr_expect_eq(case_count(plan, K3_OP_LOSS_SUM), 2);
	cr_expect_eq(case_count(plan, K3_OP_MOE_COUNT), 0, "loads are counted in training");
	for (size_t i = 0; i < plan->n_tasks; i++)
		cr_expect_eq(plan->task[i].pass, K3_PASS_FORWARD, "%s", plan->task[i].name);
	for (size_t i = 0; i < plan->n_access; i++)
		cr_expect_neq(plan->data[plan->access[i].datum].kind, K3_DATA_GRAD);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

/* Mode of the first access to each gradient block must be `want`; all blocks are accessed. */
static void
expect_first_mode(const struct k3_plan *plan, uint8_t want)
{
	const struct k3_model *m = plan->model;
	uint8_t *seen = calloc(m->n_blocks, 1);

	cr_assert_not_null(seen);
	for (size_t i = 0; i < plan->n_access; i++) {
		const struct k3_access *a = &plan->access[i];
		if (plan->data[a->datum].kind != K3_DATA_GRAD)
			continue;
		uint8_t *mode = &seen[a->datum - m->n_blocks];
		cr_expect_eq(a->mode, *mode ? K3_RW : want, "block %u", a->datum - m->n_blocks);
		*mode = a->mode;
	}
	for (uint32_t i = 0; i < m->n_blocks; i++)
		cr_expect_neq(seen[i], 0, "block %u has no gradient", i);
	free(seen);
}

TEST(gradients_are_written_by_the_first_microbatch_and_added_to_by_others)
{
	struct k3_model *model = tiled_model();

	for (int first = 0; first < 2; first++) {
		struct k3_plan *plan = case_plan(model, "100 92", first);
		expect_first_mode(plan, first ? K3_W : K3_RW);
		cr_expect_eq(case_count(plan, K3_OP_STEP_LOAD), (size_t)first);
		k3_plan_destroy(plan);
	}
	k3_model_destroy(model);
}

TEST(forced_routes_come_with_the_batch_for_every_moe_layer)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan = plan_as(
		model, "100", (struct k3_microbatch){.first = true, .forced_routing = true});

	for (int tile = 0; tile < 2; tile++)
		for (int l = 0; l < LAYERS; l++) {
			int32_t d = k3_plan_find(plan, "forced", l, tile, -1);
			cr_expect_eq(d == K3_NO_DATUM, l == 0, "layer %d", l);
			if (d != K3_NO_DATUM)
				cr_expect_eq(plan->data[d].bytes, (tile ? 36 : 64) * 2 * 4u);
		}
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(kept_data_have_a_place_of_their_own)
{
	struct k3_model *model = tiled_model();
	struct k3_plan *plan =
		plan_as(model, "128", (struct k3_microbatch){.first = true, .keep = true});
	char label[64];
	size_t kept = 0;

	for (size_t i = model->n_persist; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		kept += d->keep;
		for (size_t k = model->n_persist; k < plan->n_data && d->keep; k++) {
			const struct k3_datum *e = &plan->data[k];
			cr_expect(e->slot != d->slot || e->first_pos <= d->first_pos,
				  "%s is overwritten", k3_datum_label(d, label, sizeof(label)));
		}
	}
	/* a tile: embeddings, a prefix per layer, two tables of routes per MoE layer, loss, logits
	 */
	cr_expect_eq(kept, 2 * (1 + LAYERS + 2 * MOE_LAYERS + 2));
	cr_expect_str_eq(k3_datum_label(&plan->data[k3_plan_find(plan, "prefix", 2, 1, -1)], label,
					sizeof(label)),
			 "prefix l2 t1");
	cr_expect_eq(k3_plan_find(plan, "prefix", LAYERS, 0, -1), K3_NO_DATUM);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}
