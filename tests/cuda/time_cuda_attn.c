/* Times of attention on this device in bf16: microseconds and TFLOP/s, counted causal where it is
 * (one document; backward two and a half times the forward).  Median of 20 calls over three sets
 * of inputs; stdout is a table.  Without a device it says so and succeeds. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codelets/cuda/kernels.h"
#include "../../common/rng.h"
#include "../../common/status.h"
#include "time_case.h"

enum { SETS = 3, CALLS = 20, BUFFERS = 12 };

/* Device buffers of one set; all of a case's sets have the same sizes. */
struct set {
	void *buf[BUFFERS];
};

static void *
device(const void *from, size_t bytes)
{
	void *p;

	check(cudaMalloc(&p, bytes + 256), "cudaMalloc");
	if (from)
		check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	return p;
}

/* Normal numbers as bf16: a megabyte of them, repeated from another place for each seed. */
static void *
numbers(size_t elems, uint64_t seed)
{
	enum { SOME = 1 << 19 };
	static uint16_t some[SOME];
	static size_t drawn;
	uint16_t *x = malloc(elems * sizeof(*x));
	uint64_t key = k3_rng_key("time", 0);
	void *p;

	for (; drawn < SOME; drawn++) {
		float f = (float)k3_rng_normal(key, drawn, INFINITY);
		uint32_t u;
		memcpy(&u, &f, 4);
		some[drawn] = (uint16_t)(u >> 16);
	}
	for (size_t i = 0; x && i < elems; i++)
		x[i] = some[(i + 7919 * seed) % SOME];
	p = device(x, elems * sizeof(*x));
	free(x);
	return p;
}

static void *
constants(size_t elems, float value)
{
	float *x = malloc(elems * sizeof(*x));
	void *p;

	for (size_t i = 0; x && i < elems; i++)
		x[i] = value;
	p = device(x, elems * sizeof(*x));
	free(x);
	return p;
}

typedef void kernel(void *const *buf, const void *args, const struct k3_cuda *cuda);

/* Runs, prints a row, frees the sets. */
static void
row(const char *name, const char *shape, kernel *run, const void *args, struct set *sets,
    size_t scratch, double flops)
{
	struct k3_cuda cuda;
	cudaStream_t stream;
	cudaEvent_t from, to;
	float ms[CALLS];

	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	if (k3_cuda_init(&cuda, stream, scratch) != K3_OK)
		exit(1);
	check(cudaEventCreate(&from), "cudaEventCreate");
	check(cudaEventCreate(&to), "cudaEventCreate");
	for (int i = -3; i < CALLS; i++) {
		check(cudaEventRecord(from, stream), "cudaEventRecord");
		run(sets[(i + 3) % SETS].buf, args, &cuda);
		check(cudaEventRecord(to, stream), "cudaEventRecord");
		check(cudaEventSynchronize(to), name);
		check(cudaEventElapsedTime(&ms[i < 0 ? 0 : i], from, to), "cudaEventElapsedTime");
	}
	sort_times(ms, CALLS);
	printf("%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\n", name, shape, 1e3 * (double)ms[CALLS / 2],
	       flops / (double)ms[CALLS / 2] / 1e9, 1e3 * (double)ms[0],
	       1e3 * (double)ms[CALLS - 1]);
	fflush(stdout);
	for (int s = 0; s < SETS; s++)
		for (int i = 0; i < BUFFERS; i++)
			check(cudaFree(sets[s].buf[i]), "cudaFree");
	k3_cuda_fini(&cuda);
	check(cudaEventDestroy(from), "cudaEventDestroy");
	check(cudaEventDestroy(to), "cudaEventDestroy");
	check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

/* One document, or documents of `len` rows. */
static void *
layout_of(size_t t, size_t len)
{
	int32_t *l = calloc(k3_tile_layout_len(t), sizeof(*l)), *doc = l + K3_TL_HEAD,
		*order = doc + t, *seg = order + t;
	void *p;

	l[K3_TL_ROWS] = l[K3_TL_VALID] = (int32_t)t;
	for (size_t i = 0; i < t; i++) {
		if (i % len == 0)
			seg[l[K3_TL_SEGMENTS]++] = (int32_t)i;
		doc[i] = l[K3_TL_SEGMENTS];
		order[i] = (int32_t)i;
	}
	seg[l[K3_TL_SEGMENTS]] = (int32_t)t;
	p = device(l, k3_tile_layout_len(t) * sizeof(*l));
	free(l);
	return p;
}

static void
text(size_t t, size_t h, size_t nope, size_t rope, size_t v, size_t len)
{
	size_t kq = nope + rope, ld = h * (nope + v) + rope;
	struct k3_mla_attn_args a = {.t = t,
				     .tk_max = t,
				     .h = h,
				     .nope = nope,
				     .rope = rope,
				     .v = v,
				     .h1 = (uint32_t)h,
				     .first = 1,
				     .init_dq = 1,
				     .init_dkv = 1,
				     .scale = 1.0f / sqrtf((float)kq),
				     .kv = {5, 1},
				     .klayout = {6, 1}};
	double flops = (double)t * (double)len * (double)h * (double)(kq + v);
	struct set sets[SETS] = {{{NULL}}};
	char shape[64];

	snprintf(shape, sizeof(shape), "t=%zu h=%zu %zu/%zu doc=%zu", t, h, kq, v, len);
	for (uint64_t s = 0; s < SETS; s++) {
		void **b = sets[s].buf;
		b[0] = numbers(t * h * v, s);
		b[1] = constants(t * h, 0);
		b[2] = numbers(t * h * kq, s + 10);
		b[3] = layout_of(t, len);
		b[5] = numbers(t * ld, s + 20);
		b[6] = layout_of(t, len);
	}
	row("mla_attn_fwd", shape, (kernel *)(void (*)(void))k3_mla_attn_fwd_cuda_bf16, &a, sets, 0,
	    flops);
	memset(sets, 0, sizeof(sets));
	for (uint64_t s = 0; s < SETS; s++) {
		void **b = sets[s].buf;
		b[0] = numbers(t * h * kq, s);
		b[1] = numbers(t * ld, s + 5);
		b[2] = numbers(t * h * kq, s + 10);
		b[3] = numbers(t * ld, s + 20);
		b[4] = numbers(t * h * v, s + 30);
		b[5] = constants(t * h, 8);
		b[6] = constants(t * h, 0.1f);
		b[7] = layout_of(t, len);
		b[8] = layout_of(t, len);
	}
	row("mla_attn_bwd", shape, (kernel *)(void (*)(void))k3_mla_attn_bwd_cuda_bf16, &a, sets,
	    k3_mla_attn_bwd_cuda_scratch(&a), 2.5 * flops);
}

/* One image of rows x cols patches. */
static void
vision(int32_t rows, int32_t cols, size_t h, size_t hd)
{
	size_t n = (size_t)(rows * cols), dq = h * hd;
	struct k3_vit_attn_args a = {.n = n,
				     .nk = n,
				     .dq = dq,
				     .h = h,
				     .scale = 1.0f / sqrtf((float)hd),
				     .init_dq = 1,
				     .init_dkv = 1,
				     .kqkv = {5, 1},
				     .klayout = {6, 1}};
	const int32_t layout[K3_VL_HEAD + K3_VP_LEN] = {
		rows * cols, rows * cols / 4, 1, 0, 0, 1, rows, cols, 0, rows, 0, 0};
	double flops = 4 * (double)n * (double)n * (double)dq;
	struct set sets[SETS] = {{{NULL}}};
	char shape[64];

	snprintf(shape, sizeof(shape), "n=%zu h=%zu %zu", n, h, hd);
	for (uint64_t s = 0; s < SETS; s++) {
		void **b = sets[s].buf;
		b[0] = numbers(n * dq, s);
		b[1] = constants(n * h, 0);
		b[2] = numbers(n * 3 * dq, s + 10);
		b[3] = device(layout, sizeof(layout));
		b[5] = numbers(n * 3 * dq, s + 10);
		b[6] = device(layout, sizeof(layout));
	}
	row("vit_attn_fwd", shape, (kernel *)(void (*)(void))k3_vit_attn_fwd_cuda_bf16, &a, sets, 0,
	    flops);
	memset(sets, 0, sizeof(sets));
	for (uint64_t s = 0; s < SETS; s++) {
		void **b = sets[s].buf;
		b[0] = numbers(n * dq, s);
		b[1] = numbers(n * 2 * dq, s + 5);
		b[2] = numbers(n * 3 * dq, s + 10);
		b[3] = numbers(n * 3 * dq, s + 10);
		b[4] = numbers(n * dq, s + 30);
		b[5] = constants(n * h, 8);
		b[6] = constants(n * h, 0.1f);
		b[7] = device(layout, sizeof(layout));
		b[8] = device(layout, sizeof(layout));
	}
	row("vit_attn_bwd", shape, (kernel *)(void (*)(void))k3_vit_attn_bwd_cuda_bf16, &a, sets, 0,
	    2.5 * flops);
}

int
main(void)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		fprintf(stderr, "there is no CUDA device\n");
		return 0;
	}
	printf("operation\tshape\tus\ttflops\tleast_us\tmost_us\n");
	text(8192, 16, 128, 64, 128, 8192);
	text(8192, 16, 64, 32, 64, 8192);
	text(8192, 16, 32, 16, 32, 8192);
	text(8192, 16, 128, 64, 128, 1024);
	vision(64, 64, 12, 128);
	return 0;
}
