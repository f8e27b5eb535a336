#include "spine.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

void
spine_open(struct spine *s, const char *path, uint32_t tile, uint32_t window)
{
	struct k3_plan_options options;
	struct k3_config config;
	size_t n;

	memset(s, 0, sizeof(*s));
	k3_plan_options_init(&options);
	options.tile_tokens = tile;
	cr_assert_eq(k3_st_open(&s->st, path), K3_OK);
	cr_assert_eq(k3i_verify_config(s->st, &config), K3_OK);
	cr_assert_eq(k3_session_open(&s->session, &config, &options,
				     &(struct k3_runtime_options){.window = window}),
		     K3_OK);
	s->ids = k3i_verify_i32(s->st, "input.input_ids", &s->t);
	s->labels = k3i_verify_i32(s->st, "input.labels", &n);
	s->docs = k3i_verify_i32(s->st, "input.doc_ids", &n);
}

void
spine_close(struct spine *s)
{
	k3_runtime_drain(s->session.runtime);
	k3_plan_destroy(s->plan);
	k3_session_close(&s->session);
	k3_st_close(s->st);
	free(s->ids);
	free(s->labels);
	free(s->docs);
}

void
spine_run(struct spine *s, size_t t)
{
	struct k3_layout layout = {.n_tokens = t, .doc_ids = s->docs};
	struct k3_microbatch what = {.backward = true, .first = true};
	struct k3_host_batch batch = {.ids = s->ids, .labels = s->labels};
	double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / 64, [K3_HYPER_VALID] = 64};

	k3_plan_destroy(s->plan);
	cr_assert_eq(k3_plan_microbatch(&s->plan, s->session.model, &layout, &what), K3_OK);
	cr_assert_eq(k3_submit_plan(s->session.store, s->plan, &batch, hyper), K3_OK);
	k3_runtime_drain(s->session.runtime);
}
