/* The parameter table: names and shapes of a checkpoint, block cuts, every element exactly once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/params.h"
#include "fixture.h"

#define TEST(name) Test(params, name, .timeout = 60)

static struct k3_config config;

static struct k3_params
table(const char *preset, size_t block_bytes, size_t groups)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, preset), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, block_bytes, groups), K3_OK);
	return p;
}

/* Looks a checkpoint tensor up by name. */
static struct k3_ckpt_tensor
find(const struct k3_params *p, const char *name)
{
	struct k3_ckpt_tensor t;

	for (size_t i = 0; i < k3_params_n_tensors(p); i++) {
		k3_params_tensor(p, i, &t);
		if (strcmp(t.name, name) == 0)
			return t;
	}
	cr_assert_fail("no tensor %s", name);
	abort();
}

TEST(keys_and_shapes_equal_those_of_a_golden_file)
{
	struct k3_st *st = fixture_open("golden/text_tiny");
	struct k3_params p;
	size_t weights = 0;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_config_set_vocab(&config, 128), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 0), K3_OK);
	for (size_t i = 0; i < k3_params_n_tensors(&p); i++) {
		struct k3_ckpt_tensor t;
		k3_params_tensor(&p, i, &t);
		const struct k3_st_tensor *f = k3_st_find(st, t.name);
		cr_assert_not_null(f, "%s is not in the file", t.name);
		cr_assert_eq(f->n_dims, t.n_dims, "%s", t.name);
		for (uint32_t k = 0; k < t.n_dims; k++)
			cr_assert_eq(f->dims[k], t.dims[k], "%s, dimension %u", t.name, k);
	}
	for (size_t i = 0; i < k3_st_count(st); i++)
		weights += strncmp(k3_st_at(st, i)->name, "language_model.", 15) == 0;
	cr_assert_eq(weights, k3_params_n_tensors(&p));
	k3_params_fini(&p);
	k3_st_close(st);
}

/* Marks the rows of each parameter that tensors cover. */
static void
expect_covered_once(const struct k3_params *p)
{
	for (size_t i = 0; i < p->n; i++) {
		unsigned char *seen = calloc(p->param[i].rows, 1);
		for (size_t k = p->first_tensor[i]; k < p->first_tensor[i + 1]; k++) {
			struct k3_ckpt_tensor t;
			k3_params_tensor(p, k, &t);
			for (size_t r = 0; t.kind == K3_CKPT_PARAM && r < t.rows; r++)
				seen[t.row0 + r]++;
		}
		for (size_t r = 0; r < p->param[i].rows; r++)
			cr_assert_eq(seen[r], 1, "%s row %zu: %d times", p->param[i].name, r,
				     seen[r]);
		free(seen);
	}
}

TEST(tensors_cover_every_row_of_every_parameter_once)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 3);

	expect_covered_once(&p);
	k3_params_fini(&p);
}

TEST(blocks_cover_every_row_and_respect_the_limit)
{
	struct k3_params p = table("debug17", 100000, 0);

	for (size_t i = 0; i < p.n; i++) {
		const struct k3_param *x = &p.param[i];
		size_t unit = x->experts_per_block ? x->block_rows / x->experts_per_block : 1;
		cr_assert(x->block_rows * x->cols * sizeof(float) <= 100000 ||
				  x->block_rows == unit,
			  "%s", x->name);
		cr_assert(x->n_blocks * x->block_rows >= x->rows, "%s", x->name);
		cr_assert((x->n_blocks - 1) * x->block_rows < x->rows, "%s", x->name);
	}
	k3_params_fini(&p);
}

TEST(expert_stacks_are_cut_at_whole_experts_and_alike)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 3);
	const struct k3_param *w13 = &p.param[k3_params_find(&p, K3_P_EXPERT_W13, 1)];
	const struct k3_param *w2 = &p.param[k3_params_find(&p, K3_P_EXPERT_W2, 1)];

	cr_assert_eq(w13->experts_per_block, 3);
	cr_assert_eq(w13->n_blocks, 3);
	cr_assert_eq(w2->n_blocks, 3);
	cr_assert_eq(w13->block_rows, 3 * 2 * 128);
	cr_assert_eq(w2->block_rows, 3 * 128);
	k3_params_fini(&p);
}

TEST(more_groups_than_experts_are_refused)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 7), K3_EINVAL);
}

TEST(a_matrix_of_one_row_is_no_vector)
{
	struct k3_params p;

	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	config.kda_heads = 1;
	config.experts = config.top_k = 1;
	config.latent = 1;
	cr_assert_eq(k3_params_init(&p, &config, false, (size_t)64 << 20, 0), K3_OK);
	struct k3_ckpt_tensor beta =
		find(&p, "language_model.model.layers.0.self_attn.b_proj.weight");
	struct k3_ckpt_tensor gate =
		find(&p, "language_model.model.layers.1.block_sparse_moe.gate.weight");
	cr_assert(beta.n_dims == 2 && beta.dims[0] == 1 && beta.dims[1] == 64);
	cr_assert(gate.n_dims == 2 && gate.dims[0] == 1 && gate.dims[1] == 64);
	cr_assert_eq(p.param[beta.param].init, K3_INIT_NORMAL);
	k3_params_fini(&p);
}

TEST(a_log_is_padded_to_128_and_counts_its_heads)
{
	struct k3_params p = table("debug17", (size_t)64 << 20, 0);
	struct k3_ckpt_tensor t = find(&p, "language_model.model.layers.0.self_attn.A_log");

	cr_assert(t.n_dims == 1 && t.dims[0] == 128 && t.n_elems == 4 && t.keep_f32);
	k3_params_fini(&p);
}

TEST(layer_0_has_a_mixer_pair_in_the_file_only)
{
	struct k3_params p = table("tiny", (size_t)64 << 20, 0);
	struct k3_ckpt_tensor norm =
		find(&p, "language_model.model.layers.0.self_attention_res_norm.weight");
	struct k3_ckpt_tensor proj =
		find(&p, "language_model.model.layers.0.self_attention_res_proj.weight");

	cr_assert_eq(norm.kind, K3_CKPT_ONES);
	cr_assert_eq(proj.kind, K3_CKPT_ZEROS);
	cr_assert_eq(k3_params_find(&p, K3_P_ATTN_RES_NORM, 0), -1);
	cr_assert_geq(k3_params_find(&p, K3_P_ATTN_RES_NORM, 1), 0);
	k3_params_fini(&p);
}

TEST(the_release_has_its_published_number_of_unquantised_tensors)
{
	struct k3_params p;

	/* 497,220 stored tensors; each routed matrix is two of them there (packed, scale) and one
	 * here */
	cr_assert_eq(k3_config_preset(&config, "Kimi-K3"), K3_OK);
	cr_assert_eq(k3_params_init(&p, &config, true, (size_t)64 << 20, 0), K3_OK);
	cr_assert_eq(k3_params_n_tensors(&p), 497220 - 92 * 896 * 3);
	k3_params_fini(&p);
}
