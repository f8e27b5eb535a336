/* The .k3t container, the import of text and token dumps, and the n-gram loss. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/k3t.h"
#include "../common/k3t_import.h"
#include "../common/k3t_info.h"
#include "../common/ngram.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name) Test(k3t, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

static const struct k3_k3t_ids byte_ids = {260, 256, 257, 258, 259};

/* Two documents, [1 2 259] and [7 8], as 2-byte tokens; mask leaves out token 1 and 4 if asked. */
static void
file_make(const char *name, bool masked)
{
	static const uint32_t first[] = {1, 2, 259}, second[] = {7, 8};
	static const bool first_counts[] = {true, false, true}, second_counts[] = {true, false};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &byte_ids), K3_OK);
	cr_assert_eq(k3_k3t_writer_put(w, first, masked ? first_counts : NULL, 3), K3_OK);
	cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	cr_assert_eq(k3_k3t_writer_put(w, second, masked ? second_counts : NULL, 2), K3_OK);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

/* Changes bytes at a place; then the header's checksum, as a careful forger would. */
static void
file_patch(const char *name, size_t at, const void *bytes, size_t n)
{
	size_t size;
	unsigned char *file = scratch_read(name, &size);

	memcpy(file + at, bytes, n);
	uint64_t fnv = k3_fnv1a(K3_FNV_START, file, 120);
	memcpy(file + 120, &fnv, 8);
	scratch_write("bad.k3t", file, size);
	free(file);
}

static void
expect_refused(const char *name, const char *message)
{
	struct k3_k3t f;
	int ret = k3_k3t_open(&f, scratch_path(name));
	const char *log = scratch_log();

	cr_assert_eq(ret, K3_EFORMAT, "status %d for: %s", ret, message);
	cr_assert_null(f.map);
	cr_assert_not_null(strstr(log, message), "expected \"%s\", got: %s", message, log);
}

TEST(the_file_has_the_bytes_of_the_documentation)
{
	static const uint32_t words[] = {1, 128, 2, 1, 260, 256, 257, 258, 259, 0};
	static const uint16_t tokens[8] = {1, 2, 259, 7, 8};
	static const uint64_t offsets[] = {0, 3, 5};
	unsigned char want[128 + 16 + 24 + 1] = "K3TOKENS";
	uint64_t counts[] = {2, 5, sizeof(want), 0};
	size_t bytes;

	memcpy(want + 128, tokens, 16);
	memcpy(want + 144, offsets, 24);
	want[168] = 0x0d; /* tokens 0, 2 and 3 count */
	counts[3] = k3_fnv1a(K3_FNV_START, want + 128, 41);
	memcpy(want + 8, words, 40);
	memcpy(want + 48, counts, 32);
	uint64_t fnv = k3_fnv1a(K3_FNV_START, want, 120);
	memcpy(want + 120, &fnv, 8);

	file_make("x.k3t", true);
	unsigned char *got = scratch_read("x.k3t", &bytes);
	cr_assert_eq(bytes, sizeof(want));
	for (size_t i = 0; i < bytes; i++)
		cr_assert_eq(got[i], want[i], "byte %zu: got %d, expected %d", i, got[i], want[i]);
	cr_assert_eq(scratch_files(), 1);
	free(got);
}

TEST(documents_tokens_and_mask_are_read_back)
{
	struct k3_k3t f;

	file_make("x.k3t", true);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert(f.n_docs == 2 && f.n_tokens == 5 && f.ids.eos == 257);
	cr_assert(f.offsets[1] == 3 && k3_k3t_token(&f, 2) == 259 && k3_k3t_token(&f, 4) == 8);
	cr_assert(k3_k3t_counts(&f, 0) && !k3_k3t_counts(&f, 1) && k3_k3t_counts(&f, 3));
	cr_assert_eq(k3_k3t_verify(&f, "x.k3t"), K3_OK);
	k3_k3t_close(&f);
	file_make("y.k3t", false);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("y.k3t")), K3_OK);
	cr_assert_null(f.mask);
	cr_assert(k3_k3t_counts(&f, 1));
	k3_k3t_close(&f);
}

TEST(a_mask_that_begins_late_keeps_earlier_tokens)
{
	enum { N = 3000 };
	struct k3_k3t_writer *w;
	struct k3_k3t f;
	bool counts = false;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &byte_ids), K3_OK);
	for (uint32_t i = 0; i < N; i++) {
		uint32_t token = i % 256;
		counts = i != 2000;
		cr_assert_eq(k3_k3t_writer_put(w, &token, &counts, 1), K3_OK);
	}
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	for (uint64_t i = 0; i < N; i++)
		cr_assert(k3_k3t_counts(&f, i) == (i != 2000) && k3_k3t_token(&f, i) == i % 256);
	k3_k3t_close(&f);
}

TEST(tokens_take_two_bytes_up_to_vocabulary_65536)
{
	static const uint32_t vocabs[] = {65536, 65537};

	for (int i = 0; i < 2; i++) {
		struct k3_k3t_ids ids = {vocabs[i], K3_K3T_NO_ID, 0, K3_K3T_NO_ID, K3_K3T_NO_ID};
		uint32_t last = vocabs[i] - 1;
		struct k3_k3t_writer *w;
		struct k3_k3t f;
		cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &ids), K3_OK);
		cr_assert_eq(k3_k3t_writer_put(w, &last, NULL, 1), K3_OK);
		cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
		cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
		k3_k3t_writer_destroy(w);
		cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
		cr_assert_eq(f.token_bytes, i == 0 ? 2 : 4);
		cr_assert_eq(k3_k3t_token(&f, 0), last);
		k3_k3t_close(&f);
	}
}

TEST(every_broken_field_is_refused_with_its_value)
{
	static const struct {
		size_t at, n;
		uint64_t value;
		const char *message;
	} cases[] = {
		{0, 1, 'k', "does not begin with K3TOKENS"},
		{8, 4, 2, "version is 2, allowed: 1"},
		{12, 4, 64, "header_bytes is 64"},
		{16, 4, 3, "token_bytes is 3, allowed: 2 or 4"},
		{16, 4, 4, "need 49 bytes after the header, there are 41"},
		{20, 4, 3, "n_items is 0"},
		{20, 4, 5, "flags is 5"},
		{80, 8, 1, "a reserved field is 1"},
		{20, 4, 0, "need 40 bytes"},
		{24, 4, 0, "vocabulary 0"},
		{24, 4, UINT32_MAX, "vocabulary 4294967295"},
		{24, 4, 259, "pad id 259, allowed are 0 to 258"},
		{28, 4, 260, "bos id 260, allowed are 0 to 259"},
		{32, 4, UINT32_MAX, "eos id 4294967295"},
		{44, 4, 1, "a reserved field is 1"},
		{112, 8, 5, "a reserved field is 5"},
		{48, 8, 0, "n_docs is 0"},
		{48, 8, 6, "n_docs is 6"},
		{48, 8, 3, "n_docs 3 need 49 bytes"},
		{56, 8, 0, "n_tokens is 0"},
		{56, 8, UINT64_MAX, "n_tokens is 18446744073709551615"},
		{56, 8, UINT64_C(1) << 63, "n_tokens is 9223372036854775808"},
		{64, 8, 170, "file_bytes is 170, but the file has 169"},
		{128, 2, 260, "token 0 is 260, allowed are 0 to 259"},
		{136, 2, 65535, "token 4 is 65535"},
		{144, 8, 1, "document offset 0 is 1"},
		{152, 8, 0, "document offset 1 is 0, allowed: above its predecessor 0"},
		{152, 8, 5, "document offset 2 is 5, allowed: above its predecessor 5"},
		{160, 8, 4, "the last document offset is 4"},
		{143, 1, 9, "a byte after the last token is 9"},
		{168, 1, 0x2d, "the last byte of the mask is 45"},
	};

	file_make("x.k3t", true);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		file_patch("x.k3t", cases[i].at, &cases[i].value, cases[i].n);
		expect_refused("bad.k3t", cases[i].message);
	}
}

TEST(a_flipped_byte_or_a_cut_is_found)
{
	struct k3_k3t f;
	size_t size;

	file_make("x.k3t", true);
	unsigned char *file = scratch_read("x.k3t", &size);
	for (size_t i = 0; i < 128; i++) {
		file[i] ^= 1;
		scratch_write("bad.k3t", file, size);
		file[i] ^= 1;
		expect_refused("bad.k3t", "bad.k3t: ");
	}
	for (size_t n = 0; n < size; n++) {
		scratch_write("bad.k3t", file, n);
		expect_refused("bad.k3t", n < 128 ? "the size of the file" : "file_bytes is 169");
	}
	file[128] ^= 1;
	scratch_write("bad.k3t", file, size);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("bad.k3t")), K3_OK);
	cr_assert_eq(k3_k3t_verify(&f, "bad.k3t"), K3_EFORMAT);
	k3_k3t_close(&f);
	free(file);
}

TEST(the_writer_refuses_what_the_reader_would)
{
	struct k3_k3t_ids no_eos = {10, K3_K3T_NO_ID, K3_K3T_NO_ID, K3_K3T_NO_ID, K3_K3T_NO_ID};
	static const uint32_t outside[] = {5, 260};
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &no_eos), K3_EINVAL);
	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("no/x.k3t"), &byte_ids), K3_EIO);
	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &byte_ids), K3_OK);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_EINVAL);
	cr_assert_eq(k3_k3t_writer_put(w, outside, NULL, 2), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "token 1 of document 0 is 260"));
	k3_k3t_writer_destroy(w);
	cr_assert_eq(scratch_files(), 0);
}

static void
expect_doc(const char *name, uint64_t doc, const char *text)
{
	struct k3_k3t f;

	cr_assert_eq(k3_k3t_open(&f, scratch_path(name)), K3_OK);
	cr_assert_lt(doc, f.n_docs);
	cr_assert_eq(f.offsets[doc + 1] - f.offsets[doc], strlen(text), "length of document %d",
		     (int)doc);
	for (size_t i = 0; text[i]; i++)
		cr_assert_eq(k3_k3t_token(&f, f.offsets[doc] + i), (unsigned char)text[i]);
	k3_k3t_close(&f);
}

TEST(bytes_of_a_folder_are_imported_in_sorted_order_without_links)
{
	const char *paths[] = {scratch_path("in"), scratch_path("single")};
	struct k3_k3t f;

	mkdir(scratch_path("in"), 0700);
	mkdir(scratch_path("in/sub"), 0700);
	scratch_write("in/zz", "last of folder", 14);
	scratch_write("in/sub/m", "0123456789abcdefghij\xff", 21);
	scratch_write("in/a", "x", 1);
	scratch_write("in/empty", "", 0);
	scratch_write("single", "then", 4);
	cr_assert_eq(symlink("zz", scratch_path("in/link")), 0);
	cr_assert_eq(symlink(scratch_path("in"), scratch_path("in/loop")), 0);
	cr_assert_eq(k3_k3t_import_bytes(paths, 2, scratch_path("x.k3t"), 300, 0.1), K3_OK);
	cr_assert_not_null(strstr(scratch_log(), "in/empty: skipped, the file is empty"));
	expect_doc("x.k3t", 0, "x");
	expect_doc("x.k3t", 1, "0123456789abcdefghi");
	expect_doc("x.k3t", 2, "last of folde");
	expect_doc("x.k3t", 3, "then");
	expect_doc("x.val.k3t", 0, "j\xff");
	expect_doc("x.val.k3t", 1, "r");
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert(f.n_docs == 4 && f.ids.vocab == 300 && f.ids.bos == 296 && f.ids.eos == 297 &&
		  f.ids.placeholder == 298 && f.ids.pad == 299);
	k3_k3t_close(&f);
}

TEST(a_link_named_as_input_is_skipped_with_a_warning)
{
	const char *paths[] = {scratch_path("link"), scratch_path("file")};
	struct k3_k3t f;

	scratch_write("file", "text", 4);
	cr_assert_eq(symlink("file", scratch_path("link")), 0);
	cr_assert_eq(k3_k3t_import_bytes(paths, 2, scratch_path("x.k3t"), 260, 0), K3_OK);
	cr_assert_not_null(strstr(scratch_log(), "link: skipped, a symbolic link"));
	cr_assert_neq(access(scratch_path("x.val.k3t"), F_OK), 0);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert_eq(f.n_docs, 1);
	k3_k3t_close(&f);
}

TEST(an_import_that_fails_writes_nothing)
{
	const char *text = scratch_path("text"), *both[] = {text, scratch_path("absent")};
	const char *out = scratch_path("x.k3t");

	scratch_write("text", "123456789", 9);
	cr_assert_eq(k3_k3t_import_bytes(both, 2, out, 260, 0.1), K3_EIO);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, out, 259, 0.1), K3_EINVAL);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, out, 260, 1.0), K3_EINVAL);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, out, 260, (double)NAN), K3_EINVAL);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, scratch_path("x.bin"), 260, 0.1), K3_EINVAL);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, scratch_path(".k3t"), 260, 0.1), K3_EINVAL);
	scratch_log();
	cr_assert_eq(k3_k3t_import_bytes(both, 1, out, 260, 0.1), K3_EINVAL, "nothing to hold out");
	cr_assert_not_null(strstr(scratch_log(), "x.val.k3t: no document with at least one token"));
	mkdir(scratch_path("x.val.k3t"), 0700);
	cr_assert_eq(k3_k3t_import_bytes(both, 1, out, 260, 0.5), K3_EIO, "a folder is in the way");
	cr_assert_eq(scratch_files(), 1);
}

TEST(an_output_that_would_replace_an_input_is_refused_and_the_input_stays)
{
	const char *out = scratch_path("x.k3t"), *folder[] = {scratch_path("")};
	const struct k3_k3t_ids ids = {300, K3_K3T_NO_ID, 0, K3_K3T_NO_ID, K3_K3T_NO_ID};
	static const char *const names[] = {"x.k3t", "x.k3t.partial"};
	size_t bytes;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *input = scratch_path(names[i]), *one[] = {input};
		scratch_write(names[i], "abcdef", 6);
		scratch_log();
		cr_assert_eq(k3_k3t_import_bytes(one, 1, out, 260, 0), K3_EINVAL);
		cr_assert_eq(k3_k3t_import_bytes(folder, 1, out, 260, 0.5), K3_EINVAL);
		cr_assert_eq(k3_k3t_import_raw(input, 2, out, &ids), K3_EINVAL);
		cr_assert_not_null(strstr(scratch_log(), "replaced by the output"));
		unsigned char *stays = scratch_read(names[i], &bytes);
		cr_assert(bytes == 6 && memcmp(stays, "abcdef", 6) == 0);
		free(stays);
		unlink(input);
		cr_assert_eq(scratch_files(), 0);
	}
}

TEST(a_token_dump_is_split_at_eos)
{
	static const uint16_t dump[] = {1, 5, 6, 2, 2, 7, 2, 1, 2, 1, 8, 1, 9};
	static const uint32_t wide[] = {70000, 2, 3};
	struct k3_k3t_ids ids = {10, 1, 2, K3_K3T_NO_ID, K3_K3T_NO_ID};
	struct k3_k3t f;

	scratch_write("dump", dump, sizeof(dump));
	cr_assert_eq(k3_k3t_import_raw(scratch_path("dump"), 2, scratch_path("x.k3t"), &ids),
		     K3_OK);
	cr_assert_not_null(strstr(scratch_log(), "skipped 2 documents without tokens"));
	expect_doc("x.k3t", 0, "\5\6");
	expect_doc("x.k3t", 1, "\7");
	expect_doc("x.k3t", 2, "\x08\x01\x09");
	ids.bos = K3_K3T_NO_ID;
	cr_assert_eq(k3_k3t_import_raw(scratch_path("dump"), 2, scratch_path("x.k3t"), &ids),
		     K3_OK);
	expect_doc("x.k3t", 0, "\1\5\6");
	scratch_write("wide", wide, sizeof(wide));
	ids.vocab = 70001;
	cr_assert_eq(k3_k3t_import_raw(scratch_path("wide"), 4, scratch_path("y.k3t"), &ids),
		     K3_OK);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("y.k3t")), K3_OK);
	cr_assert(f.n_docs == 2 && k3_k3t_token(&f, 0) == 70000 && k3_k3t_token(&f, 1) == 3);
	k3_k3t_close(&f);
}

TEST(a_token_outside_the_vocabulary_is_refused_with_its_position)
{
	static const uint16_t dump[] = {5, 2, 10};
	struct k3_k3t_ids ids = {10, K3_K3T_NO_ID, 2, K3_K3T_NO_ID, K3_K3T_NO_ID};
	const char *path = scratch_path("dump"), *out = scratch_path("x.k3t");

	scratch_write("dump", dump, sizeof(dump));
	cr_assert_eq(k3_k3t_import_raw(path, 2, out, &ids), K3_EFORMAT);
	cr_assert_not_null(strstr(scratch_log(), "token 2 is 10, allowed are 0 to 9"));
	cr_assert_eq(k3_k3t_import_raw(path, 4, out, &ids), K3_EFORMAT);
	cr_assert_not_null(strstr(scratch_log(), "6 bytes, allowed: a multiple of 4"));
	scratch_write("dump", "\2\0\2\0", 4);
	cr_assert_eq(k3_k3t_import_raw(path, 2, out, &ids), K3_EINVAL);
	scratch_write("dump", "", 0);
	cr_assert_eq(k3_k3t_import_raw(path, 2, out, &ids), K3_EINVAL);
	cr_assert_eq(scratch_files(), 1);
}

/* One document per text. */
static void
texts_make(const char *name, const char *const *texts, size_t n)
{
	struct k3_k3t_writer *w;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path(name), &byte_ids), K3_OK);
	for (size_t i = 0; i < n; i++) {
		for (const char *c = texts[i]; *c; c++) {
			uint32_t token = (unsigned char)*c;
			cr_assert_eq(k3_k3t_writer_put(w, &token, NULL, 1), K3_OK);
		}
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

TEST(ngram_losses_equal_those_by_hand)
{
	static const char *const train_texts[] = {"abab", "b"}, *const eval_texts[] = {"aba", "cb"};
	/* 5 bytes, 2 types: a twice, b three times */
	const double a = (2 + 2.0 / 256) / 7, b = (3 + 2.0 / 256) / 7, c = 2.0 / 256 / 7;
	/* ab twice after 2 a's with 1 type; ba once after 1 b that is a context */
	const double b_after_a = (2 + b) / 3, a_after_b = (1 + a) / 2;
	const double a_after_ab = (1 + a_after_b) / 2;
	const double want[] = {
		-(log(a) + log(b) + log(a) + log(c) + log(b)) / 5,
		-(log(a) + log(b_after_a) + log(a_after_b) + log(c) + log(b)) / 5,
		-(log(a) + log(b_after_a) + log(a_after_ab) + log(c) + log(b)) / 5,
	};
	struct k3_k3t train, eval;
	double loss = NAN;

	texts_make("train.k3t", train_texts, 2);
	texts_make("eval.k3t", eval_texts, 2);
	cr_assert_eq(k3_k3t_open(&train, scratch_path("train.k3t")), K3_OK);
	cr_assert_eq(k3_k3t_open(&eval, scratch_path("eval.k3t")), K3_OK);
	for (int order = 1; order <= 3; order++) {
		cr_assert_eq(k3_ngram_loss(&train, &eval, order, &loss), K3_OK);
		cr_assert(fabs(loss - want[order - 1]) < 1e-12,
			  "order %d: got %.15g, expected %.15g", order, loss, want[order - 1]);
	}
	cr_assert_eq(k3_ngram_loss(&train, &eval, 0, &loss), K3_EINVAL);
	cr_assert_eq(k3_ngram_loss(&train, &eval, 6, &loss), K3_EINVAL);
	k3_k3t_close(&train);
	k3_k3t_close(&eval);
}

TEST(probabilities_of_all_bytes_sum_to_one_after_the_table_has_grown)
{
	enum { N = 20000 };
	char *text = malloc(N + 1);
	const char *texts[1] = {text};
	struct k3_k3t train, eval;
	double sum = 0;

	for (int i = 0; i < N; i++)
		text[i] = (char)(1 + k3_rng_bits(3, (uint64_t)i) % 60);
	text[N] = '\0';
	texts_make("train.k3t", texts, 1);
	cr_assert_eq(k3_k3t_open(&train, scratch_path("train.k3t")), K3_OK);
	for (uint32_t byte = 0; byte < 256; byte++) {
		/* the loss of "xy?" less that of "xy" is that of the last byte */
		uint32_t tokens[3] = {1, 2, byte};
		double loss[2];
		for (size_t n = 2; n <= 3; n++) {
			struct k3_k3t_writer *w;
			cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("e.k3t"), &byte_ids),
				     K3_OK);
			cr_assert_eq(k3_k3t_writer_put(w, tokens, NULL, n), K3_OK);
			cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
			cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
			k3_k3t_writer_destroy(w);
			cr_assert_eq(k3_k3t_open(&eval, scratch_path("e.k3t")), K3_OK);
			cr_assert_eq(k3_ngram_loss(&train, &eval, 3, &loss[n - 2]), K3_OK);
			k3_k3t_close(&eval);
		}
		sum += exp(2 * loss[0] - 3 * loss[1]);
	}
	cr_assert(fabs(sum - 1) < 1e-10, "sum %.15g", sum);
	k3_k3t_close(&train);
	free(text);
}

TEST(info_prints_a_table_or_nothing)
{
	const char *paths[] = {scratch_path("x.k3t"), scratch_path("absent.k3t")};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	file_make("x.k3t", true);
	cr_assert_eq(k3_k3t_info_print(out, paths, 2), K3_EIO);
	cr_assert_eq(k3_ngram_print(out, paths[0], paths[0], 2), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "token 2 of the training data is 259"));
	fflush(out);
	cr_assert_eq(bytes, 0);
	cr_assert_eq(k3_k3t_info_print(out, paths, 1), K3_OK);
	fflush(out);
	cr_assert_eq(strncmp(text, "file\tdocuments\ttokens\tignored_tokens\t", 36), 0);
	cr_assert_not_null(strstr(text, "x.k3t\t2\t5\t2\t2\t260\t256\t257\t258\t259\t"));
	fclose(out);
	free(text);
}
