/* Writes documents of key-value pairs, filler and questions.
 *
 * The trap: the loss of eos counts when that of the last text byte does (data.h), and eos is no
 * answer; so a document ends with a newline that does not count.
 */
#include "k3t_recall.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "rng.h"
#include "status.h"

enum { N_LETTERS = 26, SEPARATORS = 2, MIN_BYTE_VOCAB = 260, MAX_FILLER = 1 << 24 };

static const char digits[K3_RECALL_VALUES + 1] = "0123456789ABCDEF";

/* Random numbers of one document, drawn one after the other. */
struct draws {
	uint64_t key, n;
};

struct document {
	const struct k3_recall_options *options;
	uint64_t filler_bytes;
	struct draws draws;
	char *keys, *values; /* [pairs][key_bytes], [pairs][value_bytes] */
	uint64_t *order;     /* [pairs] of the questions */
	uint32_t *tokens;    /* the text */
	bool *counts;
	size_t n; /* tokens so far */
};

void
k3_recall_options_init(struct k3_recall_options *options)
{
	*options = (struct k3_recall_options){.pairs = 16,
					      .key_bytes = 1,
					      .value_bytes = 1,
					      .filler_bytes = 512,
					      .multiple = 1024,
					      .vocab = MIN_BYTE_VOCAB};
}

static uint32_t
draw(struct draws *d, uint32_t below)
{
	return (uint32_t)(k3_rng_uniform(d->key, d->n++) * below);
}

static void
put(struct document *doc, const char *text, size_t n, bool counts)
{
	for (size_t i = 0; i < n; i++) {
		doc->tokens[doc->n] = (unsigned char)text[i];
		doc->counts[doc->n++] = counts;
	}
}

static bool
key_is_new(const struct document *doc, uint32_t i)
{
	size_t n = doc->options->key_bytes;

	for (uint32_t j = 0; j < i; j++)
		if (memcmp(doc->keys + j * n, doc->keys + i * n, n) == 0)
			return false;
	return true;
}

static void
pairs_draw(struct document *doc)
{
	const struct k3_recall_options *o = doc->options;

	for (uint32_t i = 0; i < o->pairs; i++) {
		do
			for (uint32_t k = 0; k < o->key_bytes; k++)
				doc->keys[i * o->key_bytes + k] =
					(char)('a' + draw(&doc->draws, N_LETTERS));
		while (!key_is_new(doc, i));
		for (uint32_t v = 0; v < o->value_bytes; v++)
			doc->values[i * o->value_bytes + v] =
				digits[draw(&doc->draws, K3_RECALL_VALUES)];
	}
}

static void
pair_put(struct document *doc, uint64_t i, bool counts)
{
	const struct k3_recall_options *o = doc->options;

	put(doc, doc->keys + i * o->key_bytes, o->key_bytes, false);
	put(doc, ":", 1, false);
	put(doc, doc->values + i * o->value_bytes, o->value_bytes, counts);
	put(doc, " ", 1, false);
}

static void
document_make(struct document *doc, uint64_t key)
{
	const struct k3_recall_options *o = doc->options;

	doc->draws = (struct draws){.key = key};
	doc->n = 0;
	pairs_draw(doc);
	for (uint32_t i = 0; i < o->pairs; i++)
		pair_put(doc, i, false);
	put(doc, "\n", 1, false);
	for (uint64_t i = 0; i < doc->filler_bytes; i++) {
		uint32_t letter = draw(&doc->draws, N_LETTERS + 1);
		char byte = letter < N_LETTERS ? (char)('a' + letter) : ' ';
		put(doc, &byte, 1, false);
	}
	put(doc, "\n", 1, false);
	k3_rng_permutation(k3_rng_bits(key, UINT64_MAX), doc->order, o->pairs);
	for (uint32_t i = 0; i < o->pairs; i++)
		pair_put(doc, doc->order[i], true);
	put(doc, "\n", 1, false);
}

static int
number_check(const char *out, const char *what, uint64_t value, uint64_t lo, uint64_t hi,
	     const char *option)
{
	if (value >= lo && value <= hi)
		return K3_OK;
	k3_error("common", "%s: %s %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64 " (%s)", out,
		 what, value, lo, hi, option);
	return K3_EINVAL;
}

static int
options_check(const char *out, const struct k3_recall_options *o)
{
	uint64_t keys = 1;
	size_t n = strlen(out);
	int ret = K3_EINVAL;

	if (n < 5 || strcmp(out + n - 4, ".k3t") != 0 || out[n - 5] == '/') {
		k3_error("common", "output %s: the name must end in .k3t", out);
		goto out;
	}
	K3_TRY(number_check(out, "documents", o->documents, 1, UINT32_MAX, "--documents"));
	K3_TRY(number_check(out, "bytes of a key", o->key_bytes, 1, K3_RECALL_MAX_WORD_BYTES,
			    "--key-bytes"));
	K3_TRY(number_check(out, "bytes of a value", o->value_bytes, 1, K3_RECALL_MAX_WORD_BYTES,
			    "--value-bytes"));
	for (uint32_t k = 0; k < o->key_bytes; k++)
		keys *= N_LETTERS;
	/* each has a key of its own */
	K3_TRY(number_check(out, "pairs", o->pairs, 1,
			    keys < K3_RECALL_MAX_PAIRS ? keys : K3_RECALL_MAX_PAIRS,
			    "--pairs, --key-bytes"));
	K3_TRY(number_check(out, "bytes of filler", o->filler_bytes, 0, MAX_FILLER, "--filler"));
	K3_TRY(number_check(out, "multiple", o->multiple, 1, MAX_FILLER, "--multiple"));
	K3_TRY(number_check(out, "vocabulary", o->vocab, MIN_BYTE_VOCAB, INT32_MAX, "--vocab"));
out:
	return ret;
}

static void
shape_set(struct k3_recall_shape *shape, const struct k3_recall_options *o)
{
	uint64_t lists = 2 * (uint64_t)o->pairs * (o->key_bytes + o->value_bytes + SEPARATORS);
	uint64_t bare = lists + 3 + 2 + o->filler_bytes; /* newlines; bos and eos */

	shape->document_tokens = (bare + o->multiple - 1) / o->multiple * o->multiple;
	shape->filler_bytes = o->filler_bytes + shape->document_tokens - bare;
	shape->text_bytes = shape->document_tokens - 2;
	shape->labels = o->documents * o->pairs * o->value_bytes;
}

int
k3_k3t_recall(const char *out, const struct k3_recall_options *options,
	      struct k3_recall_shape *shape)
{
	const uint32_t vocab = options->vocab;
	const struct k3_k3t_ids ids = {vocab, vocab - 4, vocab - 3, vocab - 2, vocab - 1};
	const uint64_t key = k3_rng_key("data.recall", options->seed);
	struct document doc = {.options = options};
	struct k3_k3t_writer *w = NULL;
	int ret;

	K3_TRY(options_check(out, options));
	shape_set(shape, options);
	doc.filler_bytes = shape->filler_bytes;
	doc.keys = malloc((size_t)options->pairs * options->key_bytes);
	doc.values = malloc((size_t)options->pairs * options->value_bytes);
	doc.order = malloc(options->pairs * sizeof(*doc.order));
	doc.tokens = malloc(shape->text_bytes * sizeof(*doc.tokens));
	doc.counts = malloc(shape->text_bytes * sizeof(*doc.counts));
	ret = doc.keys && doc.values && doc.order && doc.tokens && doc.counts ? K3_OK : K3_ENOMEM;
	K3_TRY(ret);
	K3_TRY(k3_k3t_writer_create(&w, out, &ids));
	for (uint64_t i = 0; i < options->documents; i++) {
		document_make(&doc, k3_rng_bits(key, i));
		K3_TRY(k3_k3t_writer_put(w, doc.tokens, doc.counts, doc.n));
		K3_TRY(k3_k3t_writer_end_doc(w, NULL));
	}
	K3_TRY(k3_k3t_writer_finish(w));
	K3_TRY(k3_k3t_writer_publish(w));
out:
	k3_k3t_writer_destroy(w);
	free(doc.keys);
	free(doc.values);
	free(doc.order);
	free(doc.tokens);
	free(doc.counts);
	return ret;
}
