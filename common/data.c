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
	uint64_t target = i + 1 - doc->head;
	if (target == doc->text)
		target--;
	return k3_k3t_counts(doc->file, doc->first + target) ? doc_token(doc, i + 1)
							     : K3_LABEL_IGNORED;
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

int
k3_data_next(struct k3_data *d, size_t t, int32_t *ids, int32_t *labels, int32_t *doc_ids,
	     size_t *n_valid)
{
	const struct k3_k3t_ids *special = &d->file.ids;
	size_t row = 0;

	if (t < 1 || t > INT32_MAX) {
		k3_error("common", "tokens of a microbatch: %zu, allowed are 1 to %d", t,
			 INT32_MAX);
		return K3_EINVAL;
	}
	for (int32_t id = 1; row < t && !at_end(d); id++) {
		struct doc doc = doc_at(d, d->pos.doc);
		uint64_t from = d->pos.offset, left = doc.length - from;
		size_t n = left < t - row ? (size_t)left : t - row;
		for (size_t i = 0; ids && i < n; i++) {
			ids[row + i] = doc_token(&doc, from + i);
			labels[row + i] = doc_label(&doc, from + i);
			doc_ids[row + i] = id;
		}
		row += n;
		pos_advance(d, n, doc.length);
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
	if (pos->offset >= doc.length) {
		k3_error("common",
			 "data position: offset %" PRIu64 " in document %" PRIu64
			 " of epoch %" PRIu64 ", which has %" PRIu64 " tokens",
			 pos->offset, pos->doc, pos->epoch, doc.length);
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
	k3_error("common", "%s: %" PRIu64 " tokens are needed, the data set has %" PRIu64, path,
		 tokens, k3_data_total_tokens(d));
	return K3_ELIMIT;
}
