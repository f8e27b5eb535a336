/* k3_bench op vit: attention of an image's patches among themselves, forward and backward.  The
 * oracle forms whole matrices of each head in double. */
#include <math.h>

#include "bench_vit.h"

struct attn {
	const struct bench_vit_shape *x;
	double scale;
	const float *qkv, *dout;
	double *o, *lse, *delta, *dq, *dkv;
};

/* One head, packed: [n, hd] but for p and ds [n, n]. */
struct head {
	double *q, *k, *v, *dout, *out, *p, *ds;
};

/* Scores become P; lse of each row. */
static void
softmax(double *s, double *lse, size_t n, size_t h, double scale)
{
	for (size_t i = 0; i < n; i++, s += n) {
		double sum = 0;

		for (size_t j = 0; j < n; j++)
			sum += s[j] = exp(scale * s[j]);
		for (size_t j = 0; j < n; j++)
			s[j] /= sum;
		lse[i * h] = log(sum);
	}
}

/* Columns of a head. */
static void
get(double *to, const float *x, size_t ld, size_t n, size_t hd)
{
	for (size_t i = 0; i < n * hd; i++)
		to[i] = (double)x[i / hd * ld + i % hd];
}

static void
put(double *y, size_t ld, const double *from, size_t n, size_t hd)
{
	for (size_t i = 0; i < n * hd; i++)
		y[i / hd * ld + i % hd] = from[i];
}

static void
solve_head(const struct attn *t, size_t head, const struct head *e)
{
	size_t n = t->x->n, hd = t->x->hd, h = t->x->h, dq = t->x->dq, first = head * hd;

	get(e->q, t->qkv + first, 3 * dq, n, hd);
	get(e->k, t->qkv + dq + first, 3 * dq, n, hd);
	get(e->v, t->qkv + 2 * dq + first, 3 * dq, n, hd);
	get(e->dout, t->dout + first, dq, n, hd);
	bench_dgemm(e->p, BENCH_NT, n, n, hd, e->q, e->k);
	softmax(e->p, t->lse + head, n, h, t->scale);
	bench_dgemm(e->ds, BENCH_NT, n, n, hd, e->dout, e->v);
	bench_dgemm(e->out, BENCH_NN, n, hd, n, e->p, e->v);
	put(t->o + first, dq, e->out, n, hd);
	for (size_t i = 0; i < n; i++) {
		double *delta = &t->delta[i * h + head];

		for (size_t j = i * hd; j < (i + 1) * hd; j++)
			*delta += e->out[j] * e->dout[j];
		for (size_t j = i * n; j < (i + 1) * n; j++)
			e->ds[j] = e->p[j] * (e->ds[j] - *delta) * t->scale;
	}
	bench_dgemm(e->out, BENCH_NN, n, hd, n, e->ds, e->k);
	put(t->dq + first, dq, e->out, n, hd);
	bench_dgemm(e->out, BENCH_TN, n, hd, n, e->ds, e->q);
	put(t->dkv + first, 2 * dq, e->out, n, hd);
	bench_dgemm(e->out, BENCH_TN, n, hd, n, e->p, e->dout);
	put(t->dkv + dq + first, 2 * dq, e->out, n, hd);
}

static void
solve(struct bench_case *c, struct attn *t)
{
	size_t n = t->x->n, hd = t->x->hd, dq = t->x->dq, h = t->x->h;
	struct head e = {bench_doubles(c, n * hd), bench_doubles(c, n * hd),
			 bench_doubles(c, n * hd), bench_doubles(c, n * hd),
			 bench_doubles(c, n * hd), bench_doubles(c, n * n),
			 bench_doubles(c, n * n)};

	t->o = bench_doubles(c, n * dq);
	t->lse = bench_doubles(c, n * h);
	t->delta = bench_doubles(c, n * h);
	t->dq = bench_doubles(c, n * dq);
	t->dkv = bench_doubles(c, n * 2 * dq);
	for (size_t i = 0; i < h; i++)
		solve_head(t, i, &e);
}

static void
push_forward(struct bench_call *call, const struct attn *t, const struct k3_vit_attn_args *args,
	     const int32_t *layout)
{
	struct k3_vit_attn_args a = *args;

	bench_out(call, "o", a.n * a.dq);
	bench_keep(call->c, bench_out(call, "lse", a.n * a.h));
	bench_push(call, t->qkv);
	bench_push(call, layout);
	bench_work(call, k3_vit_attn_fwd_work_floats(a.n, t->x->hd));
	a.kqkv = (struct k3_list){call->n, 1};
	bench_push(call, t->qkv);
	a.klayout = (struct k3_list){call->n, 1};
	bench_push(call, layout);
	bench_args(call, &a, sizeof(a));
	call->flops = 4.0 * (double)(a.n * a.n * a.dq);
}

/* Five products: q k and do v once more, P do, dS k, dS q. */
static void
push_backward(struct bench_call *call, const struct attn *t, const struct k3_vit_attn_args *a,
	      const int32_t *layout)
{
	bench_out(call, "dq", a->n * a->dq);
	bench_out(call, "dkv", a->n * 2 * a->dq);
	bench_push(call, t->qkv);
	bench_push(call, t->qkv);
	bench_push(call, t->dout);
	bench_push(call, bench_narrow(call->c, t->lse, a->n * a->h));
	bench_push(call, bench_narrow(call->c, t->delta, a->n * a->h));
	bench_push(call, layout);
	bench_push(call, layout);
	bench_work(call, k3_vit_attn_bwd_work_floats(t->x->hd));
	bench_args(call, a, sizeof(*a));
	call->flops = 10.0 * (double)(a->n * a->n * a->dq);
}

void
bench_vit_attn(struct bench *b)
{
	struct bench_vit_shape x = bench_vit_shape(b);
	struct attn t = {.x = &x, .scale = 1 / sqrt((double)x.hd)};
	struct k3_vit_attn_args a = {.n = x.n,
				     .nk = x.n,
				     .dq = x.dq,
				     .h = x.h,
				     .scale = (float)t.scale,
				     .init_dq = 1,
				     .init_dkv = 1};
	struct bench_case c;

	if (!bench_open(&c, b, "vit_attn", BENCH_CUBE, BENCH_TARGET_ATTENTION, "n=%zu h=%zu hd=%zu",
			x.n, x.h, x.hd))
		return;
	t.qkv = bench_random(&c, x.n * 3 * x.dq, -2, 2);
	t.dout = bench_random(&c, x.n * x.dq, -1, 1);
	if (bench_checks(&c)) {
		solve(&c, &t);
	} else {
		t.lse = bench_constants(&c, x.n * x.h, 8);
		t.delta = bench_constants(&c, x.n * x.h, 0.1);
	}
	int32_t *layout = bench_vit_layout(&c, &x);
	push_forward(bench_call(&c, K3_OP_VIT_ATTN_FWD), &t, &a, layout);
	push_backward(bench_call(&c, K3_OP_VIT_ATTN_BWD), &t, &a, layout);
	if (bench_run(&c)) {
		const double *want[] = {t.o, t.lse, t.dq, t.dkv};

		for (size_t i = 0; i < 4; i++) {
			const struct bench_output *out = &c.output[i];
			bench_expect(&c, out->name, out->data, out->n, want[i], 1, out->n,
				     x.hd + x.n * x.h);
		}
	}
	bench_close(&c);
}
