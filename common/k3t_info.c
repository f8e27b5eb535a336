/* Information about data sets.  All is computed before the first line is printed, so that a fault
 * leaves no half table behind. */
#include "k3t_info.h"

#include <inttypes.h>

#include "k3t.h"
#include "log.h"
#include "ngram.h"
#include "status.h"

static void
id_print(FILE *out, uint32_t id)
{
	if (id == K3_K3T_NO_ID)
		fputs("\t-", out);
	else
		fprintf(out, "\t%" PRIu32, id);
}

/* Items, patches, and the grid of the first item that has most patches. */
static void
items_print(FILE *out, const struct k3_k3t *f)
{
	struct k3_grid biggest = {0};

	for (uint64_t i = 0; i < f->n_items; i++)
		if (k3_grid_patches(&f->items[i].grid) > k3_grid_patches(&biggest))
			biggest = f->items[i].grid;
	fprintf(out, "\t%" PRIu64 "\t%" PRIu64, f->n_items, f->n_patches);
	if (f->n_items)
		fprintf(out, "\t%" PRIu32 "x%" PRIu32 "x%" PRIu32, biggest.t, biggest.h, biggest.w);
	else
		fputs("\t-", out);
}

static void
file_print(FILE *out, const char *path, const struct k3_k3t *f)
{
	uint64_t n_ignored = 0;

	for (uint64_t i = 0; i < f->n_tokens; i++)
		n_ignored += !k3_k3t_counts(f, i);
	fprintf(out, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu32 "\t%" PRIu32, path,
		f->n_docs, f->n_tokens, n_ignored, f->token_bytes, f->ids.vocab);
	id_print(out, f->ids.bos);
	id_print(out, f->ids.eos);
	id_print(out, f->ids.placeholder);
	id_print(out, f->ids.pad);
	fprintf(out, "\t%016" PRIx64, f->checksum);
	items_print(out, f);
	fputc('\n', out);
}

int
k3_k3t_info_print(FILE *out, const char *const *paths, size_t n_paths)
{
	struct k3_k3t f = {0};
	int ret = K3_OK;

	for (size_t i = 0; i < n_paths; i++) {
		K3_TRY(k3_k3t_open(&f, paths[i]));
		K3_TRY(k3_k3t_verify(&f, paths[i]));
		k3_k3t_close(&f);
	}
	fputs("file\tdocuments\ttokens\tignored_tokens\ttoken_"
	      "bytes\tvocab\tbos\teos\tplaceholder\tpad"
	      "\tchecksum\titems\tpatches\tbiggest_grid\n",
	      out);
	for (size_t i = 0; i < n_paths; i++) {
		K3_TRY(k3_k3t_open(&f, paths[i]));
		file_print(out, paths[i], &f);
		k3_k3t_close(&f);
	}
out:
	k3_k3t_close(&f);
	return ret;
}

int
k3_ngram_print(FILE *out, const char *train_path, const char *eval_path, int order)
{
	struct k3_k3t train = {0}, eval = {0};
	double loss[K3_NGRAM_MAX_ORDER];
	int ret = K3_EINVAL;

	if (order < 1 || order > K3_NGRAM_MAX_ORDER) {
		k3_error("common", "n-gram: order %d, allowed are 1 to %d", order,
			 K3_NGRAM_MAX_ORDER);
		goto out;
	}
	K3_TRY(k3_k3t_open(&train, train_path));
	K3_TRY(k3_k3t_open(&eval, eval_path));
	for (int n = 1; n <= order; n++)
		K3_TRY(k3_ngram_loss(&train, &eval, n, &loss[n - 1]));
	fputs("order\tcontext_bytes\ttokens\tloss_nats\n", out);
	for (int n = 1; n <= order; n++)
		fprintf(out, "%d\t%d\t%" PRIu64 "\t%.9g\n", n, n - 1, eval.n_tokens, loss[n - 1]);
out:
	k3_k3t_close(&train);
	k3_k3t_close(&eval);
	return ret;
}
