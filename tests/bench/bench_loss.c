/* k3_bench op loss: LM head with cross entropy, as many rows as a task of the plan takes: those
 * whose logits fill 64 MiB, ten times that on a device. The vocabulary is one block. */
#include <math.h>

#include "bench.h"

struct head {
	size_t t, d, vocab;
	struct k3_lm_head_args a;
};

static bool
open_head(struct bench_case *c, struct bench *b, enum k3_op op, struct head *x)
{
	size_t bytes = (size_t)(b->device ? 640 : 64) << 20;
	size_t most = bytes / sizeof(float) / b->model->vocab;

	x->d = b->model->width;
	x->vocab = b->model->vocab;
	x->t = b->tokens < most ? b->tokens : most > 0 ? most : 1;
	x->a = (struct k3_lm_head_args){.t = x->t, .d = x->d, .rows = x->t, .grad = 1};
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM,
			  "rows=%zu d=%zu vocab=%zu", x->t, x->d, x->vocab);
}

/* Turns logits into their gradients; stat gets loss and hit of each row. */
static void
cross_entropy(double *logits, double *stat, const int32_t *labels, double inv_n,
	      const struct head *x)
{
	for (size_t i = 0; i < x->t; i++) {
		double *l = logits + i * x->vocab, most = l[0], sum = 0;
		size_t arg = 0, label = (size_t)labels[i];
		for (size_t j = 1; j < x->vocab; j++)
			if (l[j] > most) {
				most = l[j];
				arg = j;
			}
		for (size_t j = 0; j < x->vocab; j++)
			sum += exp(l[j] - most);
		stat[2 * i] = labels[i] < 0 ? 0 : log(sum) + most - l[label];
		stat[2 * i + 1] = labels[i] >= 0 && arg == label;
		for (size_t j = 0; j < x->vocab; j++)
			l[j] = labels[i] < 0 ? 0 : (exp(l[j] - most) / sum - (j == label)) * inv_n;
	}
}

static void
forward(struct bench *b)
{
	struct head x;
	struct bench_case c;
	float *w;

	if (!open_head(&c, b, K3_OP_LM_HEAD_CE, &x))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_LM_HEAD_CE);
	float *tstat = bench_out(call, "tstat", 2 * x.t), *h = bench_in(call, x.t * x.d);
	bench_keep(&c, tstat);
	int32_t *labels = bench_push(call, bench_memory(&c, x.t * sizeof(*labels)));
	double *hyper = bench_push(call, bench_doubles(&c, K3_HYPER_LEN));
	x.a.logits = (struct k3_list){call->n, 1};
	float *logits = bench_out(call, "dlogits", x.t * x.vocab);
	x.a.head = bench_weight(call, x.vocab, x.d, &w);
	bench_args(call, &x.a, sizeof(x.a));
	bench_product(call, BENCH_NT, x.t, x.vocab, x.d);
	/* every eighth row has no label; the size of logits is that of a trained model */
	for (size_t i = 0; i < x.t; i++)
		labels[i] = i % 8 == 7 ? -100 : (int32_t)(i * 2654435761u % x.vocab);
	for (size_t i = 0; i < x.t * x.d; i++)
		h[i] *= 4 / sqrtf((float)x.d);
	hyper[K3_HYPER_INV_N] = 1 / (double)x.t;
	if (bench_run(&c)) {
		double *want = bench_wide(&c, BENCH_NT, x.t, x.vocab, x.d, h, x.d, w, x.d);
		double *stat = bench_doubles(&c, 2 * x.t);
		cross_entropy(want, stat, labels, hyper[K3_HYPER_INV_N], &x);
		bench_expect(&c, "tstat", tstat, 2, stat, x.t, 2, x.d);
		bench_expect(&c, "dlogits", logits, x.vocab, want, x.t, x.vocab, x.d + x.vocab);
	}
	bench_close(&c);
}

static void
backward(struct bench *b, enum k3_op op)
{
	struct head x;
	struct bench_case c;
	bool data = op == K3_OP_LM_HEAD_DX;
	float *out, *w, *h = NULL, *dlogits;

	if (!open_head(&c, b, op, &x))
		return;
	struct bench_call *call = bench_call(&c, op);
	if (data) {
		out = bench_out(call, "dh", x.t * x.d);
		x.a.logits = (struct k3_list){call->n, 1};
		dlogits = bench_in(call, x.t * x.vocab);
		x.a.head = bench_weight(call, x.vocab, x.d, &w);
		bench_product(call, BENCH_NN, x.t, x.d, x.vocab);
	} else {
		dlogits = bench_in(call, x.t * x.vocab);
		h = bench_in(call, x.t * x.d);
		x.a.head = bench_gradient(call, "dhead", x.vocab, x.d, &out);
		bench_product(call, BENCH_TN, x.vocab, x.d, x.t);
	}
	bench_args(call, &x.a, sizeof(x.a));
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, out, x.d, data ? x.t : x.vocab, x.d);
		if (data)
			bench_rows_product(&rows, BENCH_NN, x.vocab, dlogits, x.vocab, w, x.d);
		else
			bench_rows_product(&rows, BENCH_TN, x.t, dlogits, x.vocab, h, x.d);
		bench_rows_expect(&rows, data ? "dh" : "dhead");
	}
	bench_close(&c);
}

void
bench_loss(struct bench *b)
{
	forward(b);
	backward(b, K3_OP_LM_HEAD_DX);
	backward(b, K3_OP_LM_HEAD_DW);
}
