/* The document stream: packing, shifted labels, cuts, padding, epochs and positions. */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/data.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name) Test(data, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

enum { BOS = 96, EOS = 97, PAD = 99, NONE = K3_LABEL_IGNORED, UNSET = -7 };

/* A data set with one document per string: 'a' is token 0, 'b' 1, ...; an upper case letter is the
 * same token without loss. */
static void
file_make(bool with_bos, int n_docs, ...)
{
	struct k3_k3t_ids ids = {100, with_bos ? BOS : K3_K3T_NO_ID, EOS, 98, PAD};
	struct k3_k3t_writer *w;
	va_list texts;

	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &ids), K3_OK);
	va_start(texts, n_docs);
	for (int i = 0; i < n_docs; i++) {
		for (const char *c = va_arg(texts, const char *); *c; c++) {
			bool counts = *c >= 'a';
			uint32_t token = (uint32_t)(*c - (counts ? 'a' : 'A'));
			cr_assert_eq(k3_k3t_writer_put(w, &token, &counts, 1), K3_OK);
		}
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
	}
	va_end(texts);
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

static struct k3_data
stream_open(uint64_t seed, bool once)
{
	struct k3_data d;

	cr_assert_eq(k3_data_open(&d, scratch_path("x.k3t"), seed, once), K3_OK);
	return d;
}

/* Opens with a seed that keeps the order of the file. */
static struct k3_data
stream_open_in_file_order(bool once)
{
	struct k3_data d;
	bool sorted = false;

	for (uint64_t seed = 0; !sorted; seed++) {
		cr_assert_lt(seed, 1000, "no seed keeps the order");
		if (seed > 0)
			k3_data_close(&d);
		d = stream_open(seed, once);
		sorted = true;
		for (uint64_t i = 0; i < d.file.n_docs; i++)
			sorted &= d.order[i] == i;
	}
	return d;
}

static void
expect_next(struct k3_data *d, size_t t, size_t n_valid, const int32_t *ids, const int32_t *labels,
	    const int32_t *doc_ids)
{
	int32_t got[3][64];
	size_t got_valid = 999;

	for (int i = 0; i < 3 * 64; i++)
		got[i / 64][i % 64] = UNSET;
	cr_assert_eq(k3_data_next(d, t, got[0], got[1], got[2], &got_valid, NULL), K3_OK);
	cr_assert_eq(got_valid, n_valid, "n_valid: got %zu, expected %zu", got_valid, n_valid);
	for (size_t i = 0; i < t; i++) {
		cr_assert_eq(got[0][i], ids[i], "id %zu: got %d, expected %d", i, got[0][i],
			     ids[i]);
		cr_assert_eq(got[1][i], labels[i], "label %zu: got %d, expected %d", i, got[1][i],
			     labels[i]);
		cr_assert_eq(got[2][i], doc_ids[i], "document %zu: got %d, expected %d", i,
			     got[2][i], doc_ids[i]);
	}
	for (int i = 0; i < 3; i++)
		cr_assert_eq(got[i][t], UNSET, "row %zu was written", t);
}

#define ROW(...)                                                                                   \
	(const int32_t[])                                                                          \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

TEST(no_token_is_trained_to_predict_the_next_document)
{
	file_make(true, 2, "abc", "de");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 9, 9, ROW(BOS, 0, 1, 2, EOS, BOS, 3, 4, EOS),
		    ROW(0, 1, 2, EOS, NONE, 3, 4, EOS, NONE), ROW(1, 1, 1, 1, 1, 2, 2, 2, 2));
	expect_next(&d, 2, 0, ROW(PAD, PAD), ROW(NONE, NONE), ROW(0, 0));
	k3_data_close(&d);
}

TEST(without_bos_the_first_token_is_predicted_by_nothing)
{
	file_make(false, 2, "abc", "de");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 7, 7, ROW(0, 1, 2, EOS, 3, 4, EOS), ROW(1, 2, EOS, NONE, 4, EOS, NONE),
		    ROW(1, 1, 1, 1, 2, 2, 2));
	cr_assert_eq(k3_data_total_tokens(&d), 7);
	k3_data_close(&d);
}

TEST(a_cut_document_keeps_its_label_and_goes_on_as_a_new_one)
{
	file_make(true, 2, "abc", "de");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 3, 3, ROW(BOS, 0, 1), ROW(0, 1, 2), ROW(1, 1, 1));
	expect_next(&d, 4, 4, ROW(2, EOS, BOS, 3), ROW(EOS, NONE, 3, 4), ROW(1, 1, 2, 2));
	expect_next(&d, 1, 1, ROW(4), ROW(EOS), ROW(1));
	expect_next(&d, 3, 1, ROW(EOS, PAD, PAD), ROW(NONE, NONE, NONE), ROW(1, 0, 0));
	k3_data_close(&d);
}

TEST(targets_outside_the_loss_mask_have_no_label)
{
	file_make(true, 3, "aBc", "dE", "Fg");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 5, 5, ROW(BOS, 0, 1, 2, EOS), ROW(0, NONE, 2, EOS, NONE),
		    ROW(1, 1, 1, 1, 1));
	expect_next(&d, 4, 4, ROW(BOS, 3, 4, EOS), ROW(3, NONE, NONE, NONE), ROW(1, 1, 1, 1));
	expect_next(&d, 4, 4, ROW(BOS, 5, 6, EOS), ROW(NONE, 6, EOS, NONE), ROW(1, 1, 1, 1));
	k3_data_close(&d);
}

TEST(documents_of_one_and_two_tokens_stream)
{
	file_make(false, 2, "a", "bc");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 5, 5, ROW(0, EOS, 1, 2, EOS), ROW(EOS, NONE, 2, EOS, NONE),
		    ROW(1, 1, 2, 2, 2));
	k3_data_close(&d);
}

TEST(training_goes_on_into_the_next_epoch_without_padding)
{
	file_make(true, 1, "ab");
	struct k3_data d = stream_open(0, false);

	expect_next(&d, 6, 6, ROW(BOS, 0, 1, EOS, BOS, 0), ROW(0, 1, EOS, NONE, 0, 1),
		    ROW(1, 1, 1, 1, 2, 2));
	expect_next(&d, 3, 3, ROW(1, EOS, BOS), ROW(EOS, NONE, 0), ROW(1, 1, 2));
	cr_assert_eq(d.pos.epoch, 2);
	cr_assert_eq(k3_data_consumed_tokens(&d), 9);
	k3_data_close(&d);
}

/* Bits of the documents that one epoch of "a".."j" gives, and the order as a number. */
static uint64_t
epoch_order(struct k3_data *d, unsigned int *seen)
{
	uint64_t order = 0;
	int32_t ids[30], labels[30], doc_ids[30];

	*seen = 0;
	cr_assert_eq(k3_data_next(d, 30, ids, labels, doc_ids, NULL, NULL), K3_OK);
	for (int i = 1; i < 30; i += 3) {
		*seen |= 1u << ids[i];
		order = order * 10 + (uint64_t)ids[i];
	}
	return order;
}

TEST(each_epoch_has_every_document_once_in_an_order_of_its_own)
{
	unsigned int seen;

	file_make(true, 10, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j");
	struct k3_data d = stream_open(7, false), same = stream_open(7, false);
	struct k3_data other = stream_open(8, false);
	uint64_t orders[3];

	for (int i = 0; i < 3; i++) {
		orders[i] = epoch_order(&d, &seen);
		cr_assert_eq(seen, 1023);
		cr_assert_eq(epoch_order(&same, &seen), orders[i]);
		cr_assert_neq(epoch_order(&other, &seen), orders[i]);
		cr_assert_eq(seen, 1023);
	}
	cr_assert(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2]);
	k3_data_close(&d);
	k3_data_close(&same);
	k3_data_close(&other);
}

TEST(a_restored_position_gives_the_same_stream)
{
	enum { N = 60 };
	int32_t ids[N], labels[N], again[2], again_labels[2], doc_ids[2];

	file_make(true, 4, "abc", "d", "efghi", "jk");
	struct k3_data d = stream_open(3, false), other = stream_open(3, false);
	struct k3_data_pos at[N];
	for (int i = 0; i < N; i++) {
		k3_data_get_pos(&d, &at[i]);
		cr_assert_eq(k3_data_consumed_tokens(&d), i);
		cr_assert_eq(k3_data_next(&d, 1, &ids[i], &labels[i], doc_ids, NULL, NULL), K3_OK);
	}
	for (int i = N - 2; i >= 0; i--) {
		cr_assert_eq(k3_data_set_pos(&other, &at[i]), K3_OK);
		cr_assert_eq(k3_data_next(&other, 2, again, again_labels, doc_ids, NULL, NULL),
			     K3_OK);
		cr_assert(again[0] == ids[i] && again[1] == ids[i + 1], "position %d", i);
		cr_assert(again_labels[0] == labels[i] && again_labels[1] == labels[i + 1]);
	}
	k3_data_close(&d);
	k3_data_close(&other);
}

TEST(a_position_that_does_not_exist_changes_nothing)
{
	static const struct k3_data_pos bad[] = {{0, 2, 0}, {5, 0, 99}, {0, UINT64_MAX, 0}};
	struct k3_data_pos pos;

	file_make(true, 2, "abc", "de");
	struct k3_data d = stream_open_in_file_order(false);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(k3_data_set_pos(&d, &bad[i]), K3_EINVAL);
	k3_data_get_pos(&d, &pos);
	cr_assert(pos.epoch == 0 && pos.doc == 0 && pos.offset == 0);
	expect_next(&d, 2, 2, ROW(BOS, 0), ROW(0, 1), ROW(1, 1));
	k3_data_close(&d);
	d = stream_open(0, true);
	cr_assert_eq(k3_data_set_pos(&d, &(struct k3_data_pos){1, 1, 0}), K3_EINVAL);
	cr_assert_eq(k3_data_set_pos(&d, &(struct k3_data_pos){1, 0, 0}), K3_OK);
	expect_next(&d, 1, 0, ROW(PAD), ROW(NONE), ROW(0));
	k3_data_close(&d);
}

TEST(a_skipped_microbatch_moves_the_position_alone)
{
	struct k3_data_pos one, two;
	int32_t ids[4], labels[4], doc_ids[4];

	file_make(true, 2, "abc", "de");
	struct k3_data d = stream_open(1, false), other = stream_open(1, false);
	for (int i = 0; i < 9; i++) {
		cr_assert_eq(k3_data_next(&d, 4, NULL, NULL, NULL, NULL, NULL), K3_OK);
		cr_assert_eq(k3_data_next(&other, 4, ids, labels, doc_ids, NULL, NULL), K3_OK);
		k3_data_get_pos(&d, &one);
		k3_data_get_pos(&other, &two);
		cr_assert(one.epoch == two.epoch && one.doc == two.doc && one.offset == two.offset);
	}
	cr_assert_eq(one.epoch, 4);
	k3_data_close(&d);
	k3_data_close(&other);
}

TEST(a_data_set_one_token_short_is_reported_with_both_counts)
{
	file_make(true, 2, "abc", "de");
	struct k3_data d = stream_open(0, true);

	cr_assert_eq(k3_data_total_tokens(&d), 9);
	cr_assert_eq(k3_data_require(&d, "x.k3t", 9), K3_OK);
	cr_assert_eq(k3_data_require(&d, "x.k3t", 10), K3_ELIMIT);
	cr_assert_not_null(strstr(scratch_log(), "10 tokens are needed, the data set has 9"));
	cr_assert_eq(k3_data_next(&d, 0, NULL, NULL, NULL, NULL, NULL), K3_EINVAL);
	k3_data_close(&d);
	cr_assert_eq(k3_data_open(&d, scratch_path("absent.k3t"), 0, true), K3_EIO);
	k3_data_close(&d);
}
