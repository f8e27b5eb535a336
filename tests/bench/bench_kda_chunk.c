/* k3_bench op kda: the chunk kernel on one document, forward and backward, against the recurrent
 * kernel, which goes token by token. */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "bench_kda.h"

/* Products of one chunk of 64 rows of one head, chunks taken as full, the triangles too (model.md
 * 3.4 and 3.6; C rows, key width k, value width v).  What the backward pass forms again, the
 * inverse, and everything elementwise do not count.
 *
 * Forward, 2 C^2 (3k + 2v) + 2 C k v 3:  M, Pq, Tm X (C C k); Tm Y, Pq V~ (C C v);
 *     W S_0, Kbar^T V~, (Q G) S_0 (C k v).
 * Backward, 2 C^2 (6k + 4v) + 2 C k v 6:  Tm^T (dV~ S_0^T), dX W^T, dPq k, dM k, dPq^T q, dM^T k
 *     (C C k); Pq^T dO, dO V~^T, Tm^T dV~, dY U^T (C C v); Kbar dS_1, (Q G)^T dO, W^T dV~, dO
 *     S_0^T, V~ dS_1^T, dV~ S_0^T (C k v). */
static double
chunk_flops(size_t t, size_t h, size_t k, size_t v, bool backward)
{
	double c = 64, kd = (double)k, vd = (double)v;
	double square = backward ? 6 * kd + 4 * vd : 3 * kd + 2 * vd;

	return (double)((t + 63) / 64 * h) *
	       (2 * c * c * square + 2 * c * kd * vd * (backward ? 6 : 3));
}

/* q | k | v rows: q and k of unit length. */
static float *
random_qkv(struct bench_case *c, size_t t, size_t h, size_t k)
{
	float *x = bench_random(c, t * 3 * h * k, -1, 1);

	for (size_t i = 0; i < t * 3 * h; i++) {
		double sum = 0;
		if (i % (3 * h) >= 2 * h)
			continue;
		for (size_t j = i * k; j < (i + 1) * k; j++)
			sum += (double)x[j] * (double)x[j];
		for (size_t j = i * k; j < (i + 1) * k; j++)
			x[j] = (float)((double)x[j] / sqrt(sum));
	}
	return x;
}

/* The recurrent kernel with the inputs of the call: outputs and work (buffer n_out forward, 9
 * backward) are its own. The oracle's results come in the order of the outputs. */
static void
run_oracle(struct bench_case *c, const struct bench_call *call, const size_t *n_out, size_t n_outs,
	   float **want)
{
	const struct k3_kda_chunk_args *a = call->args;
	bool backward = n_outs > 1;
	void *buf[BENCH_BUFFERS];

	memcpy(buf, call->buf, sizeof(buf));
	for (size_t i = 0; i < n_outs; i++)
		buf[i] = want[i] = bench_memory(c, n_out[i] * sizeof(float));
	if (backward) {
		buf[9] = bench_memory(c, k3_kda_recurrent_bwd_work_floats(a->t, a->k, a->v) *
						 sizeof(float));
		k3_kda_recurrent_bwd_cpu_f32(buf, a);
	} else {
		buf[5] = bench_memory(c,
				      k3_kda_recurrent_fwd_work_floats(a->k, a->v) * sizeof(float));
		k3_kda_recurrent_fwd_cpu_f32(buf, a);
	}
}

/* Two fp32 algorithms that round differently, and the gate's gradient is a difference of sums over
 * the 64 rows of a chunk, each a product over the k channels. */
static void
compare(struct bench_case *c, const struct bench_call *call, const size_t *n_out, size_t n_outs,
	const struct bench_output *out)
{
	float *want[4];

	run_oracle(c, call, n_out, n_outs, want);
	for (size_t i = 0; i < n_outs; i++) {
		double *wide = bench_doubles(c, n_out[i]);
		for (size_t j = 0; j < n_out[i]; j++)
			wide[j] = (double)want[i][j];
		bench_expect(c, out[i].name, out[i].data, n_out[i], wide, 1, n_out[i],
			     64 * 64 * c->b->model->kda_dim);
	}
}

void
bench_kda_chunk(struct bench *b)
{
	size_t t = b->sequence, h = b->model->kda_heads, k = b->model->kda_dim, p = h * k;
	struct k3_kda_chunk_args a = {.t = t,
				      .h = h,
				      .k = k,
				      .v = k,
				      .h1 = (uint32_t)h,
				      .lower_bound = (float)b->model->gate_lower_bound,
				      .scale = (float)(1 / sqrt((double)k))};
	const size_t n_fwd[] = {t * p}, n_bwd[] = {t * 3 * p, t * p, t * h, h + p};
	struct bench_case c;

	if (!bench_open(&c, b, "kda_chunk", BENCH_CUBE, BENCH_TARGET_KDA, "t=%zu h=%zu k=%zu v=%zu",
			t, h, k, k))
		return;
	float *qkv = random_qkv(&c, t, h, k), *f = bench_random(&c, t * p, -4, 4),
	      *br = bench_random(&c, t * h, -3, 3), *d_o = bench_random(&c, t * p, -1, 1),
	      *a_log = bench_random(&c, h, 0, 2.77), *dt_bias = bench_random(&c, p, -1, 1);
	int32_t *layout = bench_layout(&c, t);
	const void *in[] = {qkv, f, br, layout};
	struct bench_call *fwd = bench_call(&c, K3_OP_KDA_CHUNK_FWD),
			  *bwd = bench_call(&c, K3_OP_KDA_CHUNK_BWD);
	struct bench_call *both[] = {fwd, bwd};

	bench_out(fwd, "o", n_fwd[0]);
	bench_out(bwd, "dqkv", n_bwd[0]);
	bench_out(bwd, "df", n_bwd[1]);
	bench_out(bwd, "dbr", n_bwd[2]);
	bench_keep(&c, bench_out(bwd, "dab", n_bwd[3]));
	bench_keep(&c, a_log);
	bench_keep(&c, dt_bias);
	c.loose = 4; /* sums over a chunk that cancel */
	bench_push(bwd, d_o);
	for (size_t i = 0; i < 2; i++) {
		for (size_t j = 0; j < 4; j++)
			bench_push(both[i], in[j]);
		bench_work(both[i], i ? k3_kda_chunk_bwd_work_floats(t, h, k, k)
				      : k3_kda_chunk_fwd_work_floats(t, h, k, k));
		bench_push(both[i], a_log);
		a.a_log = bench_last(both[i], 1, h);
		bench_push(both[i], dt_bias);
		a.dt_bias = bench_last(both[i], 1, p);
		bench_args(both[i], &a, sizeof(a));
		both[i]->flops = chunk_flops(t, h, k, k, i == 1);
	}
	if (bench_run(&c)) {
		compare(&c, fwd, n_fwd, 1, c.output);
		compare(&c, bwd, n_bwd, 4, c.output + 1);
	}
	bench_close(&c);
}
