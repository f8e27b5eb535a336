/* k3_bench op kda: convolution with SiLU and l2 norm, and the gated output with its projection. */
#include <math.h>

#include "bench.h"
#include "bench_kda.h"

struct conv {
	size_t t, h, k, p, taps;
	double eps;
	const float *u, *tap[3]; /* conv inputs [t, 3P], taps [P, taps] */
	double *a, *y, *r;	 /* before SiLU, after the norm [t, 3P], its factors [t, 2h] */
};

static double
tap_of(const struct conv *x, size_t ch, size_t j)
{
	return (double)x->tap[ch / x->p][ch % x->p * x->taps + j];
}

/* Forward by the formula, tokens before the first count as 0. */
static void
convolve(struct bench_case *c, struct conv *x)
{
	size_t width = 3 * x->p;

	x->a = bench_doubles(c, x->t * width);
	x->y = bench_doubles(c, x->t * width);
	x->r = bench_doubles(c, x->t * 2 * x->h);
	for (size_t t = 0; t < x->t; t++) {
		for (size_t ch = 0; ch < width; ch++) {
			double a = 0;
			for (size_t j = 0; j < x->taps; j++)
				if (t + j + 1 >= x->taps)
					a += tap_of(x, ch, j) *
					     (double)x->u[(t + j + 1 - x->taps) * width + ch];
			x->a[t * width + ch] = a;
			x->y[t * width + ch] = a * bench_sigmoid(a);
		}
		for (size_t head = 0; head < 2 * x->h; head++) {
			double *y = x->y + t * width + head * x->k, sum = 0;
			for (size_t i = 0; i < x->k; i++)
				sum += y[i] * y[i];
			x->r[t * 2 * x->h + head] = 1 / sqrt(sum + x->eps);
			for (size_t i = 0; i < x->k; i++)
				y[i] *= x->r[t * 2 * x->h + head];
		}
	}
}

/* Gradient of a from that of the result, in place. */
static void
activation_back(const struct conv *x, double *d)
{
	size_t width = 3 * x->p;

	for (size_t t = 0; t < x->t; t++) {
		for (size_t head = 0; head < 2 * x->h; head++) {
			double *dy = d + t * width + head * x->k, dot = 0;
			const double *y = x->y + t * width + head * x->k;
			for (size_t i = 0; i < x->k; i++)
				dot += y[i] * dy[i];
			for (size_t i = 0; i < x->k; i++)
				dy[i] = x->r[t * 2 * x->h + head] * (dy[i] - y[i] * dot);
		}
		for (size_t i = t * width; i < (t + 1) * width; i++) {
			double z = bench_sigmoid(x->a[i]);
			d[i] *= z + x->a[i] * z * (1 - z);
		}
	}
}

static void
expect_gradients(struct bench_case *c, const struct conv *x, const float *dqkv, const float *du,
		 float *const *dtap)
{
	size_t width = 3 * x->p;
	double *da = bench_doubles(c, x->t * width), *want = bench_doubles(c, x->t * width);
	double *dc = bench_doubles(c, width * x->taps);
	static const char *const name[] = {"dcq", "dck", "dcv"};

	for (size_t i = 0; i < x->t * width; i++)
		da[i] = (double)dqkv[i];
	activation_back(x, da);
	for (size_t t = 0; t < x->t; t++)
		for (size_t j = 0; j < x->taps; j++) {
			if (t + j + 1 < x->taps)
				continue;
			size_t from = (t + j + 1 - x->taps) * width;
			for (size_t ch = 0; ch < width; ch++) {
				double g = da[t * width + ch];
				want[from + ch] += tap_of(x, ch, j) * g;
				dc[ch * x->taps + j] += g * (double)x->u[from + ch];
			}
		}
	bench_expect(c, "dqkvr", du, width, want, x->t, width, 4 * x->k);
	for (size_t i = 0; i < 3; i++)
		bench_expect(c, name[i], dtap[i], x->taps, dc + i * x->p * x->taps, x->p, x->taps,
			     x->t);
}

static bool
open_conv(struct bench_case *c, struct bench *b, enum k3_op op, struct conv *x,
	  struct k3_kda_conv_args *a)
{
	const struct k3_config *m = b->model;

	*x = (struct conv){.t = b->tokens,
			   .h = m->kda_heads,
			   .k = m->kda_dim,
			   .p = (size_t)m->kda_heads * m->kda_dim,
			   .taps = m->conv_taps,
			   .eps = m->l2_eps};
	*a = (struct k3_kda_conv_args){.t = x->t,
				       .p = x->p,
				       .h = x->h,
				       .k = x->k,
				       .taps = x->taps,
				       .l2_eps = (float)m->l2_eps,
				       .group_heads = (uint32_t)x->h};
	if (!bench_open(c, b, k3_op_name(op), BENCH_MEMORY, 0, "t=%zu p=%zu taps=%zu", x->t, x->p,
			x->taps))
		return false;
	x->u = bench_random(c, x->t * 3 * x->p, -1, 1);
	for (size_t i = 0; i < 3; i++)
		bench_keep(c, x->tap[i] = bench_random(c, x->p * x->taps, -1, 1));
	return true;
}

static void
push_taps(struct bench_call *call, const struct conv *x, struct k3_kda_conv_args *a)
{
	struct k3_weight *w[] = {&a->cq, &a->ck, &a->cv};

	for (size_t i = 0; i < 3; i++) {
		bench_push(call, x->tap[i]);
		*w[i] = bench_last(call, x->p, x->taps);
	}
	bench_args(call, a, sizeof(*a));
}

static void
conv_forward(struct bench *b)
{
	struct k3_kda_conv_args a;
	struct conv x;
	struct bench_case c;

	if (!open_conv(&c, b, K3_OP_KDA_CONV_FWD, &x, &a))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_CONV_FWD);
	size_t width = 3 * x.p;
	float *qkv = bench_out(call, "qkv", x.t * width);
	float *rstd = bench_out(call, "rstd", x.t * 2 * x.h);
	bench_keep(&c, rstd);
	bench_push(call, x.u);
	bench_push(call, bench_layout(&c, x.t));
	push_taps(call, &x, &a);
	bench_traffic(call, x.t * width, x.t * (width + 2 * x.h), 0);
	if (bench_run(&c)) {
		convolve(&c, &x);
		bench_expect(&c, "qkv", qkv, width, x.y, x.t, width, x.k);
		bench_expect(&c, "rstd", rstd, 2 * x.h, x.r, x.t, 2 * x.h, x.k);
	}
	bench_close(&c);
}

static void
conv_backward(struct bench *b)
{
	struct k3_kda_conv_args a;
	struct conv x;
	struct bench_case c;
	float *dtap[3];

	if (!open_conv(&c, b, K3_OP_KDA_CONV_BWD, &x, &a))
		return;
	struct bench_call *call = bench_call(&c, K3_OP_KDA_CONV_BWD);
	size_t width = 3 * x.p;
	if (bench_checks(&c))
		convolve(&c, &x);
	else
		x.r = bench_constants(&c, x.t * 2 * x.h, 0.1);
	float *du = bench_out(call, "dqkvr", x.t * width);
	float *y = bench_in(call, x.t * width);
	for (size_t i = 0; bench_checks(&c) && i < x.t * width; i++)
		y[i] = (float)x.y[i];
	bench_push(call, bench_narrow(&c, x.r, x.t * 2 * x.h));
	bench_push(call, x.u);
	bench_push(call, bench_layout(&c, x.t));
	a.dqkv = (struct k3_list){call->n, 1};
	float *dqkv = bench_in(call, x.t * width);
	a.dcq = bench_gradient(call, "dcq", x.p, x.taps, &dtap[0]);
	a.dck = bench_gradient(call, "dck", x.p, x.taps, &dtap[1]);
	a.dcv = bench_gradient(call, "dcv", x.p, x.taps, &dtap[2]);
	push_taps(call, &x, &a);
	bench_traffic(call, x.t * (3 * width + 2 * x.h), x.t * width, 0);
	if (bench_run(&c))
		expect_gradients(&c, &x, dqkv, du, dtap);
	bench_close(&c);
}

void
bench_kda_conv(struct bench *b)
{
	conv_forward(b);
	conv_backward(b);
}
