/* k3_bench op vit: output product of the attention. */
#include "bench_vit.h"

static struct k3_vit_out_args
args_of(const struct bench_vit_shape *x)
{
	return (struct k3_vit_out_args){.n = x->n, .d = x->d, .dq = x->dq, .h = x->h};
}

static bool
open_case(struct bench_case *c, struct bench *b, const struct bench_vit_shape *x, enum k3_op op)
{
	return bench_open(c, b, k3_op_name(op), BENCH_SAME, BENCH_TARGET_GEMM, "n=%zu d=%zu dq=%zu",
			  x->n, x->d, x->dq);
}

static void
forward(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_out_args a = args_of(x);
	struct bench_case c;
	float *w;

	if (!open_case(&c, b, x, K3_OP_VIT_OUT_FWD))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_FWD);
	float *y = bench_out(call, "y", x->n * x->d), *in = bench_in(call, x->n * x->d),
	      *o = bench_in(call, x->n * x->dq);
	a.w = bench_weight(call, x->d, x->dq, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NT, x->n, x->d, x->dq);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, y, x->d, x->n, x->d);
		bench_rows_add(&rows, in, x->d);
		bench_rows_product(&rows, BENCH_NT, x->dq, o, x->dq, w, x->dq);
		bench_rows_expect(&rows, "y");
	}
	bench_close(&c);
}

static void
backward_data(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_out_args a = args_of(x);
	struct bench_case c;
	float *w;

	if (!open_case(&c, b, x, K3_OP_VIT_OUT_BWD_DX))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_BWD_DX);
	float *dout = bench_out(call, "do", x->n * x->dq),
	      *delta = bench_out(call, "delta", x->n * x->h), *dy = bench_in(call, x->n * x->d),
	      *o = bench_in(call, x->n * x->dq);
	bench_keep(&c, delta);
	a.w = bench_weight(call, x->d, x->dq, &w);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_NN, x->n, x->dq, x->d);
	if (bench_run(&c)) {
		double *want = bench_wide(&c, BENCH_NN, x->n, x->dq, x->d, dy, x->d, w, x->dq),
		       *dot = bench_doubles(&c, x->n * x->h);
		for (size_t i = 0; i < x->n * x->dq; i++)
			dot[i / x->hd] += want[i] * (double)o[i];
		bench_expect(&c, "do", dout, x->dq, want, x->n, x->dq, x->d);
		bench_expect(&c, "delta", delta, x->h, dot, x->n, x->h, x->d);
	}
	bench_close(&c);
}

static void
backward_weights(struct bench *b, const struct bench_vit_shape *x)
{
	struct k3_vit_out_args a = args_of(x);
	struct bench_case c;
	float *dw;

	if (!open_case(&c, b, x, K3_OP_VIT_OUT_BWD_DW))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_VIT_OUT_BWD_DW);
	float *dy = bench_in(call, x->n * x->d), *o = bench_in(call, x->n * x->dq);
	a.w = bench_gradient(call, "dw", x->d, x->dq, &dw);
	bench_args(call, &a, sizeof(a));
	bench_product(call, BENCH_TN, x->d, x->dq, x->n);
	if (bench_run(&c)) {
		struct bench_rows rows = bench_rows(&c, dw, x->dq, x->d, x->dq);
		bench_rows_product(&rows, BENCH_TN, x->n, dy, x->d, o, x->dq);
		bench_rows_expect(&rows, "dw");
	}
	bench_close(&c);
}

void
bench_vit_out(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);

	forward(b, &x);
	backward_data(b, &x);
	backward_weights(b, &x);
}
