#include "mm_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "../common/safetensors.h"
#include "../common/status.h"
#include "golden.h"
#include "scratch.h"

enum { BOS = 124, EOS, IMG, PAD, VOCAB, PATCH_BYTES = 588 };

void
mm_model(void)
{
	struct k3_st *st;
	const char *text;

	cr_assert_eq(k3_st_open(&st, golden_path("golden/mm_tiny")), K3_OK);
	text = k3_st_metadata(st, "hf_config");
	scratch_write("config.json", text, strlen(text));
	k3_st_close(st);
}

struct k3_k3t_writer *
mm_begin(const char *name)
{
	const struct k3_k3t_ids ids = {
		.vocab = VOCAB, .bos = BOS, .eos = EOS, .placeholder = IMG, .pad = PAD};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &ids), K3_OK);
	return w;
}

void
mm_put_text(struct k3_k3t_writer *w, uint64_t seed, size_t n)
{
	uint64_t key = k3_rng_key("text", seed);

	for (size_t i = 0; i < n; i++) {
		uint32_t token = (uint32_t)(k3_rng_uniform(key, i) * 100);
		cr_assert_eq(k3_k3t_writer_put(w, &token, NULL, 1), K3_OK);
	}
}

void
mm_put_image(struct k3_k3t_writer *w, uint64_t seed, uint32_t t, uint32_t h, uint32_t width,
	     int level)
{
	const struct k3_grid grid = {t, h, width};
	size_t n = (size_t)k3_grid_patches(&grid) * PATCH_BYTES;
	uint8_t *bytes = malloc(n);
	uint64_t key = k3_rng_key("image", seed);

	for (size_t i = 0; i < n; i++)
		bytes[i] = level >= 0 ? (uint8_t)level : (uint8_t)(k3_rng_uniform(key, i) * 256);
	cr_assert_eq(k3_k3t_writer_put_item(w, &grid, bytes), K3_OK);
	free(bytes);
}

void
mm_end(struct k3_k3t_writer *w)
{
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

void
mm_mixed(void)
{
	struct k3_k3t_writer *w = mm_begin("mixed.k3t");

	for (uint64_t d = 0; d < 8; d++) {
		mm_put_text(w, d, d == 0 ? 200 : 11 + 5 * (size_t)d);
		for (uint64_t i = 0; i < d % 4; i++) {
			mm_put_image(w, 10 * d + i, d == 3 && i == 1 ? 3 : 1, 2 + 2 * (uint32_t)i,
				     4 + 4 * (uint32_t)(d % 3), -1);
			mm_put_text(w, 100 + 10 * d + i, 3 * (size_t)i);
		}
		mm_put_text(w, 1000 + d, 20);
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	mm_end(w);
}
