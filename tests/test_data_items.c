/* Items in the document stream: whole in one microbatch, with their own rows and bytes, under every
 * limit; random streams against a model that looks at one token after the other. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/data.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(data_items, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

enum { BOS = 96, EOS = 97, IMG = 98, PAD = 99, NONE = K3_LABEL_IGNORED, MAX_T = 64 };

/* What a microbatch must hold, or does. */
struct batch {
	int32_t ids[MAX_T], labels[MAX_T], doc_ids[MAX_T];
	size_t n_valid, n_items;
	uint64_t patches;
	struct k3_grid grid[MAX_T];
	uint32_t row[MAX_T];
	int item[MAX_T]; /* number of the item in the file, which is also its first byte */
};

/* A token as it is streamed, with all that the rules ask for. */
struct cell {
	int32_t id, label;
	int item, item_tokens; /* of the item that begins here; -1 */
	struct k3_grid grid;
	bool starts_doc;
};

enum { MAX_CELLS = 4096, MAX_DOCS = 64 };
static struct {
	struct cell cells[MAX_CELLS];
	size_t doc[MAX_DOCS + 1]; /* first cell of each document */
	size_t n_docs;
	int n_items;
} model;

/* Documents in a small language: a letter is a token, an upper case letter one without loss, a
 * digit 1 .. 9 an item: 1 to 4 merged rows of 2 blocks (digits 1-4), a video of as many frames of
 * one block (6-9 stand for 1-4 frames), 5 an item of one block. */
static struct k3_grid
digit_grid(char digit)
{
	if (digit < '5')
		return (struct k3_grid){1, 2 * (uint32_t)(digit - '0'), 4};
	return (struct k3_grid){digit == '5' ? 1 : (uint32_t)(digit - '5'), 2, 2};
}

static void
item_put(struct k3_k3t_writer *w, char digit)
{
	uint8_t bytes[4 * 8 * 4 * 3];
	struct k3_grid grid = digit_grid(digit);

	memset(bytes, model.n_items, sizeof(bytes));
	cr_assert_eq(k3_k3t_writer_put_item(w, &grid, bytes), K3_OK);
}

static struct cell *
cell_add(size_t *n, int32_t id)
{
	cr_assert_lt(*n, MAX_CELLS);
	model.cells[*n] = (struct cell){.id = id, .label = NONE, .item = -1};
	return &model.cells[(*n)++];
}

/* The cells of one document; labels afterwards, from the cells alone. */
static void
model_add(size_t *n, const char *text, bool with_bos)
{
	size_t first = *n;
	bool counts[MAX_CELLS];

	if (with_bos)
		cell_add(n, BOS);
	for (; *text; text++) {
		bool digit = *text <= '9';
		size_t blocks = 1;
		if (digit) {
			struct k3_grid grid = digit_grid(*text);
			struct cell *cell = cell_add(n, IMG);
			blocks = grid.h * grid.w / 4;
			*cell = (struct cell){IMG, NONE, model.n_items++, (int)blocks, grid, false};
			for (size_t i = 1; i < blocks; i++)
				cell_add(n, IMG);
		} else {
			cell_add(n, *text >= 'a' ? *text - 'a' : *text - 'A');
		}
		for (size_t i = *n - blocks; i < *n; i++)
			counts[i] = digit || *text >= 'a';
	}
	cell_add(n, EOS);
	counts[*n - 1] = counts[*n - 2];
	for (size_t i = first; i + 1 < *n; i++)
		if (model.cells[i + 1].id != IMG && counts[i + 1])
			model.cells[i].label = model.cells[i + 1].id;
	model.cells[first].starts_doc = true;
	model.doc[++model.n_docs] = *n;
}

static void
file_make(bool with_bos, size_t n_docs, const char *const *texts)
{
	struct k3_k3t_ids ids = {100, with_bos ? BOS : K3_K3T_NO_ID, EOS, IMG, PAD};
	struct k3_k3t_patches patches = {1, 2, 2};
	struct k3_k3t_writer *w;
	size_t n = 0;

	memset(&model, 0, sizeof(model));
	cr_assert_eq(k3_k3t_writer_create(&w, scratch_path("x.k3t"), &ids), K3_OK);
	cr_assert_eq(k3_k3t_writer_set_patches(w, &patches), K3_OK);
	for (size_t i = 0; i < n_docs; i++) {
		int before = model.n_items;
		for (const char *c = texts[i]; *c; c++) {
			bool counts = *c >= 'a';
			uint32_t token = (uint32_t)(*c - (counts ? 'a' : 'A'));
			if (*c <= '9')
				item_put(w, *c);
			else
				cr_assert_eq(k3_k3t_writer_put(w, &token, &counts, 1), K3_OK);
			model.n_items += *c <= '9';
		}
		cr_assert_eq(k3_k3t_writer_end_doc(w, NULL), K3_OK);
		model.n_items = before;
		model_add(&n, texts[i], with_bos);
	}
	cr_assert_eq(k3_k3t_writer_finish(w), K3_OK);
	cr_assert_eq(k3_k3t_writer_publish(w), K3_OK);
	k3_k3t_writer_destroy(w);
}

#define FILE_MAKE(with_bos, ...)                                                                   \
	file_make(with_bos, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *),           \
		  (const char *const[]){__VA_ARGS__})

/* Opens with a seed that keeps the order of the file. */
static struct k3_data
stream_open_in_file_order(bool once)
{
	struct k3_data d;
	bool sorted = false;

	for (uint64_t seed = 0; !sorted; seed++) {
		cr_assert_lt(seed, 5000, "no seed keeps the order");
		if (seed > 0)
			k3_data_close(&d);
		cr_assert_eq(k3_data_open(&d, scratch_path("x.k3t"), seed, once), K3_OK);
		sorted = true;
		for (uint64_t i = 0; i < d.file.n_docs; i++)
			sorted &= d.order[i] == i;
	}
	return d;
}

static int
batch_read(struct k3_data *d, size_t t, struct batch *b)
{
	struct k3_data_items items;

	memset(b, 0x5a, sizeof(*b));
	cr_assert_eq(k3_data_items_init(&items, t), K3_OK);
	int ret = k3_data_next(d, t, b->ids, b->labels, b->doc_ids, &b->n_valid, &items);
	if (ret == K3_OK) {
		b->n_items = items.n;
		b->patches = items.patches;
		for (size_t i = 0; i < items.n; i++) {
			b->grid[i] = items.grid[i];
			b->row[i] = items.row[i];
			b->item[i] = items.bytes[i][0];
		}
	}
	k3_data_items_fini(&items);
	return ret;
}

static void
expect_equal(const struct batch *got, const struct batch *want, size_t t, const char *what)
{
	cr_assert_eq(got->n_valid, want->n_valid, "%s: n_valid %zu, expected %zu", what,
		     got->n_valid, want->n_valid);
	for (size_t i = 0; i < t; i++)
		cr_assert(got->ids[i] == want->ids[i] && got->labels[i] == want->labels[i] &&
				  got->doc_ids[i] == want->doc_ids[i],
			  "%s, row %zu: got %d %d %d, expected %d %d %d", what, i, got->ids[i],
			  got->labels[i], got->doc_ids[i], want->ids[i], want->labels[i],
			  want->doc_ids[i]);
	cr_assert(got->n_items == want->n_items && got->patches == want->patches,
		  "%s: %zu items, %d patches, expected %zu, %d", what, got->n_items,
		  (int)got->patches, want->n_items, (int)want->patches);
	for (size_t i = 0; i < got->n_items; i++)
		cr_assert(got->item[i] == want->item[i] && got->row[i] == want->row[i] &&
				  memcmp(&got->grid[i], &want->grid[i], sizeof(got->grid[i])) == 0,
			  "%s, item %zu: number %d row %u, expected %d %u", what, i, got->item[i],
			  got->row[i], want->item[i], want->row[i]);
}

static void
expect_next(struct k3_data *d, size_t t, const struct batch *want)
{
	struct batch got;

	cr_assert_eq(batch_read(d, t, &got), K3_OK);
	expect_equal(&got, want, t, "microbatch");
}

/* Item 2 is 2x2 blocks, item 5 one block. */
TEST(a_cut_comes_before_an_item_and_placeholders_are_no_labels)
{
	FILE_MAKE(true, "a2b", "5");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 5,
		    &(struct batch){{BOS, 0, PAD, PAD, PAD},
				    {0, NONE, NONE, NONE, NONE},
				    {1, 1, 0, 0, 0},
				    .n_valid = 2});
	expect_next(&d, 5,
		    &(struct batch){{IMG, IMG, IMG, IMG, 1},
				    {NONE, NONE, NONE, 1, EOS},
				    {1, 1, 1, 1, 1},
				    .n_valid = 5,
				    .n_items = 1,
				    .patches = 16,
				    .grid = {{1, 4, 4}},
				    .row = {0},
				    .item = {0}});
	expect_next(&d, 5,
		    &(struct batch){{EOS, BOS, IMG, EOS, PAD},
				    {NONE, NONE, EOS, NONE, NONE},
				    {1, 2, 2, 2, 0},
				    .n_valid = 4,
				    .n_items = 1,
				    .patches = 4,
				    .grid = {{1, 2, 2}},
				    .row = {2},
				    .item = {1}});
	expect_next(&d, 5,
		    &(struct batch){{PAD, PAD, PAD, PAD, PAD},
				    {NONE, NONE, NONE, NONE, NONE},
				    {0, 0, 0, 0, 0},
				    .n_valid = 0});
	k3_data_close(&d);
}

TEST(a_cut_after_an_item_keeps_its_true_next_token)
{
	FILE_MAKE(false, "5b5");
	struct k3_data d = stream_open_in_file_order(true);

	for (int i = 0; i < 4; i++) {
		static const int32_t ids[] = {IMG, 1, IMG, EOS}, labels[] = {1, NONE, EOS, NONE};
		struct batch got;
		cr_assert_eq(batch_read(&d, 1, &got), K3_OK);
		cr_assert(got.ids[0] == ids[i] && got.labels[0] == labels[i], "row %d", i);
		cr_assert_eq(got.n_items, (size_t)(i % 2 == 0));
	}
	k3_data_close(&d);
}

TEST(three_items_of_different_sizes_in_one_document_stay_apart)
{
	FILE_MAKE(true, "a1b3c8d");
	struct k3_data d = stream_open_in_file_order(true);

	expect_next(&d, 16,
		    &(struct batch){{BOS, 0, IMG, IMG, 1, IMG, IMG, IMG, IMG, IMG, IMG, 2, IMG, 3,
				     EOS, PAD},
				    {0, NONE, NONE, 1, NONE, NONE, NONE, NONE, NONE, NONE, 2, NONE,
				     3, EOS, NONE, NONE},
				    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0},
				    .n_valid = 15,
				    .n_items = 3,
				    .patches = 8 + 24 + 12,
				    .grid = {{1, 2, 4}, {1, 6, 4}, {3, 2, 2}},
				    .row = {2, 5, 12},
				    .item = {0, 1, 2}});
	k3_data_close(&d);
}

/* Without the limit all three items, 8 + 24 + 12 patches, would be in one microbatch. */
TEST(a_microbatch_ends_before_the_item_that_exceeds_its_patches)
{
	static const size_t items[] = {1, 1, 1}, valid[] = {5, 7, 3};

	FILE_MAKE(true, "a1b3c8d");
	struct k3_data d = stream_open_in_file_order(true);
	k3_data_set_max_patches(&d, 24);
	for (int i = 0; i < 3; i++) {
		struct batch got;
		cr_assert_eq(batch_read(&d, 16, &got), K3_OK);
		cr_assert(got.n_items == items[i] && got.n_valid == valid[i],
			  "%d: %zu items, %zu rows", i, got.n_items, got.n_valid);
	}
	cr_assert_eq(k3_data_set_pos(&d, &(struct k3_data_pos){0}), K3_OK);
	k3_data_set_max_patches(&d, 32);
	struct batch got;
	cr_assert_eq(batch_read(&d, 16, &got), K3_OK);
	cr_assert(got.n_items == 2 && got.patches == 32 && got.n_valid == 12);
	k3_data_close(&d);
}

/* Samples with 1, 0, 2, 0 and 1 images: each item comes after the letters of the sample that it was
 * stored with, whatever the number of microbatches. */
static void
expect_each_keeps_its_own(size_t t, int n_batches)
{
	static const int own[5][2] = {{0, -1}, {-1, -1}, {1, 2}, {-1, -1}, {3, -1}};
	int seen = 0, batches = 0, letter = -1;
	struct batch got;

	FILE_MAKE(true, "aaa1", "bbbbb", "c2c5", "ddddd", "eee1");
	struct k3_data d = stream_open_in_file_order(true);
	while (batch_read(&d, t, &got) == K3_OK && got.n_valid > 0) {
		size_t next = 0;
		batches++;
		for (size_t row = 0; row < got.n_valid; row++) {
			if (got.ids[row] < 26)
				letter = got.ids[row];
			if (next == got.n_items || got.row[next] != row)
				continue;
			cr_assert_eq(got.ids[row], IMG);
			cr_assert(letter >= 0 && letter < 5);
			cr_assert(got.item[next] == own[letter][0] ||
					  got.item[next] == own[letter][1],
				  "sample %d has item %d", letter, got.item[next]);
			seen |= 1 << got.item[next++];
		}
		cr_assert_eq(next, got.n_items, "an item without a row");
	}
	cr_assert_eq(batches, n_batches, "%d microbatches of %zu", batches, t);
	cr_assert_eq(seen, 15);
	k3_data_close(&d);
}

TEST(five_samples_keep_their_own_images_over_two_and_three_microbatches)
{
	expect_each_keeps_its_own(21, 2);
	expect_each_keeps_its_own(14, 3);
}

TEST(an_item_that_fits_in_no_microbatch_is_named_with_both_counts)
{
	struct batch got;
	struct k3_data_pos pos;

	FILE_MAKE(true, "ab", "c52d");
	struct k3_data d = stream_open_in_file_order(true);
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", 4), K3_OK);
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", 3), K3_ELIMIT);
	cr_assert_not_null(strstr(scratch_log(),
				  "x.k3t: item 1 of document 1 of the file (both "
				  "from 0) has 4 tokens, a microbatch holds 3: items "
				  "are not cut; --tokens 4 would do"));
	cr_assert_eq(batch_read(&d, 3, &got), K3_OK);
	cr_assert_eq(batch_read(&d, 3, &got), K3_OK);
	cr_assert_eq(batch_read(&d, 3, &got), K3_OK);
	cr_assert_eq(got.n_valid, 1, "the placeholder before the item that does not fit");
	k3_data_get_pos(&d, &pos);
	cr_assert_eq(batch_read(&d, 3, &got), K3_ELIMIT);
	cr_assert_eq(k3_data_next(&d, 3, NULL, NULL, NULL, NULL, NULL), K3_ELIMIT);
	cr_assert_not_null(strstr(scratch_log(), "item 1 of document 1"));
	cr_assert(d.pos.doc == pos.doc && d.pos.offset == pos.offset, "the position has moved");
	k3_data_set_max_patches(&d, 15);
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", 4), K3_ELIMIT);
	cr_assert_not_null(strstr(scratch_log(), "has 16 patches, a microbatch holds 15: items are "
						 "not cut; --max-patches 16 would do"));
	/* both at once, for the largest of the file */
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", 1), K3_ELIMIT);
	const char *log = scratch_log();
	cr_assert(strstr(log, "--tokens 4 would do") && strstr(log, "--max-patches 16 would do"),
		  "%s", log);
	cr_assert_eq(batch_read(&d, 4, &got), K3_ELIMIT);
	k3_data_set_max_patches(&d, 16);
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", 4), K3_OK);
	cr_assert_eq(batch_read(&d, 4, &got), K3_OK);
	k3_data_close(&d);
}

TEST(items_cannot_be_dropped_by_mistake)
{
	int32_t rows[3][8];
	struct k3_data_items items;
	struct k3_data_pos pos;

	FILE_MAKE(true, "a2b");
	struct k3_data d = stream_open_in_file_order(false);
	cr_assert_eq(k3_data_next(&d, 8, rows[0], rows[1], rows[2], NULL, NULL), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "the data set has 1 images or videos"));
	cr_assert_eq(k3_data_items_init(&items, 7), K3_OK);
	cr_assert_eq(k3_data_next(&d, 8, rows[0], rows[1], rows[2], NULL, &items), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "items of 7 tokens, the microbatch has 8"));
	k3_data_get_pos(&d, &pos);
	cr_assert(pos.epoch == 0 && pos.offset == 0);
	cr_assert_eq(k3_data_next(&d, 7, rows[0], rows[1], rows[2], NULL, &items), K3_OK);
	cr_assert_eq(items.n, 1);
	k3_data_items_fini(&items);
	k3_data_close(&d);
}

TEST(a_position_inside_an_item_is_refused)
{
	static const bool legal[] = {true, true, true, false, false, false, true, true, true, true};

	FILE_MAKE(true, "a25b");
	struct k3_data d = stream_open_in_file_order(false);
	for (uint64_t i = 0; i < 9; i++) {
		int ret = k3_data_set_pos(&d, &(struct k3_data_pos){3, 0, i});
		cr_assert_eq(ret, legal[i] ? K3_OK : K3_EINVAL, "offset %d", (int)i);
		cr_assert_eq(strstr(scratch_log(), "would be cut there") != NULL, !legal[i]);
	}
	k3_data_close(&d);
}

/* The rules again, one cell at a time; next is the cell where the microbatch begins. */
static void
model_next(const struct cell *const *cells, size_t n, size_t *next, size_t t, uint64_t max_patches,
	   struct batch *b)
{
	int32_t doc = 0;
	size_t row = 0;

	memset(b, 0x5a, sizeof(*b));
	b->n_items = 0;
	b->patches = 0;
	for (; row < t && *next < n; row++, ++*next) {
		const struct cell *c = cells[*next];
		if (c->item >= 0) {
			uint64_t patches = (uint64_t)c->grid.t * c->grid.h * c->grid.w;
			if (row + (size_t)c->item_tokens > t ||
			    (max_patches > 0 && b->patches + patches > max_patches))
				break;
			b->patches += patches;
			b->grid[b->n_items] = c->grid;
			b->row[b->n_items] = (uint32_t)row;
			b->item[b->n_items++] = c->item;
		}
		doc += c->starts_doc || row == 0;
		b->ids[row] = c->id;
		b->labels[row] = c->label;
		b->doc_ids[row] = doc;
	}
	b->n_valid = row;
	for (; row < t; row++) {
		b->ids[row] = PAD;
		b->labels[row] = NONE;
		b->doc_ids[row] = 0;
	}
}

/* Cells of some epochs in the order of the stream. */
static size_t
cells_in_order(const struct cell **cells, uint64_t seed, uint64_t epochs)
{
	struct k3_data d;
	size_t n = 0;

	cr_assert_eq(k3_data_open(&d, scratch_path("x.k3t"), seed, false), K3_OK);
	for (uint64_t epoch = 0; epoch < epochs; epoch++) {
		cr_assert_eq(k3_data_set_pos(&d, &(struct k3_data_pos){epoch, 0, 0}), K3_OK);
		for (uint64_t place = 0; place < d.file.n_docs; place++) {
			uint64_t doc = d.order[place];
			for (size_t i = model.doc[doc]; i < model.doc[doc + 1]; i++)
				cells[n++] = &model.cells[i];
		}
	}
	k3_data_close(&d);
	return n;
}

/* Up to 8 documents of up to 12 signs; items twice as rare as letters. */
static void
random_file(uint64_t seed)
{
	static const char signs[] = "abcdefghijklmnopqrABC1234567895";
	char texts[8][13] = {{0}};
	const char *list[8];
	size_t n_docs = 1 + (size_t)(k3_rng_uniform(seed, 0) * 8);
	uint64_t draw = 1;

	for (size_t i = 0; i < n_docs; i++) {
		size_t n = 1 + (size_t)(k3_rng_uniform(seed, draw++) * 12);
		for (size_t j = 0; j < n; j++)
			texts[i][j] = signs[(size_t)(k3_rng_uniform(seed, draw++) *
						     (double)(sizeof(signs) - 1))];
		list[i] = texts[i];
	}
	file_make(k3_rng_uniform(seed, draw) < 0.5, n_docs, list);
}

enum { MAX_BATCHES = 400, EPOCHS = 3 };

/* One stream with this t and limit: equal to the model, and again from each of its positions. */
static void
expect_stream_is_model(uint64_t seed, size_t t, uint64_t max_patches, bool once)
{
	static const struct cell *cells[EPOCHS * MAX_CELLS];
	static struct k3_data_pos pos[MAX_BATCHES];
	static struct batch want[MAX_BATCHES];
	size_t n_cells = cells_in_order(cells, seed, once ? 1 : EPOCHS), next = 0;
	struct k3_data d, skipping;
	struct batch got;
	int n = 0;

	cr_assert_eq(k3_data_open(&d, scratch_path("x.k3t"), seed, once), K3_OK);
	cr_assert_eq(k3_data_open(&skipping, scratch_path("x.k3t"), seed, once), K3_OK);
	k3_data_set_max_patches(&d, max_patches);
	k3_data_set_max_patches(&skipping, max_patches);
	cr_assert_eq(k3_data_require_items(&d, "x.k3t", t), K3_OK);
	/* a stream that goes on would fill rows after the last cell of the model */
	while (once ? next < n_cells : next + t + 8 < n_cells) {
		cr_assert_lt(n, MAX_BATCHES);
		k3_data_get_pos(&d, &pos[n]);
		cr_assert_eq(k3_data_consumed_tokens(&d), next);
		cr_assert_eq(batch_read(&d, t, &got), K3_OK);
		model_next(cells, n_cells, &next, t, max_patches, &want[n]);
		expect_equal(&got, &want[n++], t, "stream");
		cr_assert_eq(k3_data_next(&skipping, t, NULL, NULL, NULL, NULL, NULL), K3_OK);
		cr_assert_eq(memcmp(&skipping.pos, &d.pos, sizeof(d.pos)), 0, "skipping differs");
	}
	if (once) {
		cr_assert_eq(batch_read(&d, t, &got), K3_OK);
		cr_assert(got.n_valid == 0 && got.n_items == 0);
	}
	while (n-- > 0) {
		cr_assert_eq(k3_data_set_pos(&d, &pos[n]), K3_OK);
		cr_assert_eq(batch_read(&d, t, &got), K3_OK);
		expect_equal(&got, &want[n], t, "resumed");
	}
	k3_data_close(&d);
	k3_data_close(&skipping);
}

TEST(random_streams_follow_the_rules_and_resume_anywhere)
{
	int with_items = 0;

	for (uint64_t seed = 0; seed < 300; seed++) {
		/* the biggest item has 8 tokens and 32 patches */
		size_t t = 8 + (size_t)(k3_rng_uniform(seed + 1000, 0) * 25);
		uint64_t max = k3_rng_uniform(seed + 1000, 1) < 0.5
				       ? 0
				       : 32 + (uint64_t)(k3_rng_uniform(seed + 1000, 2) * 40);
		random_file(seed);
		with_items += model.n_items > 0;
		expect_stream_is_model(seed, t, max, seed % 2);
	}
	cr_assert_gt(with_items, 250);
}
