/* Checkpoints into handles: every element of every parameter once, or a refusal by its key. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "golden.h"
#include "scratch.h"
#include "spine.h"

#define TEST(name) Test(run_load, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

#define LAYER1 "language_model.model.layers.1."

/* What loading an edited text_tiny returns; the log is left for the caller. */
static int
load_status(struct golden *g)
{
	struct spine s;
	int ret;

	golden_save(g, scratch_path("edited"));
	golden_free(g);
	spine_open(&s, scratch_path("edited"), 64, 0);
	scratch_log();
	ret = k3_checkpoint_load_params(s.session.store, s.st);
	spine_close(&s);
	return ret;
}

/* Written in turns, so that each write finds others in its handle. */
TEST(data_that_share_a_handle_keep_each_other)
{
	struct spine s;
	const struct k3_model *m;
	size_t shared = 0;

	spine_open(&s, golden_path("golden/text_tiny"), 64, 0);
	m = s.session.model;
	for (int again = 0; again < 2; again++)
		for (uint32_t i = 0; i < 4 * m->n_blocks; i++) {
			void *fill = malloc(m->persist[i].bytes + 1);
			memset(fill, (int)(i + (uint32_t)again) % 251, m->persist[i].bytes);
			cr_assert_eq(k3_store_datum_write(s.session.store, NULL, i, fill), K3_OK);
			free(fill);
		}
	for (uint32_t i = 0; i < 4 * m->n_blocks; i++) {
		const struct k3_datum *d = &m->persist[i];
		unsigned char *got = malloc(d->bytes + 1);
		cr_assert_eq(k3_store_datum_read(s.session.store, NULL, i, got), K3_OK);
		for (size_t k = 0; k < d->bytes; k++)
			cr_assert_eq(got[k], (i + 1) % 251, "%s of block %u, byte %zu", d->what,
				     i % m->n_blocks, k);
		shared += d->whole > 0;
		free(got);
	}
	cr_expect_gt(shared, m->n_blocks);
	spine_close(&s);
}

TEST(every_element_of_every_parameter_comes_from_the_file)
{
	struct spine s;
	const struct k3_model *m;
	size_t seen = 0;

	spine_open(&s, golden_path("golden/text_tiny"), 64, 0);
	m = s.session.model;
	for (uint32_t i = 0; i < m->n_persist; i++) {
		const struct k3_datum *d = &m->persist[i];
		void *ones = malloc(d->bytes + 1);
		memset(ones, 0xff, d->bytes); /* NaN */
		if (d->kind == K3_DATA_PARAM)
			cr_assert_eq(k3_store_datum_write(s.session.store, NULL, i, ones), K3_OK);
		free(ones);
	}
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	for (size_t i = 0; i < k3_params_n_tensors(&m->params); i++) {
		struct k3_ckpt_tensor t;
		size_t n, n_want;
		k3_params_tensor(&m->params, i, &t);
		if (t.kind != K3_CKPT_PARAM)
			continue;
		double *got = k3i_verify_tensor(s.session.store, &t, 0, &n),
		       *want = k3i_verify_f64(s.st, t.name, &n_want);
		cr_assert(got && want && n == n_want, "%s", t.name);
		for (size_t k = 0; k < n; k++)
			cr_assert(got[k] == want[k], "%s[%zu] is %g, the file has %g", t.name, k,
				  got[k], want[k]);
		seen += t.n_elems;
		free(got);
		free(want);
	}
	cr_assert_eq(seen, m->params.n_elems);
	spine_close(&s);
}

TEST(a_missing_expert_is_refused_by_its_key)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	cr_assert_eq(golden_drop(&g, LAYER1 "block_sparse_moe.experts.3.w2.weight"), 1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "missing key: " LAYER1 "block_sparse_moe.experts.3.w2.weight"), "%s",
		  log);
}

TEST(of_many_missing_keys_the_first_ten_and_the_count_are_told)
{
	struct golden g;
	size_t told = 0;

	golden_load(&g, "golden/text_tiny");
	size_t dropped = golden_drop(&g, LAYER1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	for (const char *at = log; (at = strstr(at, "missing key")); at++)
		told++;
	char count[64];
	snprintf(count, sizeof(count), "%zu keys are missing", dropped);
	cr_assert(told == 10 && strstr(log, count), "%zu of %zu are told: %s", told, dropped, log);
}

TEST(a_missing_router_bias_is_refused)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	cr_assert_eq(golden_drop(&g, LAYER1 "block_sparse_moe.gate.e_score_correction_bias"), 1);
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	cr_assert_not_null(strstr(scratch_log(), "e_score_correction_bias"));
}

TEST(a_transposed_weight_is_refused_with_both_shapes)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	struct golden_tensor *t =
		golden_find(&g, "language_model.model.layers.0.mlp.gate_proj.weight");
	cr_assert(t->dims[0] == 128 && t->dims[1] == 64);
	t->dims[0] = 64;
	t->dims[1] = 128;
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "mlp.gate_proj.weight: is [64, 128], must be [128, 64]"), "%s", log);
}

TEST(a_key_without_a_place_is_refused)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight",
		    "language_model.model.layers.5.input_layernorm.weight");
	cr_assert_eq(load_status(&g), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "unknown key: language_model.model.layers.5.input_layernorm.weight"),
		  "%s", log);
}

TEST(a_key_that_is_there_twice_is_refused_by_name)
{
	struct k3_st *st = NULL;
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight", LAYER1 "input_layernorm.weight");
	golden_save(&g, scratch_path("twice"));
	golden_free(&g);
	cr_assert_eq(k3_st_open(&st, scratch_path("twice")), K3_EFORMAT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "duplicate key") && strstr(log, LAYER1 "input_layernorm.weight"),
		  "%s", log);
}

TEST(keys_of_the_vision_tower_and_inverse_frequencies_are_passed_over)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	golden_copy(&g, LAYER1 "input_layernorm.weight", LAYER1 "self_attn.rotary_emb.inv_freq");
	golden_copy(&g, LAYER1 "input_layernorm.weight",
		    "vision_tower.encoder.final_layernorm.weight");
	golden_copy(&g, LAYER1 "input_layernorm.weight", "mm_projector.post_norm.weight");
	cr_assert_eq(load_status(&g), K3_OK, "%s", scratch_log());
	cr_assert_not_null(strstr(scratch_log(), "2 tensors of the vision tower"));
}

TEST(a_log_without_its_padding_is_taken)
{
	struct golden g;

	golden_load(&g, "golden/text_tiny");
	struct golden_tensor *t = golden_find(&g, LAYER1 "self_attn.A_log");
	cr_assert_eq(t->dims[0], 128);
	t->dims[0] = 2;
	t->bytes = 2 * sizeof(float);
	cr_assert_eq(load_status(&g), K3_OK, "%s", scratch_log());
}
