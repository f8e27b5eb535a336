/* The document stream.
 *
 * The trap: the label of the last position before a cut is read from the document, not from the
 * microbatch, and the label of eos must never be the first token of the neighbour.  So labels come
 * from positions inside one document, and no step ever looks across its end.
 */
#include "data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "data_items.h"
#include "log.h"
#include "rng.h"
#include "status.h"

/* One document as it is streamed. */
struct doc {
	const struct k3_k3t *file;
	uint64_t first, text; /* its tokens in the file */
	uint64_t head;	      /* 1 with bos, else 0 */
	uint64_t length;      /* head + text + eos */
};

static struct doc
doc_at(const struct k3_data *d, uint64_t place)
{
	const struct k3_k3t *f = &d->file;
	uint64_t i = d->order[place];
	struct doc doc = {.file = f, .first = f->offsets[i]};

	doc.text = f->offsets[i + 1] - doc.first;
	doc.head = f->ids.bos != K3_K3T_NO_ID;
	doc.length = doc.head + doc.text + 1;
	return doc;
}

static int32_t
doc_token(const struct doc *doc, uint64_t i)
{
	if (i < doc->head)
		return (int32_t)doc->file->ids.bos;
	if (i == doc->length - 1)
		return (int32_t)doc->file->ids.eos;
	return (int32_t)k3_k3t_token(doc->file, doc->first + i - doc->head);
}

static int32_t
doc_label(const struct doc *doc, uint64_t i)
{
	if (i == doc->length - 1)
		return K3_LABEL_IGNORED;
	int32_t next = doc_token(doc, i + 1);
	if (next == (int32_t)doc->file->ids.placeholder)
		return K3_LABEL_IGNORED;
	uint64_t target = i + 1 - doc->head;
	if (target == doc->text)
		target--;
	return k3_k3t_counts(doc->file, doc->first + target) ? next : K3_LABEL_IGNORED;
}

/* Token of the file that stands at streamed position i, or would if bos and eos stood there. */
static uint64_t
doc_file_token(const struct doc *doc, uint64_t i)
{
	uint64_t text = i < doc->head ? 0 : i - doc->head;

	return doc->first + (text < doc->text ? text : doc->text);
}

static void
order_make(struct k3_data *d, uint64_t epoch)
{
	uint64_t key = k3_rng_bits(k3_rng_key("data.order", d->seed), epoch);

	k3_rng_permutation(key, d->order, (size_t)d->file.n_docs);
	d->order_epoch = epoch;
}

int
k3_data_open(struct k3_data *d, const char *path, uint64_t seed, bool once)
{
	int ret;

	*d = (struct k3_data){.seed = seed, .once = once};
	K3_TRY(k3_k3t_open(&d->file, path));
	d->order = malloc((size_t)d->file.n_docs * sizeof(*d->order));
	if (!d->order) {
		k3_error("common", "%s: out of memory for the order of %" PRIu64 " documents", path,
			 d->file.n_docs);
		ret = K3_ENOMEM;
		goto out;
	}
	order_make(d, 0);
out:
	if (ret != K3_OK)
		k3_data_close(d);
	return ret;
}

void
k3_data_close(struct k3_data *d)
{
	free(d->order);
	k3_k3t_close(&d->file);
	*d = (struct k3_data){0};
}

static bool
at_end(const struct k3_data *d)
{
	return d->once && d->pos.epoch > 0;
}

/* Moves the position by n tokens of the present document. */
static void
pos_advance(struct k3_data *d, uint64_t n, uint64_t length)
{
	d->pos.offset += n;
	if (d->pos.offset < length)
		return;
	d->pos.offset = 0;
	if (++d->pos.doc < d->file.n_docs)
		return;
	d->pos.doc = 0;
	d->pos.epoch++;
	if (!at_end(d))
		order_make(d, d->pos.epoch);
}

/* Streamed tokens of the document from position `from` that fit in the rows left, and their items;
 * less than what fits when the microbatch must end before an item. */
static size_t
doc_take(const struct k3_data *d, const struct doc *doc, uint64_t from, size_t row,
	 size_t rows_left, struct k3i_items_taken *taken)
{
	uint64_t left = doc->length - from;
	size_t n = left < rows_left ? (size_t)left : rows_left;
	uint64_t first = doc_file_token(doc, from), end = doc_file_token(doc, from + n);

	/* bos alone has no token of the file, and then first == end */
	size_t first_row = row + (from < doc->head ? (size_t)(doc->head - from) : 0);
	uint64_t stop = k3i_items_take(d, first, end, first_row, taken);
	return stop < end ? (size_t)(first_row - row + (stop - first)) : n;
}

static void
rows_fill(const struct doc *doc, uint64_t from, size_t n, int32_t id, int32_t *ids, int32_t *labels,
	  int32_t *doc_ids)
{
	for (size_t i = 0; i < n; i++) {
		ids[i] = doc_token(doc, from + i);
		labels[i] = doc_label(doc, from + i);
		doc_ids[i] = id;
	}
}

static int
arguments_check(const struct k3_data *d, size_t t, const int32_t *ids,
		const struct k3_data_items *items)
{
	if (t < 1 || t > INT32_MAX) {
		k3_error("common", "tokens of a microbatch: %zu, allowed are 1 to %d", t,
			 INT32_MAX);
		return K3_EINVAL;
	}
	if (d->file.n_items > 0 && ids && !items) {
		k3_error("common",
			 "the data set has %" PRIu64
			 " images or videos, and this program reads text alone",
			 d->file.n_items);
		return K3_EINVAL;
	}
	if (items && items->room < t) {
		k3_error("common", "room for items of %zu tokens, the microbatch has %zu",
			 items->room, t);
		return K3_EINVAL;
	}
	return K3_OK;
}

int
k3_data_next(struct k3_data *d, size_t t, int32_t *ids, int32_t *labels, int32_t *doc_ids,
	     size_t *n_valid, struct k3_data_items *items)
{
	const struct k3_k3t_ids *special = &d->file.ids;
	struct k3i_items_taken taken = {.items = items};
	size_t row = 0;
	int ret = arguments_check(d, t, ids, items);

	if (ret != K3_OK)
		return ret;
	for (int32_t id = 1; row < t && !taken.full && !at_end(d); id++) {
		struct doc doc = doc_at(d, d->pos.doc);
		uint64_t from = d->pos.offset;
		size_t n = doc_take(d, &doc, from, row, t - row, &taken);
		/* an empty microbatch that is full already would come again and again */
		if (row + n == 0)
			return k3i_item_check(
				d, NULL, k3_k3t_item_find(&d->file, doc_file_token(&doc, from)), t);
		if (ids)
			rows_fill(&doc, from, n, id, ids + row, labels + row, doc_ids + row);
		row += n;
		pos_advance(d, n, doc.length);
	}
	if (items) {
		items->n = taken.n;
		items->patches = taken.patches;
	}
	if (n_valid)
		*n_valid = row;
	for (; ids && row < t; row++) {
		ids[row] = (int32_t)(special->pad != K3_K3T_NO_ID ? special->pad : special->eos);
		labels[row] = K3_LABEL_IGNORED;
		doc_ids[row] = 0;
	}
	return K3_OK;
}

void
k3_data_get_pos(const struct k3_data *d, struct k3_data_pos *pos)
{
	*pos = d->pos;
}

static int
offset_check(const struct k3_data *d, const struct doc *doc, const struct k3_data_pos *pos)
{
	bool inside = pos->offset < doc->length;

	if (inside && !k3i_item_cuts(d, doc_file_token(doc, pos->offset)))
		return K3_OK;
	k3_error("common",
		 "data position: offset %" PRIu64 " in document %" PRIu64 " of epoch %" PRIu64
		 ", which has %" PRIu64 " tokens%s",
		 pos->offset, pos->doc, pos->epoch, doc->length,
		 inside ? "; an image or video would be cut there" : "");
	return K3_EINVAL;
}

int
k3_data_set_pos(struct k3_data *d, const struct k3_data_pos *pos)
{
	bool past = d->once && pos->epoch > 0;

	if (pos->doc >= d->file.n_docs ||
	    (past && (pos->epoch > 1 || pos->doc > 0 || pos->offset > 0))) {
		k3_error("common",
			 "data position: document %" PRIu64 " of epoch %" PRIu64
			 ", allowed are %" PRIu64 " documents%s",
			 pos->doc, pos->epoch, d->file.n_docs, d->once ? " of one epoch" : "");
		return K3_EINVAL;
	}
	if (!past && pos->epoch != d->order_epoch)
		order_make(d, pos->epoch);
	struct doc doc = doc_at(d, pos->doc);
	if (offset_check(d, &doc, pos) != K3_OK) {
		if (d->pos.epoch != d->order_epoch && !at_end(d))
			order_make(d, d->pos.epoch);
		return K3_EINVAL;
	}
	d->pos = *pos;
	return K3_OK;
}

uint64_t
k3_data_total_tokens(const struct k3_data *d)
{
	uint64_t extra = d->file.ids.bos != K3_K3T_NO_ID ? 2 : 1;

	return d->file.n_tokens + extra * d->file.n_docs;
}

uint64_t
k3_data_consumed_tokens(const struct k3_data *d)
{
	uint64_t n = d->pos.epoch * k3_data_total_tokens(d) + d->pos.offset;

	for (uint64_t place = 0; place < d->pos.doc; place++)
		n += doc_at(d, place).length;
	return n;
}

int
k3_data_require(const struct k3_data *d, const char *path, uint64_t tokens)
{
	if (tokens <= k3_data_total_tokens(d))
		return K3_OK;
	k3_error("common",
		 "%s: %" PRIu64 " tokens are needed, the data set has %" PRIu64 " (--tokens)", path,
		 tokens, k3_data_total_tokens(d));
	return K3_ELIMIT;
}
