/* Witten-Bell n-grams over bytes.
 *
 * One hash table holds every string of up to n bytes with three counts: as a gram, as a context,
 * and the distinct bytes that followed it.  The trap: the last n-1 bytes of a document are grams
 * but never contexts, so c(h) is not the gram count of h.
 */
#include "ngram.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "log.h"
#include "rng.h"
#include "status.h"

struct entry {
	uint64_t key;  /* 0: free */
	uint64_t gram, context, types;
};

struct table {
	struct entry *entries;
	size_t room, used; /* room is a power of two */
};

/* The n bytes before position end as a number; the leading 1 keeps lengths apart. */
static uint64_t
string_key(const struct k3_k3t *f, uint64_t end, int n)
{
	uint64_t key = 1;

	for (uint64_t i = end - (uint64_t)n; i < end; i++)
		key = key << 8 | k3_k3t_token(f, i);
	return key;
}

/* The entry of key, or the free one where it belongs. */
static struct entry *
entry_find(const struct table *t, uint64_t key)
{
	size_t at = (size_t)k3_rng_bits(key, 0) & (t->room - 1);

	while (t->entries[at].key != 0 && t->entries[at].key != key)
		at = (at + 1) & (t->room - 1);
	return &t->entries[at];
}

static int
table_grow(struct table *t)
{
	struct table grown = { .room = t->room ? 2 * t->room : 1 << 12, .used = t->used };

	grown.entries = calloc(grown.room, sizeof(*grown.entries));
	if (!grown.entries)
		return K3_ENOMEM;
	for (size_t i = 0; i < t->room; i++)
		if (t->entries[i].key)
			*entry_find(&grown, t->entries[i].key) = t->entries[i];
	free(t->entries);
	*t = grown;
	return K3_OK;
}

/* Counts the byte at position i after the n-1 bytes before it. */
static int
gram_count(struct table *t, const struct k3_k3t *f, uint64_t i, int n)
{
	uint64_t context_key = string_key(f, i, n - 1), gram_key = string_key(f, i + 1, n);

	if (2 * (t->used + 2) > t->room && table_grow(t) != K3_OK)
		return K3_ENOMEM;
	struct entry *context = entry_find(t, context_key);
	t->used += context->key == 0;
	context->key = context_key;
	struct entry *gram = entry_find(t, gram_key);
	t->used += gram->key == 0;
	gram->key = gram_key;
	context->context++;
	context->types += gram->gram == 0;
	gram->gram++;
	return K3_OK;
}

static int
table_fill(struct table *t, const struct k3_k3t *f, int order)
{
	int ret = table_grow(t);

	for (uint64_t doc = 0; doc < f->n_docs; doc++)
		for (uint64_t i = f->offsets[doc]; i < f->offsets[doc + 1]; i++)
			for (int n = 1; n <= order && (uint64_t)n <= i - f->offsets[doc] + 1; n++)
				if (ret == K3_OK)
					ret = gram_count(t, f, i, n);
	return ret;
}

/* Probability of the byte at position i, which has `before` bytes of its document before it. */
static double
probability(const struct table *t, const struct k3_k3t *f, uint64_t i, uint64_t before, int order)
{
	double p = 1.0 / 256.0;

	for (int n = 1; n <= order && (uint64_t)n <= before + 1; n++) {
		const struct entry *context = entry_find(t, string_key(f, i, n - 1));
		if (context->context == 0)
			break;
		const struct entry *gram = entry_find(t, string_key(f, i + 1, n));
		p = ((double)gram->gram + (double)context->types * p)
		    / (double)(context->context + context->types);
	}
	return p;
}

static int
bytes_check(const struct k3_k3t *f, const char *what)
{
	for (uint64_t i = 0; i < f->n_tokens; i++)
		if (k3_k3t_token(f, i) > 255) {
			k3_error("common", "n-gram: token %" PRIu64 " of the %s is %" PRIu32
			         ", allowed are bytes, 0 to 255", i, what, k3_k3t_token(f, i));
			return K3_EINVAL;
		}
	return K3_OK;
}

int
k3_ngram_loss(const struct k3_k3t *train, const struct k3_k3t *eval, int order, double *loss_nats)
{
	struct table t = { 0 };
	double sum = 0;
	int ret;

	if (order < 1 || order > K3_NGRAM_MAX_ORDER) {
		k3_error("common", "n-gram: order %d, allowed are 1 to %d", order,
		         K3_NGRAM_MAX_ORDER);
		return K3_EINVAL;
	}
	K3_TRY(bytes_check(train, "training data"));
	K3_TRY(bytes_check(eval, "evaluation data"));
	K3_TRY(table_fill(&t, train, order));
	for (uint64_t doc = 0; doc < eval->n_docs; doc++)
		for (uint64_t i = eval->offsets[doc]; i < eval->offsets[doc + 1]; i++)
			sum -= log(probability(&t, eval, i, i - eval->offsets[doc], order));
	*loss_nats = sum / (double)eval->n_tokens;
out:
	if (ret == K3_ENOMEM)
		k3_error("common", "n-gram: out of memory after %zu strings", t.used);
	free(t.entries);
	return ret;
}
