/* Times of the mixture's bf16 CUDA kernels at the sizes of the model with 24 layers, 8192 tokens:
 * a table on stdout.  Operands of random numbers, two sets in turn, each larger than the device's
 * cache.  All runs are submitted while the stream is kept busy, so that the host's part of a
 * launch is not measured.
 *
 *   time_cuda_moe [PREFIX]    only operations whose name begins so */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/moe.h"
#include "../../common/rng.h"
#include "../../common/status.h"
#include "route_case.h"
#include "../../codelets/cuda/kernels.h"
#include "time_case.h"

enum { SETS = 2, WARM = 3, RUNS = 20, BUFFERS = 16, POOL = 1 << 22 };
static const size_t BUSY_BYTES = (size_t)1 << 30;

static const size_t T = 8192, D = 1024, R = 512, F = 384, E = 32, K = 4;

typedef void kernel(void *const *buf, const void *args, const struct k3_cuda *cuda);

struct run {
	struct k3_cuda cuda;
	uint16_t *pool;
	void *busy; /* BUSY_BYTES */
	const char *prefix;
	void *buf[SETS][BUFFERS];
	uint32_t n;
	size_t bytes; /* read and written, each operand once */
};

static void
add_bytes(struct run *r, size_t bytes, const void *values)
{
	for (int s = 0; s < SETS; s++) {
		check(cudaMalloc(&r->buf[s][r->n], bytes), "cudaMalloc");
		for (size_t at = 0; at < bytes && !values; at += POOL * sizeof(*r->pool)) {
			size_t left = bytes - at, all = POOL * sizeof(*r->pool);
			check(cudaMemcpy((char *)r->buf[s][r->n] + at, r->pool,
					 left < all ? left : all, cudaMemcpyHostToDevice),
			      "upload");
		}
		if (values)
			check(cudaMemcpy(r->buf[s][r->n], values, bytes, cudaMemcpyHostToDevice),
			      "upload");
	}
	r->n++;
	r->bytes += bytes;
}

static void
add(struct run *r, size_t elems)
{
	add_bytes(r, 2 * elems, NULL);
}

static void
add_floats(struct run *r, size_t elems, float value)
{
	float *x = malloc(elems * sizeof(*x));

	for (size_t i = 0; i < elems; i++)
		x[i] = value * (float)(1 + i % 7);
	add_bytes(r, elems * sizeof(*x), x);
	free(x);
}

static void
add_work(struct run *r, size_t elems)
{
	add_bytes(r, 4 * elems, NULL);
	r->bytes -= 4 * elems;
}

static void
add_routes(struct run *r, const struct route_case *routes, int weights)
{
	add_bytes(r, 4 * k3_route_len(T, E, K), routes->route);
	if (weights)
		add_bytes(r, 4 * k3_routew_len(T, E, K), routes->routew);
}

static struct k3_weight
weight(struct run *r, size_t rows, size_t cols, int gradient)
{
	struct k3_weight w = {
		.first = r->n, .n = 1, .rows = rows, .cols = cols, .block_rows = rows};

	if (gradient)
		add_floats(r, rows * cols, 0.01f);
	else
		add(r, rows * cols);
	return w;
}

/* Times of RUNS calls, ascending. */
static void
time_runs(float *ms, struct run *r, const char *name, const void *args, kernel *f)
{
	cudaStream_t stream = r->cuda.stream;
	cudaEvent_t at[RUNS + 1];

	for (int i = 0; i <= RUNS; i++)
		check(cudaEventCreate(&at[i]), "cudaEventCreate");
	for (int i = 0; i < WARM; i++)
		f(r->buf[i % SETS], args, &r->cuda);
	for (int i = 0; i < 8; i++)
		check(cudaMemsetAsync(r->busy, i, BUSY_BYTES, stream), "cudaMemsetAsync");
	for (int i = 0; i <= RUNS; i++) {
		f(r->buf[i % SETS], args, &r->cuda);
		check(cudaEventRecord(at[i], stream), "cudaEventRecord");
	}
	check(cudaStreamSynchronize(stream), name);
	for (int i = 0; i < RUNS; i++)
		check(cudaEventElapsedTime(&ms[i], at[i], at[i + 1]), "cudaEventElapsedTime");
	for (int i = 0; i <= RUNS; i++)
		check(cudaEventDestroy(at[i]), "cudaEventDestroy");
	sort_times(ms, RUNS);
}

/* A row of the table; frees the operands. */
static void
measure(struct run *r, const char *name, void *args, kernel *f, double flops)
{
	float ms[RUNS];

	((struct k3_args_head *)args)->n_buf = r->n;
	if (strncmp(name, r->prefix, strlen(r->prefix)) == 0) {
		time_runs(ms, r, name, args, f);
		double us = 1e3 * (double)ms[RUNS / 2];
		printf("%s\t%.1f\t%.1f\t%.0f\t%.0f\n", name, us, 1e3 * (double)ms[0],
		       (double)r->bytes / us / 1e3, flops / us / 1e6);
		fflush(stdout);
	}
	for (int s = 0; s < SETS; s++)
		for (uint32_t i = 0; i < r->n; i++)
			check(cudaFree(r->buf[s][i]), "cudaFree");
	r->n = 0;
	r->bytes = 0;
}

#define MEASURE(r, name, args, stem, flops)                                                        \
	measure(r, name, args, (kernel *)(void (*)(void))k3_##stem##_cuda_bf16, flops)

static struct k3_expert_args
expert_args(void)
{
	return (struct k3_expert_args){.t = T,
				       .n_experts = E,
				       .k = K,
				       .r = R,
				       .f = F,
				       .e0 = 0,
				       .e1 = (uint32_t)E,
				       .beta1 = 4,
				       .beta2 = 25};
}

/* The most that an operation of the table needs. */
static size_t
scratch_bytes(void)
{
	const size_t others = (size_t)64 << 20;
	struct k3_expert_args a = expert_args();
	size_t experts = k3_expert_wgrad_cuda_scratch(&a);

	return experts > others ? experts : others;
}

static void
time_experts(struct run *r, enum route_pattern pattern, const char *how)
{
	const double flops = 2.0 * (double)(T * K) * 3 * (double)(R * F);
	struct k3_expert_args a = expert_args();
	struct route_case routes;
	size_t tk = T * K;
	char name[64];

	route_case_make(&routes, T, E, K, pattern, 1);
	add(r, tk * 2 * F), add(r, tk * R), add(r, tk * R);
	add_routes(r, &routes, 0);
	add_work(r, tk * F);
	a.w13 = weight(r, E * 2 * F, R, 0);
	a.w2 = weight(r, E * R, F, 0);
	snprintf(name, sizeof(name), "expert_fwd %s", how);
	MEASURE(r, name, &a, expert_fwd, flops);

	add(r, tk * 2 * F), add(r, tk * R);
	add_routes(r, &routes, 0);
	a.w13 = weight(r, E * 2 * F, R, 0);
	snprintf(name, sizeof(name), "expert_gu %s", how);
	MEASURE(r, name, &a, expert_gu, flops * 2 / 3);

	add(r, tk * 2 * F), add(r, tk * R), add_floats(r, tk, 1);
	add(r, tk * R), add(r, tk * 2 * F);
	add_routes(r, &routes, 1);
	add_work(r, tk * F);
	a.w13 = weight(r, E * 2 * F, R, 0);
	a.w2 = weight(r, E * R, F, 0);
	snprintf(name, sizeof(name), "expert_dgrad %s", how);
	MEASURE(r, name, &a, expert_dgrad, flops);

	for (int adds = 0; adds < 2; adds++) {
		add(r, tk * 2 * F), add(r, tk * R), add(r, tk * 2 * F), add(r, tk * R);
		add_routes(r, &routes, 1);
		add_work(r, tk * F);
		a.w13 = weight(r, E * 2 * F, R, 1);
		a.w2 = weight(r, E * R, F, 1);
		a.w13.accumulate = a.w2.accumulate = (uint32_t)adds;
		snprintf(name, sizeof(name), "expert_wgrad%s %s", adds ? ", adds" : "", how);
		MEASURE(r, name, &a, expert_wgrad, flops);
	}
	route_case_free(&routes);
}

static void
time_router(struct run *r, const struct route_case *routes)
{
	struct k3_moe_route_args a = {
		.t = T, .d = D, .n_experts = E, .k = K, .sum_eps = 1e-20f, .scale = 1};
	struct k3_moe_count_args c = {.t = T, .n_experts = E, .k = K, .bins = 1000};
	int32_t *layout = calloc(k3_tile_layout_len(T), sizeof(*layout));

	add_bytes(r, 4 * k3_route_len(T, E, K), NULL);
	add_bytes(r, 4 * k3_routew_len(T, E, K), NULL);
	add(r, T * D);
	a.wr = weight(r, E, D, 0);
	a.bias = weight(r, 1, E, 1);
	MEASURE(r, "moe_route_fwd", &a, moe_route_fwd, 2.0 * (double)(T * D * E));

	for (size_t i = 0; i < T; i++)
		layout[K3_TL_HEAD + i] = 1;
	add_bytes(r, 4 * E * (1 + c.bins), NULL);
	add_routes(r, routes, 1);
	add_bytes(r, 4 * k3_tile_layout_len(T), layout);
	c.bias = weight(r, 1, E, 1);
	MEASURE(r, "moe_count", &c, moe_count, 0);
	free(layout);
}

static void
time_dispatch(struct run *r, const struct route_case *routes)
{
	const double down = 2.0 * (double)(T * D * R), router = 2.0 * (double)(T * D * E);
	struct k3_moe_dispatch_args a = {
		.t = T, .d = D, .r = R, .n_experts = E, .k = K, .sum_eps = 1e-20f, .scale = 1};

	add(r, T * K * R), add(r, T * D);
	add_routes(r, routes, 0);
	add_work(r, T * R);
	a.wdown = weight(r, R, D, 0);
	MEASURE(r, "moe_dispatch_fwd", &a, moe_dispatch_fwd, down);

	add(r, T * D), add(r, T * R), add_floats(r, T * E, 1), add(r, T * K * R);
	add_floats(r, T * K, 1);
	add_routes(r, routes, 1);
	a.wdown = weight(r, R, D, 0);
	a.wr = weight(r, E, D, 0);
	MEASURE(r, "moe_dispatch_bwd_dx", &a, moe_dispatch_bwd_dx, down + router);

	add(r, T * R), add_floats(r, T * E, 1), add(r, T * D);
	a.wdown = weight(r, R, D, 1);
	a.wr = weight(r, E, D, 1);
	MEASURE(r, "moe_dispatch_bwd_dw", &a, moe_dispatch_bwd_dw, down + router);
}

static void
time_combine(struct run *r, const struct route_case *routes)
{
	const double up = 2.0 * (double)(T * D * R);
	struct k3_moe_combine_args a = {
		.t = T, .d = D, .r = R, .n_experts = E, .k = K, .eps = 1e-5f};

	add(r, T * D), add(r, T * R), add(r, T * K * R);
	add_routes(r, routes, 1);
	add(r, T * D), add(r, T * D);
	add_work(r, T * R);
	a.norm = weight(r, 1, R, 1);
	a.wup = weight(r, D, R, 0);
	MEASURE(r, "moe_combine_fwd", &a, moe_combine_fwd, up);

	add(r, T * K * R), add(r, T * D), add(r, T * R);
	add_routes(r, routes, 0);
	add_work(r, 2 * T * R);
	a.dnorm = weight(r, 1, R, 1);
	a.norm = weight(r, 1, R, 1);
	a.wup = weight(r, D, R, 0);
	MEASURE(r, "moe_combine_bwd_dx", &a, moe_combine_bwd_dx, up);

	add(r, T * D), add(r, T * R);
	add_work(r, T * R);
	a.norm = weight(r, 1, R, 1);
	a.wup = weight(r, D, R, 1);
	MEASURE(r, "moe_combine_bwd_dw", &a, moe_combine_bwd_dw, up);
}

int
main(int argc, char **argv)
{
	uint64_t key = k3_rng_key("times", 1);
	struct route_case routes;
	struct run r = {.prefix = argc > 1 ? argv[1] : ""};
	cudaStream_t stream;

	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	if (k3_cuda_init(&r.cuda, stream, scratch_bytes()) != K3_OK)
		return 1;
	check(cudaMalloc(&r.busy, BUSY_BYTES), "cudaMalloc");
	r.pool = malloc(POOL * sizeof(*r.pool));
	if (!r.pool)
		return 1;
	for (size_t i = 0; i < POOL; i++) {
		float x = (float)(k3_rng_uniform(key, i) - 0.5);
		uint32_t u;
		memcpy(&u, &x, 4);
		r.pool[i] = (uint16_t)(u >> 16);
	}
	printf("operation\tmedian_us\tleast_us\tgb_per_s\ttflop_per_s\n");
	time_experts(&r, ROUTE_RANDOM, "even");
	time_experts(&r, ROUTE_SKEWED, "skewed");
	route_case_make(&routes, T, E, K, ROUTE_RANDOM, 1);
	time_router(&r, &routes);
	time_dispatch(&r, &routes);
	time_combine(&r, &routes);
	route_case_free(&routes);
	free(r.pool);
	check(cudaFree(r.busy), "cudaFree");
	k3_cuda_fini(&r.cuda);
	check(cudaStreamDestroy(stream), "cudaStreamDestroy");
	return 0;
}
