/* Recall documents, read back by a parser of their own: what is asked was said, what counts is the
 * answer, and whoever knows nothing is right by chance. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/data.h"
#include "../common/k3t_recall.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name) Test(recall, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

static struct k3_recall_options
options_of(uint64_t documents, uint64_t seed)
{
	struct k3_recall_options o;

	k3_recall_options_init(&o);
	o.documents = documents;
	o.seed = seed;
	return o;
}

static struct k3_recall_shape
make(const char *name, const struct k3_recall_options *o)
{
	struct k3_recall_shape shape;

	cr_assert_eq(k3_k3t_recall(scratch_path(name), o, &shape), K3_OK, "%s", scratch_log());
	return shape;
}

/* Text of document i and, at the same places, '*' where the loss counts; malloc'ed. */
static char *
text_of(const struct k3_k3t *f, uint64_t i, char **stars)
{
	size_t n = (size_t)(f->offsets[i + 1] - f->offsets[i]);
	char *text = calloc(n + 1, 1);

	*stars = calloc(n + 1, 1);
	for (size_t k = 0; k < n; k++) {
		text[k] = (char)k3_k3t_token(f, f->offsets[i] + k);
		(*stars)[k] = k3_k3t_counts(f, f->offsets[i] + k) ? '*' : '.';
	}
	return text;
}

/* Where "KEY:" stands in a list that ends at a newline; NULL: nowhere. */
static const char *
find_key(const char *list, const char *key, size_t key_bytes)
{
	for (; *list != '\n'; list += strcspn(list, " \n") + 1)
		if (strncmp(list, key, key_bytes + 1) == 0)
			return list;
	return NULL;
}

/* Every question of a document has its pair, once each, and the loss counts on its value alone. */
static void
expect_document(const char *text, const char *stars, const struct k3_recall_options *o)
{
	size_t one = o->key_bytes + o->value_bytes + 2, list = o->pairs * one;
	const char *filler = text + list + 1, *asked = strchr(filler, '\n') + 1;
	size_t asked_at = (size_t)(asked - text);

	cr_assert_eq(strcspn(text, "\n"), list);
	cr_assert_geq(strcspn(filler, "\n"), o->filler_bytes);
	cr_assert_eq(strspn(filler, "abcdefghijklmnopqrstuvwxyz "), strcspn(filler, "\n"));
	cr_assert_eq(strlen(asked), list + 1);
	cr_assert_eq(asked[list], '\n');
	for (size_t i = 0; i < o->pairs; i++) {
		const char *pair = text + i * one, *question = asked + i * one;
		cr_assert_eq(strspn(pair, "abcdefghijklmnopqrstuvwxyz"), o->key_bytes);
		cr_assert_eq(strspn(pair + o->key_bytes + 1, "0123456789ABCDEF"), o->value_bytes);
		cr_assert_eq(find_key(text, pair, o->key_bytes), pair, "a key twice in: %s", text);
		cr_assert_eq(find_key(asked, question, o->key_bytes), question,
			     "a question twice in: %s", asked);
		const char *said = find_key(text, question, o->key_bytes);
		cr_assert(said && strncmp(said, question, one) == 0, "%.*s was not said in: %s",
			  (int)one, question, text);
	}
	for (size_t k = 0; k < asked_at + list + 1; k++) {
		size_t in = k < asked_at ? 0 : (k - asked_at) % one;
		bool answer = k >= asked_at && k < asked_at + list && in > o->key_bytes &&
			      in <= o->key_bytes + o->value_bytes;
		cr_assert_eq(stars[k], answer ? '*' : '.', "byte %zu", k);
	}
}

static void
expect_documents(const struct k3_recall_options *o)
{
	struct k3_recall_shape shape = make("x.k3t", o);
	struct k3_k3t f;

	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert_eq(f.n_docs, o->documents);
	cr_assert_eq(f.ids.vocab, o->vocab);
	cr_assert_eq(shape.labels, o->documents * o->pairs * o->value_bytes);
	for (uint64_t i = 0; i < f.n_docs; i++) {
		char *stars, *text = text_of(&f, i, &stars);
		cr_assert_eq(f.offsets[i + 1] - f.offsets[i], shape.text_bytes);
		cr_assert_eq(strlen(text), shape.text_bytes);
		expect_document(text, stars, o);
		free(text);
		free(stars);
	}
	cr_assert_eq(shape.document_tokens, shape.text_bytes + 2);
	cr_assert_eq(shape.document_tokens % o->multiple, 0);
	k3_k3t_close(&f);
}

TEST(what_is_asked_was_said_and_answers_alone_count)
{
	struct k3_recall_options o = options_of(20, 3);

	expect_documents(&o);
}

TEST(other_sizes_keep_the_form)
{
	struct k3_recall_options o = options_of(7, 4);

	o.pairs = 26;
	o.key_bytes = 1;
	o.value_bytes = 3;
	o.filler_bytes = 0;
	o.multiple = 1;
	o.vocab = 300;
	expect_documents(&o);
	o.pairs = 1;
	o.key_bytes = 8;
	o.filler_bytes = 77;
	o.multiple = 128;
	expect_documents(&o);
}

TEST(a_document_of_the_default_sizes_crosses_eight_tiles_of_64_and_more)
{
	struct k3_recall_options o = options_of(1, 0);
	struct k3_recall_shape shape = make("x.k3t", &o);

	cr_assert_eq(o.pairs, 16);
	cr_assert_geq(o.filler_bytes, 512);
	cr_assert_geq(shape.document_tokens, 8 * 64);
	cr_assert_geq(shape.filler_bytes, 512);
}

/* Neither eos, which follows the last byte, nor anything before the questions is a label. */
TEST(the_stream_has_one_label_for_each_answer)
{
	struct k3_recall_options o = options_of(5, 1);
	struct k3_recall_shape shape = make("x.k3t", &o);
	size_t t = (size_t)shape.document_tokens, valid, labels = 0;
	int32_t *rows = malloc(3 * t * sizeof(*rows));
	struct k3_data d;

	cr_assert_eq(k3_data_open(&d, scratch_path("x.k3t"), 0, true), K3_OK);
	for (int doc = 0; doc < 5; doc++) {
		cr_assert_eq(k3_data_next(&d, t, rows, rows + t, rows + 2 * t, &valid, NULL),
			     K3_OK);
		cr_assert_eq(valid, t);
		cr_assert(rows[0] == 256 && rows[t - 1] == 257, "bos and eos are not at the ends");
		for (size_t i = 0; i < t; i++) {
			labels += rows[t + i] >= 0;
			if (rows[t + i] >= 0)
				cr_assert(rows[i] == ':' &&
					  strchr("0123456789ABCDEF", rows[t + i]));
		}
	}
	cr_assert_eq(k3_data_next(&d, t, rows, rows + t, rows + 2 * t, &valid, NULL), K3_OK);
	cr_assert_eq(valid, 0);
	cr_assert_eq(labels, shape.labels);
	k3_data_close(&d);
	free(rows);
}

TEST(options_and_seed_decide_every_byte)
{
	struct k3_recall_options o = options_of(4, 9), other = options_of(4, 10);
	size_t n, m;

	make("a.k3t", &o);
	make("b.k3t", &o);
	make("c.k3t", &other);
	unsigned char *a = scratch_read("a.k3t", &n), *b = scratch_read("b.k3t", &m);
	cr_assert(n == m && memcmp(a, b, n) == 0);
	free(b);
	b = scratch_read("c.k3t", &m);
	cr_assert(n == m && memcmp(a, b, n) != 0);
	free(a);
	free(b);
}

TEST(more_documents_leave_the_first_ones_alone)
{
	struct k3_recall_options few = options_of(3, 9), many = options_of(6, 9);
	struct k3_k3t f, m;

	make("f.k3t", &few);
	make("m.k3t", &many);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("f.k3t")), K3_OK);
	cr_assert_eq(k3_k3t_open(&m, scratch_path("m.k3t")), K3_OK);
	for (uint64_t i = 0; i < f.n_tokens; i++)
		cr_assert_eq(k3_k3t_token(&f, i), k3_k3t_token(&m, i), "token %zu", (size_t)i);
	cr_assert(m.offsets[4] - m.offsets[3] == f.offsets[1] && m.n_docs == 6);
	k3_k3t_close(&f);
	k3_k3t_close(&m);
}

/* Counts of n draws with chance p stay within five standard deviations. */
static void
expect_even(const char *what, const double *count, size_t kinds, double n)
{
	double p = 1.0 / (double)kinds, most = 5 * sqrt(n * p * (1 - p));

	for (size_t i = 0; i < kinds; i++)
		cr_assert(fabs(count[i] - n * p) < most, "%s %zu came %g times of %g, not %g", what,
			  i, count[i], n, n * p);
}

/* The chance that is printed: every value is as likely, whatever the place of the question. */
TEST(values_and_the_order_of_questions_are_even)
{
	enum { DOCUMENTS = 2000, PAIRS = 4 };
	struct k3_recall_options o = options_of(DOCUMENTS, 5);
	double value[K3_RECALL_VALUES] = {0}, first[PAIRS] = {0};
	struct k3_k3t f;

	o.pairs = PAIRS;
	o.key_bytes = 2;
	o.filler_bytes = 0;
	o.multiple = 1;
	make("x.k3t", &o);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	for (uint64_t i = 0; i < DOCUMENTS; i++) {
		char *stars, *text = text_of(&f, i, &stars);
		for (size_t k = 0; k < PAIRS; k++) {
			int c = text[5 * k + 3];
			value[c >= 'A' ? c - 'A' + 10 : c - '0']++;
			if (strncmp(text + 5 * k, text + 5 * PAIRS + 2, 2) == 0)
				first[k]++;
		}
		free(text);
		free(stars);
	}
	expect_even("value", value, K3_RECALL_VALUES, DOCUMENTS * PAIRS);
	expect_even("first question", first, PAIRS, DOCUMENTS);
	k3_k3t_close(&f);
}

TEST(sizes_out_of_range_are_refused_and_leave_no_file)
{
	static const struct {
		struct k3_recall_options o;
		const char *message;
	} cases[] = {
		{{0, 0, 16, 2, 1, 512, 1024, 260}, "documents 0, allowed are 1 to"},
		{{1, 0, 0, 2, 1, 512, 1024, 260}, "pairs 0, allowed are 1 to 676"},
		{{1, 0, 27, 1, 1, 512, 1024, 260}, "pairs 27, allowed are 1 to 26"},
		{{1, 0, 1025, 3, 1, 512, 1024, 260}, "pairs 1025, allowed are 1 to 1024"},
		{{1, 0, 16, 0, 1, 512, 1024, 260}, "bytes of a key 0, allowed are 1 to 8"},
		{{1, 0, 16, 9, 1, 512, 1024, 260}, "bytes of a key 9"},
		{{1, 0, 16, 2, 0, 512, 1024, 260}, "bytes of a value 0, allowed are 1 to 8"},
		{{1, 0, 16, 2, 1, UINT32_MAX, 1024, 260}, "bytes of filler 4294967295"},
		{{1, 0, 16, 2, 1, 512, 0, 260}, "multiple 0, allowed are 1 to"},
		{{1, 0, 16, 2, 1, 512, 1024, 259}, "vocabulary 259, allowed are 260 to"},
	};
	struct k3_recall_shape shape;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_assert_eq(k3_k3t_recall(scratch_path("x.k3t"), &cases[i].o, &shape), K3_EINVAL);
		const char *log = scratch_log();
		cr_assert_not_null(strstr(log, cases[i].message), "case %zu: %s", i, log);
		cr_assert_eq(scratch_files(), 0);
	}
	struct k3_recall_options o = options_of(1, 0);
	cr_assert_eq(k3_k3t_recall(scratch_path("x.bin"), &o, &shape), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "must end in .k3t"));
}
