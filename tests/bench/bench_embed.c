/* k3_bench op embed: rows of a table, and sums into its rows. */
#include <string.h>

#include "bench.h"

static int32_t *
random_ids(struct bench_case *c, size_t t, size_t vocab)
{
	float *x = bench_random(c, t, 0, 1);
	int32_t *ids = bench_memory(c, t * sizeof(*ids));

	for (size_t i = 0; i < t; i++)
		ids[i] = (int32_t)(x[i] * (float)vocab);
	for (size_t i = 0; i < t; i++)
		ids[i] = ids[i] < (int32_t)vocab ? ids[i] : (int32_t)vocab - 1;
	return ids;
}

static void
forward(struct bench *b)
{
	size_t t = b->tokens, d = b->model->width, vocab = b->model->vocab;
	struct k3_embed_args a = {.t = t, .d = d};
	struct bench_case c;
	float *table;

	if (!bench_open(&c, b, "embed_fwd", BENCH_MEMORY, 0, "t=%zu d=%zu vocab=%zu", t, d, vocab))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EMBED_FWD);
	float *y = bench_out(call, "y", t * d);
	int32_t *ids = bench_push(call, random_ids(&c, t, vocab));
	a.table = bench_weight(call, vocab, d, &table);
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, t * d, t * d, 0);
	bench_unmoved(call, vocab > t ? (vocab - t) * d : 0);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, t * d);
		for (size_t i = 0; i < t * d; i++)
			want[i] = (double)table[(size_t)ids[i / d] * d + i % d];
		bench_expect(&c, "y", y, d, want, t, d, 0);
	}
	bench_close(&c);
}

/* Writes the whole gradient: zeros for absent ids, then the tokens' rows. Or adds, to those rows alone. */
static void
backward(struct bench *b, bool adds)
{
	size_t t = b->tokens, d = b->model->width, vocab = b->model->vocab;
	struct k3_embed_args a = {.t = t, .d = d};
	struct bench_case c;
	float *dtable, *before = NULL;

	if (!bench_open(&c, b, adds ? "embed_bwd_adds" : "embed_bwd", BENCH_MEMORY, 0,
			"t=%zu d=%zu vocab=%zu", t, d, vocab))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_EMBED_BWD);
	float *dy = bench_in(call, t * d);
	int32_t *ids = bench_push(call, random_ids(&c, t, vocab));
	if (adds) {
		dtable = bench_inout(call, "dtable", vocab * d, &before);
		bench_keep(&c, dtable);
		a.table = bench_last(call, vocab, d);
		a.table.accumulate = 1;
		/* of floats whatever the type, read and written */
		bench_unmoved(call, (vocab > t ? vocab - t : 0) * d * (b->bf16 ? 4 : 2));
	} else {
		a.table = bench_gradient(call, "dtable", vocab, d, &dtable);
	}
	bench_args(call, &a, sizeof(a));
	bench_traffic(call, t * d, adds ? 0 : vocab * d, t * d);
	if (bench_run(&c)) {
		double *want = bench_doubles(&c, vocab * d);
		for (size_t i = 0; before && i < vocab * d; i++)
			want[i] = (double)before[i];
		for (size_t i = 0; i < t * d; i++)
			want[(size_t)ids[i / d] * d + i % d] += (double)dy[i];
		bench_expect(&c, "dtable", dtable, d, want, vocab, d, 16);
	}
	bench_close(&c);
}

void
bench_embed(struct bench *b)
{
	forward(b);
	backward(b, false);
	backward(b, true);
}
