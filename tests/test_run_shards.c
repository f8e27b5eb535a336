/* A run is resumed from a checkpoint whose files are cut in shards, as those of large models are. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../common/safetensors.h"
#include "../common/status.h"
#include "program.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(run_shards, name, .init = scratch_start, .fini = scratch_stop, .timeout = 240)

static char folder[4096];

/* base.safetensors of the checkpoint becomes shards of some 40,000 bytes and their index. */
static void
cut(const char *base)
{
	struct k3_st_writer *w;
	char path[5000];
	struct k3_st *st;

	snprintf(path, sizeof(path), "%s/%s.safetensors", folder, base);
	cr_assert_eq(k3_st_open(&st, path), K3_OK, "%s", scratch_log());
	cr_assert_eq(k3_st_writer_create(&w, folder, base, 40000), K3_OK);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const struct k3_st_tensor *t = k3_st_at(st, i);
		cr_assert_eq(k3_st_writer_declare(w, t->name, t->dtype, t->n_dims, t->dims), K3_OK);
	}
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const struct k3_st_tensor *t = k3_st_at(st, i);
		float *data = malloc(t->n_elems * sizeof(*data) + 1);
		cr_assert_eq(k3_st_read_f32(t, 0, t->n_elems, data), K3_OK);
		cr_assert_eq(k3_st_writer_put_f32(w, t->name, 0, t->n_elems, data), K3_OK);
		free(data);
	}
	k3_st_close(st);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK, "%s", scratch_log());
	k3_st_writer_destroy(w);
	cr_assert_neq(access(path, F_OK), 0, "%s is still there", path);
	snprintf(path, sizeof(path), "%s/%s.safetensors.index.json", folder, base);
	cr_assert_eq(access(path, F_OK), 0, "%s is not there", path);
}

/* Fingerprints of the steps after a resume. */
static char *
resumed(void)
{
	struct program_result r = program_run("", "k3_train", "--resume %s", folder);

	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	char *prints = program_all(r.out, "fingerprint");
	program_free(&r);
	return prints;
}

TEST(a_run_goes_on_from_shards_with_the_same_bits)
{
	program_dataset();
	struct program_result r = program_run(
		"", "k3_train",
		"--model tiny --tokens 192 --tile-tokens 64 --data %s --fingerprint --steps 4 "
		"--stop-after 2 --save %s",
		scratch_path("text.k3t"), scratch_path("ck"));
	cr_assert_eq(r.status, 0, "status %d: %s", r.status, scratch_log());
	program_free(&r);
	snprintf(folder, sizeof(folder), "%s/step-000002", scratch_path("ck"));
	char *whole = resumed();
	cut("model");
	cut("optimizer");
	char *shards = resumed();
	cr_assert_str_eq(shards, whole, "other bits from shards");
	free(whole);
	free(shards);
}
