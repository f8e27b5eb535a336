/* Times KDA's CUDA kernels at the shapes, bf16: median of 20 by events, input sets in turn.
 *
 * Prints microseconds, the bytes that must move (inputs once and outputs once) per second, and for
 * the chunk kernels the products' rate at 64-row chunks.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codelets/cuda/kernels.h"
#include "../../common/op/kda.h"
#include "time_case.h"

enum { T = 8192, K = 128, SETS = 2, RUNS = 20, MAX_BUF = 16, PERIOD = 1048573 };

/* Device memory of random bf16 (float) numbers around `mean`; they repeat after PERIOD. */
static void *
random_data(size_t n, int is_float, float mean, float spread)
{
	static unsigned char host[4 * PERIOD];
	size_t size = is_float ? 4 : 2;
	uint32_t state = 12345;
	char *device;

	for (size_t i = 0; i < n && i < PERIOD; i++) {
		float x;
		uint32_t bits;
		state = state * 1664525u + 1013904223u;
		x = mean + spread * ((float)(state >> 8) / 8388608.0f - 1);
		memcpy(&bits, &x, 4);
		if (is_float)
			memcpy(host + 4 * i, &bits, 4);
		else
			memcpy(host + 2 * i, (char *)&bits + 2, 2);
	}
	check(cudaMalloc((void **)&device, n * size + 256), "cudaMalloc");
	for (size_t i = 0; i < n; i += PERIOD)
		check(cudaMemcpy(device + i * size, host, (n - i < PERIOD ? n - i : PERIOD) * size,
				 cudaMemcpyHostToDevice),
		      "upload");
	return device;
}

struct op {
	const char *name;
	size_t heads;
	double bytes, flops;
	void *buf[SETS][MAX_BUF];
	size_t n_buf;
	void (*call)(void *const *buf, const void *args, const struct k3_cuda *cuda);
	const void *args;
	size_t scratch;
};

/* Another buffer in every set. */
static uint32_t
add(struct op *o, size_t n, int is_float, float mean, float spread)
{
	for (int s = 0; s < SETS; s++)
		o->buf[s][o->n_buf] = random_data(n, is_float, mean, spread);
	return (uint32_t)o->n_buf++;
}

static uint32_t
add_layout(struct op *o)
{
	size_t len = k3_tile_layout_len(T);
	int32_t *l = calloc(len, sizeof(*l));
	uint32_t at = (uint32_t)o->n_buf++;

	l[K3_TL_ROWS] = l[K3_TL_VALID] = T;
	l[K3_TL_SEGMENTS] = 1;
	for (int32_t i = 0; i < T; i++) {
		l[K3_TL_HEAD + i] = 1;
		l[K3_TL_HEAD + T + i] = i;
	}
	l[K3_TL_HEAD + 2 * T + 1] = T;
	for (int s = 0; s < SETS; s++) {
		check(cudaMalloc(&o->buf[s][at], len * 4), "cudaMalloc");
		check(cudaMemcpy(o->buf[s][at], l, len * 4, cudaMemcpyHostToDevice), "upload");
	}
	free(l);
	return at;
}

static struct k3_weight
vector(struct op *o, size_t rows, size_t cols, int is_float, float mean, float spread)
{
	struct k3_weight w = {add(o, rows * cols, is_float, mean, spread), 1, rows, cols, rows, 0};

	return w;
}

/* Calls follow each other without a gap, so that none begins on an idle device. */
static void
report(struct op *o)
{
	cudaEvent_t mark[RUNS + 1];
	cudaStream_t stream;
	struct k3_cuda cuda;
	float ms[RUNS];

	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	if (k3_cuda_init(&cuda, stream, o->scratch) != 0)
		exit(1);
	for (int i = 0; i <= RUNS; i++)
		check(cudaEventCreate(&mark[i]), "cudaEventCreate");
	for (int i = -4; i < RUNS; i++) {
		if (i <= 0)
			check(cudaEventRecord(mark[0], stream), "cudaEventRecord");
		o->call(o->buf[(i + 4) % SETS], o->args, &cuda);
		if (i >= 0)
			check(cudaEventRecord(mark[i + 1], stream), "cudaEventRecord");
	}
	check(cudaStreamSynchronize(stream), o->name);
	for (int i = 0; i < RUNS; i++)
		check(cudaEventElapsedTime(&ms[i], mark[i], mark[i + 1]), "cudaEventElapsedTime");
	for (int i = 0; i <= RUNS; i++)
		cudaEventDestroy(mark[i]);
	sort_times(ms, RUNS);
	printf("%s\t%zu\t%.1f\t%.0f\t%.1f\t%.0f\n", o->name, o->heads, 1e3 * (double)ms[RUNS / 2],
	       o->bytes / (1e6 * (double)ms[RUNS / 2]), o->flops / (1e9 * (double)ms[RUNS / 2]),
	       (double)o->scratch / 1048576);
	fflush(stdout);
	k3_cuda_fini(&cuda);
	cudaStreamDestroy(stream);
	for (int s = 0; s < SETS; s++)
		for (size_t i = 0; i < o->n_buf; i++)
			cudaFree(o->buf[s][i]);
}

#define CALL(stem)                                                                                 \
	((void (*)(void *const *, const void *, const struct k3_cuda *))(                          \
		void (*)(void))k3_##stem##_cuda_bf16)

/* Chunk products a token and head: model.md 3.4. */
static double
chunk_flops(size_t h)
{
	return (double)h * T * (4.0 * 64 * K + 2.0 * 64 * (K + K) + 6.0 * K * K + 2.0 * 64 * K);
}

static void
time_chunk_fwd(size_t h)
{
	struct k3_kda_chunk_args a = {.t = T,
				      .h = h,
				      .k = K,
				      .v = K,
				      .h1 = (uint32_t)h,
				      .lower_bound = -5,
				      .scale = 0.088388f};
	struct op o = {
		.name = "kda_chunk_fwd", .heads = h, .call = CALL(kda_chunk_fwd), .args = &a};

	add(&o, T * h * K, 0, 0, 1);
	add(&o, T * 3 * h * K, 0, 0, 0.15f);
	add(&o, T * h * K, 0, -4, 3);
	add(&o, T * h, 0, 0, 2);
	add_layout(&o);
	add(&o, 64, 1, 0, 0);
	a.a_log = vector(&o, 1, h, 1, 0, 0.5f);
	a.dt_bias = vector(&o, 1, h * K, 1, 0, 1);
	o.scratch = k3_kda_chunk_fwd_cuda_scratch(&a);
	o.bytes = (double)T * (double)h * (5.0 * K + 1) * 2;
	o.flops = chunk_flops(h);
	report(&o);
}

/* Forward's products again, without o, and 2.5 times those of the forward. */
static void
time_chunk_bwd(size_t h)
{
	struct k3_kda_chunk_args a = {.t = T,
				      .h = h,
				      .k = K,
				      .v = K,
				      .h1 = (uint32_t)h,
				      .lower_bound = -5,
				      .scale = 0.088388f};
	struct op o = {
		.name = "kda_chunk_bwd", .heads = h, .call = CALL(kda_chunk_bwd), .args = &a};

	add(&o, T * 3 * h * K, 0, 0, 1);
	add(&o, T * h * K, 0, 0, 1);
	add(&o, T * h, 0, 0, 1);
	add(&o, h + h * K, 1, 0, 1);
	add(&o, T * h * K, 0, 0, 1);
	add(&o, T * 3 * h * K, 0, 0, 0.15f);
	add(&o, T * h * K, 0, -4, 3);
	add(&o, T * h, 0, 0, 2);
	add_layout(&o);
	add(&o, 64, 1, 0, 0);
	a.a_log = vector(&o, 1, h, 1, 0, 0.5f);
	a.dt_bias = vector(&o, 1, h * K, 1, 0, 1);
	o.scratch = k3_kda_chunk_bwd_cuda_scratch(&a);
	o.bytes = (double)T * (double)h * (9.0 * K + 2) * 2;
	o.flops = 3 * chunk_flops(h);
	report(&o);
}

static void
time_conv(size_t h)
{
	struct k3_kda_conv_args a = {.t = T,
				     .p = h * K,
				     .h = h,
				     .k = K,
				     .taps = 4,
				     .l2_eps = 1e-6f,
				     .group_heads = (uint32_t)h};
	size_t row = 3 * h * K;
	struct op f = {.name = "kda_conv_fwd", .heads = h, .call = CALL(kda_conv_fwd), .args = &a};
	struct op b = {.name = "kda_conv_bwd", .heads = h, .call = CALL(kda_conv_bwd), .args = &a};

	add(&f, T * row, 0, 0, 1);
	add(&f, T * 2 * h, 1, 0, 1);
	add(&f, T * row, 0, 0, 1);
	add_layout(&f);
	a.cq = vector(&f, a.p, 4, 1, 0, 1);
	a.ck = vector(&f, a.p, 4, 1, 0, 1);
	a.cv = vector(&f, a.p, 4, 1, 0, 1);
	f.bytes = T * (double)(row * 4 + 2 * h * 4);
	report(&f);
	add(&b, T * row, 0, 0, 1);
	add(&b, T * row, 0, 0, 0.1f);
	add(&b, T * 2 * h, 1, 1, 0.5f);
	add(&b, T * row, 0, 0, 1);
	add_layout(&b);
	a.dqkv = (struct k3_list){add(&b, T * row, 0, 0, 1), 1};
	a.dcq = vector(&b, a.p, 4, 1, 0, 1);
	a.dck = vector(&b, a.p, 4, 1, 0, 1);
	a.dcv = vector(&b, a.p, 4, 1, 0, 1);
	a.cq = vector(&b, a.p, 4, 1, 0, 1);
	a.ck = vector(&b, a.p, 4, 1, 0, 1);
	a.cv = vector(&b, a.p, 4, 1, 0, 1);
	b.scratch = k3_kda_conv_bwd_cuda_scratch(&a);
	b.bytes = T * (double)(row * 6 + 2 * h * 4); /* without qkv, which follows from the rest */
	report(&b);
}

/* With the product by wo; bytes are those of the gated norm.  d = 0: the gated norm alone. */
static void
time_out(size_t h, size_t d)
{
	struct k3_kda_out_args a = {.t = T,
				    .d = d,
				    .p = h * K,
				    .h = h,
				    .v = K,
				    .eps = 1e-5f,
				    .group_heads = (uint32_t)h};
	struct op f = {.heads = h, .call = CALL(kda_out_fwd), .args = &a};
	struct op b = {.heads = h, .call = CALL(kda_out_bwd_dx), .args = &a};

	f.name = d ? "kda_out_fwd" : "gated_norm_fwd";
	b.name = d ? "kda_out_bwd_dx" : "gated_norm_bwd";

	add(&f, T * a.d, 0, 0, 1);
	add(&f, T * a.p, 0, 0, 1);
	add(&f, T * a.p, 0, 0, 1);
	a.o = (struct k3_list){add(&f, T * a.p, 0, 0, 1), 1};
	a.on = vector(&f, 1, K, 1, 1, 0.1f);
	a.wo = vector(&f, a.d, a.p, 0, 0, 0.03f);
	f.bytes = 6.0 * T * (double)a.p;
	f.flops = 2.0 * T * (double)a.p * (double)a.d;
	report(&f);
	add(&b, T * a.p, 0, 0, 1);
	add(&b, T * a.d, 0, 0, 1);
	add(&b, T * a.p, 0, 0, 1);
	add(&b, T * a.p, 0, 0, 1);
	a.dout = (struct k3_list){add(&b, T * a.p, 0, 0, 1), 1};
	a.o = (struct k3_list){add(&b, T * a.p, 0, 0, 1), 1};
	a.don = vector(&b, 1, K, 1, 0, 1);
	a.on = vector(&b, 1, K, 1, 1, 0.1f);
	a.wo = vector(&b, a.d, a.p, 0, 0, 0.03f);
	b.scratch = k3_kda_out_bwd_dx_cuda_scratch(&a);
	b.bytes = 10.0 * T * (double)a.p;
	b.flops = f.flops;
	report(&b);
}

int
main(void)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		fprintf(stderr, "there is no CUDA device\n");
		return 77;
	}
	printf("operation\theads\tus\tgb_per_s\ttflop_per_s\tscratch_mib\n");
	for (size_t h = 16; h <= 96; h += 80) {
		time_chunk_fwd(h);
		time_chunk_bwd(h);
		time_conv(h);
	}
	time_out(16, 1024);
	time_out(16, 0);
	return 0;
}
