/* Document-causal attention of one query tile against key tiles (model.md 4), compiled once per
 * vector width.
 *
 * Blocks of queries meet blocks of keys that stay in the second-level cache; inside, slices of 16
 * queries meet the run of keys that they can see, so the empty half of the diagonal and other
 * documents cost next to nothing.  Forward: one running softmax per key tile, merged with what
 * earlier ranges gave by (normalised output, log-sum-exp).  The traps: a query without any key
 * (padding, or only keys of other documents) must not divide by zero; rows without a document are
 * packed as zeros where a sum runs over them.
 */
#include "mla_attn.h"
#include "../linalg/softmax_body.h"

enum {
	QUERIES = K3_MLA_QUERY_BLOCK,
	SLICES = QUERIES / SLICE,
	FWD_KEYS = K3_MLA_FWD_KEY_BLOCK,
	BWD_KEYS = K3_MLA_BWD_KEY_BLOCK
};

/* Rows of a tile or of a block of it. */
struct rows {
	const int32_t *doc;
	size_t n, row0; /* row0: global */
};

/* Keys from .. to-1 of a tile. */
struct span {
	size_t from, to;
};

static size_t
higher(size_t x, size_t y)
{
	return x > y ? x : y;
}

static struct rows
rows_of(const int32_t *layout)
{
	return (struct rows){k3_tile_doc(layout), (size_t)layout[K3_TL_ROWS],
			     (size_t)layout[K3_TL_ROW0]};
}

/* Rows from .. from + n - 1, fewer at the end. */
static struct rows
part(const struct rows *rows, size_t from, size_t n)
{
	return (struct rows){rows->doc + from, lower(n, rows->n - from), rows->row0 + from};
}

/* The key rows that a slice of queries can see, a run, since documents are; holes inside are
 * masked. Ids ascend, so the run of a later slice begins and ends no earlier: *at is where this
 * one's began.
 */
static struct span
key_span(const struct rows *keys, const struct rows *slice, size_t *at)
{
	int32_t lo = 0, hi = 0;
	size_t end = slice->row0 + slice->n > keys->row0 ? slice->row0 + slice->n - keys->row0 : 0;

	for (size_t i = 0; i < slice->n; i++) {
		lo = lo ? lo : slice->doc[i];
		hi = slice->doc[i] ? slice->doc[i] : hi;
	}
	if (!lo)
		return (struct span){0, 0};
	end = lower(end, keys->n);
	while (*at < keys->n && keys->doc[*at] < lo)
		++*at;
	while (end > *at && keys->doc[end - 1] > hi)
		end--;
	return end > *at ? (struct span){*at, end} : (struct span){0, 0};
}

/* The spans of the slices of a query block; returns what covers them all. */
static struct span
key_spans(const struct rows *keys, const struct rows *block, struct span *span, size_t *at)
{
	struct span all = {keys->n, 0};

	for (size_t s = 0; s * SLICE < block->n; s++) {
		struct rows slice = part(block, s * SLICE, SLICE);

		span[s] = key_span(keys, &slice, at);
		if (span[s].to == 0)
			continue;
		all.from = lower(all.from, span[s].from);
		all.to = higher(all.to, span[s].to);
	}
	return all;
}

/* The part of a span in the key block from .. from + n - 1 (from a multiple of 32), begun at a
 * whole panel. */
static struct span
in_block(struct span span, size_t from, size_t n)
{
	struct span cut = {higher(span.from / PANEL * PANEL, from), lower(span.to, from + n)};

	return cut.from < cut.to ? cut : (struct span){from, from};
}

/* Does every query of the slice see every key of the span, without padding up to whole registers?
 */
static int
all_seen(const struct rows *keys, struct span span, const struct rows *slice)
{
	int32_t doc = slice->doc[0], other = 0;

	for (size_t i = 0; i < slice->n; i++)
		other |= slice->doc[i] ^ doc;
	for (size_t j = span.from; j < span.to; j++)
		other |= keys->doc[j] ^ doc;
	return doc && !other && (span.to - span.from) % 16 == 0 &&
	       keys->row0 + span.to - 1 <= slice->row0;
}

/* Document ids with zeros up to whole panels. */
static const int32_t *
padded_docs(float *work, const struct rows *keys, size_t from, size_t n)
{
	int32_t *doc = (int32_t *)(void *)work;
	size_t there = lower(n, keys->n - from);

	memcpy(doc, keys->doc + from, there * sizeof(*doc));
	memset(doc + there, 0, (panel_pad(n) - there) * sizeof(*doc));
	return doc;
}

/* Panels of the transpose of x [n, k], zeros behind column n up to whole slices of scores. */
static void
scored_columns(float *b, size_t ldb, const float *x, size_t ld, size_t n, size_t k)
{
	panel_columns(b, ldb, x, ld, n, k);
	for (size_t j = (n + 7) / 8 * 8; j % 16; j += 8)
		for (size_t p = 0; p < k; p++)
			memset(b + j / PANEL * ldb * PANEL + p * PANEL + j % PANEL, 0,
			       8 * sizeof(*b));
}

/* Key rows of one head: nope part and the shared part side by side. */
static void
gather_keys(float *out, const float *kv, size_t rows, size_t head_col, size_t nope, size_t rope,
	    size_t ld)
{
	for (size_t j = 0; j < rows; j++) {
		memcpy(out + j * (nope + rope), kv + j * ld + head_col, nope * sizeof(float));
		memcpy(out + j * (nope + rope) + nope, kv + (j + 1) * ld - rope,
		       rope * sizeof(float));
	}
}

#include "mla_attn_bwd_body.h"
#include "mla_attn_fwd_body.h"
