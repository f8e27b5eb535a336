/* bf16 mode in the plan: what stays fp32, what shrinks, what the tasks read; and that every rule
 * of plans holds in it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/build.h"
#include "plan_case.h"
#include "vision_case.h"

#define TEST(name) Test(plan_bf16, name, .timeout = 60)

static struct k3_plan_options
tiled(enum k3_dtype dtype)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	o.dtype = dtype;
	return o;
}

/* Operands that the headers mark (f32), by the plan's names. */
static bool
is_island(const struct k3_datum *d)
{
	static const char *const name[] = {"mix_stat",
					   "rstd",
					   "lse",
					   "delta",
					   "routew",
					   "dwt",
					   "dl",
					   "tstat",
					   "dab",
					   "state",
					   "dstate",
					   "cut_state",
					   "cut_states",
					   "work",
					   "full_grad",
					   "vit_rstd",
					   "vit_lse",
					   "vit_rstd_mlp",
					   "vit_rstd_final",
					   "dvit_delta",
					   "vit_project_rstd"};

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
		if (strcmp(d->what, name[i]) == 0)
			return true;
	return false;
}

/* Types of all data of a plan; the number that are bf16. */
static size_t
expect_types(const struct k3_plan *plan)
{
	size_t halves = 0;
	char label[96];

	for (size_t i = 0; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		k3_datum_label(d, label, sizeof(label));
		if (d->dtype != K3_F32 && d->dtype != K3_BF16)
			continue;
		halves += d->dtype == K3_BF16;
		cr_expect_eq(d->bytes, d->rows * d->row_elems * (d->dtype == K3_F32 ? 4 : 2), "%s",
			     label);
		bool half =
			d->kind == K3_DATA_COPY || (i >= plan->model->n_persist && !is_island(d));
		if (d->kind == K3_DATA_GATHERED && !is_island(d))
			half = k3_param_is_matrix(&plan->model->params.param[d->param]);
		cr_expect_eq(d->dtype, half ? K3_BF16 : K3_F32, "%s is %s", label,
			     k3_dtype_name((enum k3_dtype)d->dtype));
	}
	return halves;
}

TEST(islands_and_masters_stay_fp32_and_all_else_is_bf16)
{
	struct k3_plan_options o = tiled(K3_BF16);
	struct k3_model *model = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(model, "100 92", true);

	cr_assert_eq(k3_plan_check(plan), K3_OK);
	cr_expect(expect_types(plan) > 300);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
	o = tiled(K3_F32);
	model = case_model("cp=1", 0, &o);
	plan = case_plan(model, "100 92", true);
	for (size_t i = 0; i < plan->n_data; i++)
		cr_assert_neq(plan->data[i].dtype, K3_BF16);
	for (size_t i = 0; i < plan->n_tasks; i++)
		cr_assert_eq(plan->task[i].wide_bytes, 0);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(the_tower_keeps_its_statistics_in_fp32_alone)
{
	struct k3_plan_options o = vision_case_options();
	o.dtype = K3_BF16;
	struct k3_model *model = vision_case_model("cp=1", 0, &o);
	struct k3_plan *plan = vision_case_plan(
		model, 64, "1x4x4@0 2x6x2@10",
		(struct k3_microbatch){.backward = true, .first = true, .keep = true});

	cr_expect(expect_types(plan) > 300);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(every_rank_of_a_mesh_keeps_the_types_and_the_order)
{
	static const char *const mesh[] = {"dp_shard=2", "cp=2", "dp_shard=2,cp=2",
					   "dp_replicate=2,dp_shard=2"};
	static const char *const documents[] = {"200 56", "256", "256", "30 226"};
	struct k3_plan_options o = tiled(K3_BF16);

	o.piece_bytes = 1 << 14;
	for (size_t i = 0; i < sizeof(mesh) / sizeof(mesh[0]); i++) {
		case_prove(mesh[i], &o, documents, 2);
		struct k3_model *model = case_model(mesh[i], 1, &o);
		struct k3_plan *plan = case_plan(model, "200 56", true);
		expect_types(plan);
		k3_plan_destroy(plan);
		k3_model_destroy(model);
	}
}

/* Weights travel in bf16, gradients in fp32 (model.md 10); a collective has one type. */
TEST(gathers_move_half_the_bytes_and_reductions_as_many)
{
	struct k3_plan_options o = tiled(K3_BF16);
	struct k3_model *model = case_model("dp_shard=2", 0, &o);
	struct k3_plan *plan = case_plan(model, "192", true);
	size_t gathers[2] = {0};

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->op != K3_OP_GATHER_PARAMS && t->op != K3_OP_REDUCE_SCATTER_GRADS)
			continue;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_datum *d =
				&plan->data[plan->access[t->first_access + k].datum];
			cr_expect_eq(d->dtype, t->comm_dtype, "%s of %s", d->what, t->name);
		}
		if (t->op == K3_OP_GATHER_PARAMS)
			gathers[t->comm_dtype == K3_BF16]++;
		else
			cr_expect_eq(t->comm_dtype, K3_F32, "%s", t->name);
	}
	cr_expect(gathers[0] > 0 && gathers[1] > 0);
	k3_plan_destroy(plan);
	k3_model_destroy(model);
}

TEST(every_matrix_has_a_copy_of_its_rows_and_no_task_of_a_microbatch_reads_its_master)
{
	struct k3_plan_options o = tiled(K3_BF16);
	o.block_bytes = 1 << 14; /* several blocks of a parameter */
	struct k3_model *m = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(m, "192", true);
	size_t copies = 0;

	for (uint32_t i = 0; i < m->n_blocks; i++) {
		const struct k3_datum *master = &m->persist[i];
		bool matrix = k3_param_is_matrix(&m->params.param[master->param]);
		cr_assert_eq(m->copy[i] != K3_NO_DATUM, matrix);
		if (!matrix)
			continue;
		const struct k3_datum *copy = &m->persist[m->copy[i]];
		cr_expect(copy->param == master->param && copy->row0 == master->row0 &&
			  copy->rows == master->rows && 2 * copy->bytes == master->bytes);
		copies++;
	}
	cr_expect(copies > 50);
	for (size_t i = 0; i < plan->n_access; i++) {
		uint32_t datum = plan->access[i].datum;
		cr_expect(datum >= m->n_blocks || m->copy[datum] == K3_NO_DATUM, "block %u", datum);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}

TEST(mixers_norms_taps_and_decays_are_no_matrices)
{
	static const enum k3_role no[] = {K3_P_NORM,	  K3_P_OUT_RES_NORM, K3_P_OUT_RES_PROJ,
					  K3_P_ATTN_NORM, K3_P_FFN_RES_PROJ, K3_P_KDA_CQ,
					  K3_P_KDA_ON,	  K3_P_KDA_ALOG,     K3_P_KDA_DT,
					  K3_P_MLA_QN,	  K3_P_LATENT_NORM},
				  yes[] = {K3_P_EMBED,	   K3_P_HEAD,	    K3_P_KDA_Q,
					   K3_P_KDA_B,	   K3_P_MLA_KVB,    K3_P_ROUTER,
					   K3_P_EXPERT_W2, K3_P_EXPERT_W13, K3_P_FFN_W1};
	struct k3_model *m = case_model("cp=1", 0, NULL);

	for (size_t i = 0; i < m->params.n; i++) {
		const struct k3_param *p = &m->params.param[i];
		for (size_t k = 0; k < sizeof(no) / sizeof(no[0]); k++)
			cr_expect(p->role != no[k] || !k3_param_is_matrix(p), "%s", p->name);
		for (size_t k = 0; k < sizeof(yes) / sizeof(yes[0]); k++)
			cr_expect(p->role != yes[k] || k3_param_is_matrix(p), "%s", p->name);
	}
	k3_model_destroy(m);
}

static double
activation_bytes(const struct k3_plan *plan)
{
	double bytes = 0;

	for (size_t i = 0; i < plan->n_data; i++)
		bytes += plan->data[i].kind == K3_DATA_ACT ? (double)plan->data[i].slot_bytes : 0;
	return bytes;
}

/* Activations take half, but for statistics and states; layouts and work space do not shrink. */
TEST(slots_shrink_towards_half)
{
	struct k3_plan_options o = tiled(K3_F32);
	struct k3_model *single = case_model("cp=1", 0, &o);
	struct k3_plan *a = case_plan(single, "192", true);
	o.dtype = K3_BF16;
	struct k3_model *half = case_model("cp=1", 0, &o);
	struct k3_plan *b = case_plan(half, "192", true);

	cr_expect_eq(a->n_tasks, b->n_tasks);
	cr_expect_eq(a->n_pos, b->n_pos);
	cr_expect(activation_bytes(b) < 0.6 * activation_bytes(a), "%g of %g bytes",
		  activation_bytes(b), activation_bytes(a));
	cr_expect(b->slot_bytes < 0.85 * (double)a->slot_bytes, "%zu of %zu bytes",
		  (size_t)b->slot_bytes, (size_t)a->slot_bytes);
	cr_expect(half->persist_bytes > single->persist_bytes);
	for (size_t i = 0; i < a->n_tasks; i++)
		cr_expect(b->task[i].bytes <= a->task[i].bytes, "%s", a->task[i].name);
	k3_plan_destroy(a);
	k3_plan_destroy(b);
	k3_model_destroy(single);
	k3_model_destroy(half);
}

/* A worker's scratch holds the float copies of any task's bf16 operands, but where a kernel takes
 * them as they are. */
TEST(the_bound_counts_the_scratch_of_a_worker_on_each_core)
{
	struct k3_plan_options o = tiled(K3_BF16);
	struct k3_model *m = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(m, "192", true);
	struct k3_memory memory;
	size_t most = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		size_t want = 0;
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_datum *d =
				&plan->data[plan->access[t->first_access + k].datum];
			if (d->dtype == K3_BF16)
				want += (2 * d->slot_bytes + 63) / 64 * 64;
		}
		cr_expect_eq(t->plan, plan);
		if (t->op == K3_OP_EMBED_FWD)
			cr_expect(want > 0 && t->wide_bytes == 0);
		else
			cr_expect_eq(t->wide_bytes, want, "%s", t->name);
		most = t->wide_bytes > most ? t->wide_bytes : most;
	}
	cr_expect_eq(plan->wide_bytes, most);
	k3_memory_init(&memory, m);
	cr_assert_eq(k3_memory_add(&memory, plan), K3_OK);
	cr_expect_eq(k3_memory_wide_bytes(&memory), most * m->machine.cores);
	cr_expect_eq(k3_memory_bound(&memory),
		     m->persist_bytes + plan->slot_bytes + most * m->machine.cores);
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
	o.on_gpus = true;
	m = case_model("cp=1", 0, &o);
	plan = case_plan(m, "192", true);
	k3_memory_init(&memory, m);
	cr_assert_eq(k3_memory_add(&memory, plan), K3_OK);
	cr_expect_eq(k3_memory_bound(&memory), m->persist_bytes + plan->slot_bytes);
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}

/* The bound is that of a microbatch without images, and must hold for every other; the tower
 * alone, as text layers need more. */
TEST(the_scratch_does_not_depend_on_the_images)
{
	static const char *const images[] = {"", "1x4x4@0", "1x8x8@0", "2x4x4@0 1x2x2@20",
					     "1x16x4@0"};
	struct k3_plan_options o = vision_case_options();
	size_t most = 0, first = 0;

	o.dtype = K3_BF16;
	o.max_patches = 64;
	o.vision_patches = 16;
	struct k3_model *m = vision_case_model("cp=1", 0, &o);
	for (size_t i = 0; i < sizeof(images) / sizeof(images[0]); i++) {
		struct k3_plan *plan = vision_case_plan(
			m, 64, images[i],
			(struct k3_microbatch){.backward = true, .first = true, .tower = true});
		if (i == 0)
			first = plan->wide_bytes;
		cr_expect_eq(plan->wide_bytes, first, "\"%s\"", images[i]);
		for (size_t k = 0; k < plan->n_tasks; k++)
			most = plan->task[k].wide_bytes > most ? plan->task[k].wide_bytes : most;
		k3_plan_destroy(plan);
	}
	cr_expect_leq(most, first);
	k3_model_destroy(m);
}

TEST(the_optimizer_and_the_initial_values_write_every_copy_once)
{
	struct k3_plan_options o = tiled(K3_BF16);
	struct k3_model *m = case_model("dp_shard=2", 1, &o);

	for (int setup = 0; setup < 2; setup++) {
		uint32_t *written = calloc(m->n_persist, sizeof(*written));
		struct k3_plan *plan;
		if (setup)
			cr_assert_eq(k3_plan_init(&plan, m, 1, false), K3_OK);
		else
			cr_assert_eq(k3_plan_optimizer(&plan, m, 0), K3_OK);
		cr_assert_eq(k3_plan_check(plan), K3_OK);
		for (size_t i = 0; i < plan->n_tasks; i++) {
			const struct k3_task *t = &plan->task[i];
			cr_expect_eq(t->wide_bytes, 0, "%s", t->name);
			for (uint32_t k = 0; k < t->n_access; k++)
				written[plan->access[t->first_access + k].datum] +=
					(t->op == K3_OP_ADAMW_STEP || t->op == K3_OP_CAST_PARAMS) &&
					plan->access[t->first_access + k].mode == K3_W;
		}
		for (uint32_t i = 0; i < m->n_blocks; i++)
			if (m->copy[i] != K3_NO_DATUM)
				cr_expect_eq(written[m->copy[i]], 1, "copy of block %u", i);
		free(written);
		k3_plan_destroy(plan);
	}
	k3_model_destroy(m);
}

TEST(without_masters_matrices_and_their_moments_are_halves_that_tasks_read)
{
	struct k3_plan_options o = tiled(K3_BF16);
	o.optimizer_dtype = K3_BF16;
	struct k3_model *m = case_model("dp_shard=2", 1, &o);
	size_t halves = 0;

	for (uint32_t i = 0; i < 4 * m->n_blocks; i++) {
		const struct k3_datum *d = &m->persist[i];
		bool half =
			k3_param_is_matrix(&m->params.param[d->param]) && d->kind != K3_DATA_GRAD;
		cr_expect_eq(d->dtype, half ? K3_BF16 : K3_F32, "%s of block %u", d->what, i);
		cr_expect_eq(d->bytes, d->rows * d->row_elems * (half ? 2 : 4));
		halves += half;
	}
	cr_expect(halves > 150);
	for (size_t i = 0; i < m->n_persist; i++)
		cr_expect_neq(m->persist[i].kind, K3_DATA_COPY);
	for (int i = 0; i < 3; i++) {
		struct k3_plan *plan = NULL;
		if (i == 2)
			plan = case_plan(m, "192", true);
		else
			cr_assert_eq(i ? k3_plan_init(&plan, m, 1, false)
				       : k3_plan_optimizer(&plan, m, 0),
				     K3_OK);
		cr_assert_eq(k3_plan_check(plan), K3_OK);
		for (size_t k = 0; k < plan->n_tasks; k++)
			cr_expect_neq(plan->task[k].op, K3_OP_CAST_PARAMS);
		k3_plan_destroy(plan);
	}
	k3_model_destroy(m);
}

TEST(another_type_is_refused)
{
	struct k3_plan_options o = tiled(K3_F16);
	struct k3_config config;
	struct k3_model *model;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	capture_begin();
	cr_expect_eq(k3_model_create(&model, &config, &o), K3_EINVAL);
	expect_message(capture_end(), "must be F32 or BF16");
}
