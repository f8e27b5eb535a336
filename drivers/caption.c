/* Captions: the model goes on after the last image of a document, the likeliest token each time. It
 * sees nothing of the text that stands there, so an equal caption was remembered or recognised. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "eval.h"

struct caption {
	struct k3_session *session;
	const struct k3_k3t *file;
	struct k3i_eval_text text;
	struct k3_grid *grid;
	uint32_t *row;
	const uint8_t **bytes;
	float *logits;
};

/* Images and tokens of a document up to the end of its last image; *n tokens with bos. */
static int
read_document(struct caption *c, uint64_t doc, size_t n_items, uint64_t item0, size_t most,
	      size_t *n)
{
	const struct k3_k3t *f = c->file;
	const struct k3_config *config = &c->session->model->config;
	uint64_t first = f->offsets[doc], bos = f->ids.bos != K3_K3T_NO_ID,
		 tokens = bos + f->offsets[doc + 1] - first + 1;
	size_t at = 0;
	int ret;

	if (tokens > most) {
		k3_error("drivers",
			 "document %llu has %llu tokens, bos and eos included: %zu are possible "
			 "(--tokens)",
			 (unsigned long long)doc, (unsigned long long)tokens, most);
		return K3_ELIMIT;
	}
	K3_TRY(k3i_eval_text_init(&c->text, config, (size_t)tokens));
	c->grid = calloc(n_items, sizeof(*c->grid));
	c->row = calloc(n_items, sizeof(*c->row));
	c->bytes = calloc(n_items, sizeof(*c->bytes));
	K3_TRY(c->grid && c->row && c->bytes ? K3_OK : K3_ENOMEM);
	if (bos)
		c->text.rows[at++] = (int32_t)f->ids.bos;
	for (size_t i = 0; i < n_items; i++) {
		const struct k3_k3t_item *item = &f->items[item0 + i];
		c->grid[i] = item->grid;
		c->row[i] = (uint32_t)(at + item->first_token - first);
		c->bytes[i] = k3_k3t_item_data(f, item0 + i);
		*n = c->row[i] + k3_k3t_item_tokens(&f->patches, &item->grid);
	}
	for (uint64_t i = 0; at < *n; i++)
		c->text.rows[at++] = (int32_t)k3_k3t_token(f, first + i);
	c->text.n_items = n_items;
	c->text.grid = c->grid;
	c->text.item_row = c->row;
	c->text.item_bytes = c->bytes;
out:
	return ret;
}

static void
forget_document(struct caption *c)
{
	free(c->text.rows);
	free(c->grid);
	free(c->row);
	free(c->bytes);
	c->text.rows = NULL;
	c->grid = NULL;
	c->row = NULL;
	c->bytes = NULL;
}

/* Printable ASCII as it is, anything else by its number. */
static void
print_token(FILE *out, uint32_t id)
{
	if (id >= 32 && id < 127 && id != '\\')
		fputc((int)id, out);
	else
		fprintf(out, "\\%u;", id);
}

/* Goes on until eos, or until the text's rows, a few more than the document's tokens, are full. */
static int
write_caption(struct caption *c, uint64_t doc, size_t n, FILE *out)
{
	const struct k3_k3t *f = c->file;
	size_t vocab = c->session->model->config.vocab, begin = n, bos = f->ids.bos != K3_K3T_NO_ID;
	uint64_t first = f->offsets[doc];
	size_t want = (size_t)(f->offsets[doc + 1] - first) - (n - bos);
	bool equal = true;
	int ret = K3_OK;

	for (size_t i = 0; i < want; i++)
		print_token(out, k3_k3t_token(f, first + begin - bos + i));
	fputc('\t', out);
	for (; n < c->text.cap; n++) {
		uint32_t best = 0;
		K3_TRY(k3i_eval_logits(c->session, &c->text, n, c->logits));
		for (uint32_t i = 1; i < vocab; i++)
			if (c->logits[i] > c->logits[best])
				best = i;
		if (best == f->ids.eos)
			break;
		size_t i = n - begin;
		equal = equal && i < want && k3_k3t_token(f, first + begin - bos + i) == best;
		print_token(out, best);
		c->text.rows[n] = (int32_t)best;
	}
	fprintf(out, "\t%s\n", equal && n - begin == want ? "yes" : "no");
out:
	return ret;
}

int
k3_eval_captions(struct k3_session *session, const char *data_path, size_t most, size_t tokens,
		 FILE *out)
{
	struct k3_k3t file = {0};
	struct caption c = {.session = session, .file = &file};
	int ret;

	K3_TRY(k3_k3t_open(&file, data_path));
	K3_TRY(k3_session_check_file(&session->model->config, &file, data_path));
	if (file.n_items == 0) {
		k3_error("drivers", "%s has no images", data_path);
		K3_TRY(K3_EINVAL);
	}
	c.logits = malloc(session->model->config.vocab * sizeof(*c.logits));
	K3_TRY(c.logits ? K3_OK : K3_ENOMEM);
	fputs("document\timages\tstored\twritten\tequal\n", out);
	for (uint64_t doc = 0; doc < file.n_docs && most > 0; doc++) {
		uint64_t item0 = k3_k3t_item_find(&file, file.offsets[doc]),
			 end = k3_k3t_item_find(&file, file.offsets[doc + 1]);
		size_t n;
		if (item0 == end)
			continue;
		most--;
		K3_TRY(read_document(&c, doc, (size_t)(end - item0), item0, tokens, &n));
		fprintf(out, "%llu\t%zu\t", (unsigned long long)doc, (size_t)(end - item0));
		K3_TRY(write_caption(&c, doc, n, out));
		forget_document(&c);
	}
out:
	forget_document(&c);
	free(c.logits);
	k3_k3t_close(&file);
	return ret;
}
