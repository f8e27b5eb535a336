/* Items of .k3t files: bytes on disk, what is read back, and what a hostile file may say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../common/k3t.h"
#include "../common/k3t_info.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name) Test(k3t_items, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

enum { PLACEHOLDER = 258, IMAGE_BYTES = 2 * 4 * 3, VIDEO_BYTES = 2 * 2 * 2 * 3 };

static const struct k3_k3t_ids byte_ids = {260, 256, 257, PLACEHOLDER, 259};
static const struct k3_k3t_patches tiny = {1, 2, 2};
static const struct k3_grid image = {1, 2, 4}, video = {2, 2, 2};

/* Places in that file: 9 tokens in 24 bytes, 3 offsets, a mask of 2 bytes filled up to 8, 2 items
 * of 32 bytes; then patches at multiples of 64. */
enum { TOKENS = 128, OFFSETS = 152, MASK = 176, TABLE = 184, AT_IMAGE = 256, AT_VIDEO = 320 };
enum { FILE_BYTES = AT_VIDEO + VIDEO_BYTES };

static uint8_t
byte_of(int item, size_t i)
{
	return (uint8_t)(100 * item + 7 * (int)i + 1);
}

static void
item_put(struct k3_k3t_writer *w, int item, const struct k3_grid *grid, size_t bytes)
{
	uint8_t data[64];

	for (size_t i = 0; i < bytes; i++)
		data[i] = byte_of(item, i);
	cr_assert_eq(k3_k3t_writer_put_item(w, grid, data), K3_OK);
}

/* Documents [1 P P 2 3] and [P 4 5 6], patches of one pixel; token 8 does not count. */
static void
file_make(const char *name)
{
	static const uint32_t text[] = {1, 2, 3, 4, 5, 6};
	static const bool counts[] = {true, true, false};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &byte_ids), K3_OK);
	cr_assert_eq(k3_k3t_writer_set_patches(w, &tiny), K3_OK);
	cr_assert_eq(k3_k3t_writer_put(w, text, NULL, 1), K3_OK);
	item_put(w, 0, &image, IMAGE_BYTES);
	cr_assert_eq(k3_k3t_writer_put(w, text + 1, NULL, 2), K3_OK);
	cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	item_put(w, 1, &video, VIDEO_BYTES);
	cr_assert_eq(k3_k3t_writer_put(w, text + 3, counts, 3), K3_OK);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

TEST(the_file_has_the_bytes_of_the_documentation)
{
	static const uint32_t words[] = {1, 128, 2, 3, 260, 256, 257, PLACEHOLDER, 259, 0};
	static const uint16_t tokens[12] = {1,		 PLACEHOLDER, PLACEHOLDER, 2, 3,
					    PLACEHOLDER, 4,	      5,	   6};
	static const uint64_t offsets[] = {0, 5, 9}, places[] = {1, AT_IMAGE, 5, AT_VIDEO};
	static const uint32_t cut[] = {1, 2, 2}, grids[] = {1, 2, 4, 0, 2, 2, 2, 0};
	unsigned char want[FILE_BYTES] = "K3TOKENS";
	uint64_t counts[] = {2, 9, FILE_BYTES, 0, 2, 16};
	size_t bytes;

	memcpy(want + 8, words, 40);
	memcpy(want + 96, cut, 12);
	memcpy(want + TOKENS, tokens, 24);
	memcpy(want + OFFSETS, offsets, 24);
	want[MASK] = 0xff; /* tokens 0 to 7 count, 8 does not */
	for (int i = 0; i < 2; i++) {
		memcpy(want + TABLE + 32 * i, places + 2 * i, 16);
		memcpy(want + TABLE + 32 * i + 16, grids + 4 * i, 16);
	}
	for (size_t i = 0; i < IMAGE_BYTES; i++)
		want[AT_IMAGE + i] = byte_of(0, i);
	for (size_t i = 0; i < VIDEO_BYTES; i++)
		want[AT_VIDEO + i] = byte_of(1, i);
	counts[3] = k3_fnv1a(K3_FNV_START, want + 128, FILE_BYTES - 128);
	memcpy(want + 48, counts, 48);
	uint64_t fnv = k3_fnv1a(K3_FNV_START, want, 120);
	memcpy(want + 120, &fnv, 8);

	file_make("x.k3t");
	unsigned char *got = scratch_read("x.k3t", &bytes);
	cr_assert_eq(bytes, FILE_BYTES, "%zu bytes", bytes);
	for (size_t i = 0; i < bytes; i++)
		cr_assert_eq(got[i], want[i], "byte %zu: got %d, expected %d", i, got[i], want[i]);
	cr_assert_eq(scratch_files(), 1);
	free(got);
}

static void
expect_items(const struct k3_k3t *f)
{
	const struct k3_grid *grids[] = {&image, &video};

	cr_assert(f->n_items == 2 && f->n_patches == 16 && f->patches.patch == 1);
	for (uint64_t i = 0; i < 2; i++) {
		cr_assert(memcmp(&f->items[i].grid, grids[i], sizeof(image)) == 0);
		cr_assert_eq((uintptr_t)k3_k3t_item_data(f, i) % 64, 0);
		for (size_t b = 0; b < 24; b++)
			cr_assert_eq(k3_k3t_item_data(f, i)[b], byte_of((int)i, b));
	}
	cr_assert(f->items[0].first_token == 1 && f->items[1].first_token == 5);
}

TEST(items_are_read_back_and_found_by_token)
{
	static const uint64_t found[] = {0, 0, 1, 1, 1, 1, 2, 2, 2};
	struct k3_k3t f;

	file_make("x.k3t");
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	expect_items(&f);
	cr_assert_eq(k3_k3t_item_tokens(&f.patches, &image), 2);
	cr_assert_eq(k3_k3t_item_tokens(&f.patches, &video), 1, "frames share their placeholders");
	for (uint64_t i = 0; i < 9; i++)
		cr_assert_eq(k3_k3t_item_find(&f, i), found[i], "token %d", (int)i);
	cr_assert(k3_k3t_counts(&f, 1) && !k3_k3t_counts(&f, 8));
	cr_assert_eq(k3_k3t_verify(&f, "x.k3t"), K3_OK);
	k3_k3t_close(&f);
}

/* 40 images of 14-pixel patches, more than the writer's buffers hold. */
TEST(items_of_many_sizes_come_back_whole)
{
	enum { N = 40 };
	struct k3_k3t_writer *w;
	struct k3_k3t f;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &byte_ids), K3_OK);
	for (uint32_t i = 0; i < N; i++) {
		struct k3_grid grid = {1 + i % 4, 2 + 2 * (i % 5), 2 + 2 * (i % 3)};
		size_t bytes = (size_t)grid.t * grid.h * grid.w * 588;
		uint8_t *data = malloc(bytes);
		for (size_t b = 0; b < bytes; b++)
			data[b] = (uint8_t)k3_rng_bits(i, b);
		cr_assert_eq(k3_k3t_writer_put_item(w, &grid, data), K3_OK);
		if (i % 3 == 0)
			cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
		free(data);
	}
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert_eq(k3_k3t_verify(&f, "x.k3t"), K3_OK);
	cr_assert_eq(f.n_items, N);
	for (uint32_t i = 0; i < N; i++) {
		size_t bytes = (size_t)(1 + i % 4) * (2 + 2 * (i % 5)) * (2 + 2 * (i % 3)) * 588;
		cr_assert_eq(k3_k3t_item_bytes(&f.patches, &f.items[i].grid), bytes);
		for (size_t b = 0; b < bytes; b++)
			cr_assert_eq(k3_k3t_item_data(&f, i)[b], (uint8_t)k3_rng_bits(i, b));
	}
	k3_k3t_close(&f);
}

/* Changes bytes at a place; then both checksums, as a careful forger would. */
static void
file_patch(const unsigned char *file, size_t size, size_t at, const void *bytes, size_t n)
{
	unsigned char *bad = malloc(size);

	memcpy(bad, file, size);
	memcpy(bad + at, bytes, n);
	uint64_t fnv = k3_fnv1a(K3_FNV_START, bad + 128, size - 128);
	memcpy(bad + 72, &fnv, 8);
	fnv = k3_fnv1a(K3_FNV_START, bad, 120);
	memcpy(bad + 120, &fnv, 8);
	scratch_write("bad.k3t", bad, size);
	free(bad);
}

static void
expect_refused(const char *message)
{
	struct k3_k3t f;
	int ret = k3_k3t_open(&f, scratch_path("bad.k3t"));
	const char *log = scratch_log();

	cr_assert_eq(ret, K3_EFORMAT, "status %d for: %s", ret, message);
	cr_assert_null(f.map);
	cr_assert_not_null(strstr(log, message), "expected \"%s\", got: %s", message, log);
	cr_assert_eq(strchr(log, '\n'), log + strlen(log) - 1, "more than a line: %s", log);
}

TEST(every_broken_field_is_refused_with_its_value)
{
	static const struct {
		size_t at, n;
		uint64_t value;
		const char *message;
	} cases[] = {
		{20, 4, 1, "a reserved field is"},
		{36, 4, UINT32_MAX, "the placeholder's id is 4294967295"},
		{36, 4, 255, "token 1 is 258, allowed: the placeholder 255 inside of items"},
		{36, 4, 1, "token 0 is 1, allowed: the placeholder 1 inside of items only"},
		{80, 8, 0, "n_items is 0"},
		{80, 8, 10, "n_items is 10"},
		{80, 8, UINT64_MAX / 32 + 2, "n_items is 576460752303423489"},
		{80, 8, 1,
		 "n_patches is 16 and the file has 344 bytes; its items have 8 patches and end at "
		 "byte 280"},
		{80, 8, 9, "n_items 9, n_tokens 9 and n_docs 2 need 344 bytes"},
		{88, 8, 15, "n_patches is 15 and the file has 344 bytes; its items have 16"},
		{96, 4, 0, "patch is 0, allowed are 1 to 64"},
		{96, 4, 65, "patch is 65"},
		{96, 4, 2, "item 0 has 96 bytes from byte 256, but the file has 344"},
		{100, 4, 0, "merge_h is 0, allowed are 1 to 16"},
		{100, 4, 17, "merge_h is 17"},
		{104, 4, 3, "item 0 has 4 columns in its grid 1x2x4, allowed are multiples of 3"},
		{100, 4, 1, "token 3 is 2, allowed: the placeholder 258 inside of items"},
		{108, 4, 6, "a reserved field is 6"},
		{130, 2, 9, "token 1 is 9, allowed: the placeholder 258 inside of items"},
		{128, 2, PLACEHOLDER,
		 "token 0 is 258, allowed: the placeholder 258 inside of items only"},
		{144, 2, PLACEHOLDER, "token 8 is 258"},
		{160, 8, 2,
		 "item 0 has 2 placeholders from token 1, but document 0 ends at token 2"},
		{178, 1, 4, "a byte after the mask is 4"},
		{TABLE, 8, 0, "token 0 is 1, allowed: the placeholder"},
		{TABLE, 8, 9, "item 0 begins at token 9, allowed are 0 to 8"},
		{TABLE, 8, UINT64_MAX, "item 0 begins at token 18446744073709551615"},
		{TABLE, 8, 4,
		 "item 0 has 2 placeholders from token 4, but document 0 ends at token 5"},
		{TABLE + 32, 8, 2, "item 1 begins at token 2, allowed are 3 to 8"},
		{TABLE + 8, 8, 192, "item 0 begins at byte 192"},
		{TABLE + 8, 8, UINT64_MAX, "item 0 begins at byte 18446744073709551615"},
		{TABLE + 40, 8, 256,
		 "item 1 begins at byte 256 with 0 after its grid, allowed are 320"},
		{TABLE + 40, 8, 384, "item 1 begins at byte 384"},
		{TABLE + 16, 4, 0, "item 0 has 0 frames"},
		{TABLE + 16, 4, 5,
		 "item 0 has 5 frames in its grid 5x2x4, allowed are multiples of 1 up to 4"},
		{TABLE + 16, 4, 3,
		 "item 1 begins at byte 320 with 0 after its grid, allowed are 384"},
		{TABLE + 20, 4, 0, "item 0 has 0 rows"},
		{TABLE + 20, 4, 3,
		 "item 0 has 3 rows in its grid 1x3x4, allowed are multiples of 2 up to 512"},
		{TABLE + 20, 4, 514, "item 0 has 514 rows"},
		{TABLE + 20, 4, UINT32_MAX - 1, "item 0 has 4294967294 rows"},
		{TABLE + 24, 4, 514, "item 0 has 514 columns"},
		{TABLE + 24, 4, 2, "n_patches is 16"},
		{TABLE + 20, 8, UINT64_C(512) << 32 | 512,
		 "item 0 has 65536 placeholders from token 1"},
		{TABLE + 28, 4, 1, "item 0 begins at byte 256 with 1 after its grid"},
		{TABLE + 48, 4, 4, "item 1 has 48 bytes from byte 320, but the file has 344"},
		{TABLE + 48, 4, 1, "its items have 12 patches and end at byte 332"},
	};
	size_t size;

	file_make("x.k3t");
	unsigned char *file = scratch_read("x.k3t", &size);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		file_patch(file, size, cases[i].at, &cases[i].value, cases[i].n);
		expect_refused(cases[i].message);
	}
	free(file);
}

/* A forged file is refused, or everything it says can be read inside of its map. */
static void
expect_refused_or_readable(void)
{
	struct k3_k3t f;
	unsigned int sum = 0;

	if (k3_k3t_open(&f, scratch_path("bad.k3t")) != K3_OK)
		return;
	for (uint64_t i = 0; i < f.n_items; i++) {
		uint64_t bytes = k3_k3t_item_bytes(&f.patches, &f.items[i].grid);
		uint64_t n = k3_k3t_item_tokens(&f.patches, &f.items[i].grid);
		cr_assert_leq(f.items[i].first_byte + bytes, f.map_bytes);
		for (uint64_t b = 0; b < bytes; b++)
			sum += k3_k3t_item_data(&f, i)[b];
		for (uint64_t t = 0; t < n; t++)
			cr_assert_eq(k3_k3t_token(&f, f.items[i].first_token + t),
				     f.ids.placeholder);
	}
	cr_assert_gt(sum, 0);
	k3_k3t_close(&f);
}

TEST(no_byte_of_header_and_tables_can_lead_outside_of_the_file)
{
	size_t size;

	file_make("x.k3t");
	unsigned char *file = scratch_read("x.k3t", &size);
	for (size_t at = 0; at < AT_IMAGE; at++)
		for (int bit = 0; bit < 8; bit++) {
			unsigned char byte = (unsigned char)(file[at] ^ 1 << bit);
			file_patch(file, size, at, &byte, 1);
			expect_refused_or_readable();
		}
	free(file);
}

TEST(a_flipped_byte_or_a_cut_is_found)
{
	struct k3_k3t f;
	size_t size;

	file_make("x.k3t");
	unsigned char *file = scratch_read("x.k3t", &size);
	for (size_t i = 0; i < size; i++) {
		file[i] ^= 1;
		scratch_write("bad.k3t", file, size);
		file[i] ^= 1;
		int ret = k3_k3t_open(&f, scratch_path("bad.k3t"));
		cr_assert(ret == K3_EFORMAT || (i >= 128 && ret == K3_OK), "byte %zu", i);
		cr_assert(i < TABLE || i >= TABLE + 64 || ret == K3_EFORMAT, "table, byte %zu", i);
		if (ret == K3_OK)
			cr_assert_eq(k3_k3t_verify(&f, "bad.k3t"), K3_EFORMAT, "byte %zu", i);
		k3_k3t_close(&f);
	}
	for (size_t n = 0; n < size; n++) {
		scratch_write("bad.k3t", file, n);
		cr_assert_eq(k3_k3t_open(&f, scratch_path("bad.k3t")), K3_EFORMAT);
	}
	free(file);
}

TEST(the_writer_refuses_what_the_reader_would)
{
	static const struct k3_grid bad[] = {{0, 2, 2}, {5, 2, 2},   {1, 0, 2},	 {1, 3, 2},
					     {1, 2, 5}, {1, 514, 2}, {1, 2, 514}};
	static const struct k3_k3t_patches wrong[] = {{0, 2, 2}, {65, 2, 2}, {1, 0, 2}, {1, 2, 17}};
	struct k3_k3t_ids none = {260, 256, 257, K3_K3T_NO_ID, 259};
	const uint32_t placeholder = PLACEHOLDER;
	uint8_t bytes[64] = {0};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &byte_ids), K3_OK);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		cr_assert_eq(k3_k3t_writer_set_patches(w, &wrong[i]), K3_EINVAL);
	cr_assert_eq(k3_k3t_writer_set_patches(w, &tiny), K3_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(k3_k3t_writer_put_item(w, &bad[i], bytes), K3_EINVAL, "grid %zu", i);
	cr_assert_eq(k3_k3t_writer_put(w, &placeholder, NULL, 1), K3_EINVAL);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_EINVAL, "nothing was kept");
	cr_assert_eq(k3_k3t_writer_put_item(w, &image, bytes), K3_OK);
	scratch_log();
	cr_assert_eq(k3_k3t_writer_set_patches(w, &tiny), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "1 items are there already"));
	k3_k3t_writer_destroy(w);
	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &none), K3_OK);
	cr_assert_eq(k3_k3t_writer_put_item(w, &image, bytes), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "no id of the placeholder"));
	k3_k3t_writer_destroy(w);
	cr_assert_eq(scratch_files(), 0);
}

TEST(a_text_file_with_a_placeholder_is_refused)
{
	struct k3_k3t_writer *w;
	const uint32_t token = 7;
	const uint16_t placeholder = PLACEHOLDER;
	size_t size;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &byte_ids), K3_OK);
	cr_assert_eq(k3_k3t_writer_put(w, &token, NULL, 1), K3_OK);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
	unsigned char *file = scratch_read("x.k3t", &size);
	file_patch(file, size, 128, &placeholder, 2);
	expect_refused("token 0 is 258, allowed: the placeholder 258 inside of items only");
	free(file);
}

TEST(info_prints_items_patches_and_the_biggest_grid)
{
	const char *paths[] = {scratch_path("x.k3t")};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	file_make("x.k3t");
	cr_assert_eq(k3_k3t_info_print(out, paths, 1), K3_OK);
	fclose(out);
	cr_assert_not_null(strstr(text, "\tchecksum\titems\tpatches\tbiggest_grid\n"), "%s", text);
	cr_assert_not_null(strstr(text, "x.k3t\t2\t9\t1\t2\t260\t256\t257\t258\t259\t"), "%s",
			   text);
	cr_assert_not_null(strstr(text, "\t2\t16\t1x2x4\n"), "%s", text);
	free(text);
}
