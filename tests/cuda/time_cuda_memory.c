/* Times of the memory-bound operations and of the LM head on a device, as a table: microseconds (median
 * of 20 by events), GB/s of inputs and outputs once, TFLOP/s where products dominate.
 *
 * Each call takes the next of several sets of buffers, which together are larger than the second-level
 * cache.  The shapes are those of the 24-layer debug model at 8,192 tokens; the mix also at the width
 * of the published model.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codelets/cuda/gemm.h"
#include "../../codelets/cuda/kernels.h"
#include "../../common/rng.h"
#include "time_case.h"

enum { RUNS = 20, SETS = 4, MOST = 64, SCRATCH = 256 << 20 };
enum { T = 8192, D = 1024, WIDE = 7168, VOCAB = 163840, BLOCK = 16384, ROWS = 1024, FFN = 4096 };

typedef void kernel(void *const *buf, const void *args, const struct k3_cuda *cuda);
#define KERNEL(stem, type) ((kernel *)(void (*)(void))k3_##stem##_cuda_##type)

struct set {
	void *buf[MOST];
	uint32_t n;
};

static struct k3_cuda cuda;
static cudaStream_t stream;

/* Device memory with values of size 1 about zero: bf16 or float. */
static void *
values(size_t elems, bool bf16)
{
	static float *wide;
	static uint16_t *narrow;
	enum { PATTERN = 1 << 20 };
	size_t unit = bf16 ? 2 : 4;
	char *p;

	if (!wide) {
		wide = malloc(PATTERN * sizeof(*wide));
		narrow = malloc(PATTERN * sizeof(*narrow));
		for (size_t i = 0; wide && narrow && i < PATTERN; i++) {
			uint32_t bits;
			wide[i] = (float)(k3_rng_uniform(1, i) - 0.5);
			memcpy(&bits, &wide[i], sizeof(bits));
			narrow[i] = (uint16_t)(bits >> 16);
		}
	}
	check(cudaMalloc((void **)&p, elems * unit + 16), "cudaMalloc");
	for (size_t i = 0; i < elems; i += PATTERN) {
		size_t bytes = (elems - i < PATTERN ? elems - i : PATTERN) * unit;
		const void *from = i > 0 ? p : bf16 ? (void *)narrow : (void *)wide;
		check(cudaMemcpy(p + i * unit, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
	}
	return p;
}

static void *
copied(const void *from, size_t bytes)
{
	void *p;

	check(cudaMalloc(&p, bytes + 16), "cudaMalloc");
	check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	return p;
}

static uint32_t
push(struct set *s, void *p)
{
	s->buf[s->n] = p;
	return s->n++;
}

static void
release(struct set *sets)
{
	for (size_t i = 0; i < SETS; i++) {
		for (uint32_t k = 0; k < sets[i].n; k++)
			cudaFree(sets[i].buf[k]);
		sets[i].n = 0;
	}
}

/* Median of one call in microseconds. */
static double
measure(kernel *run, const struct set *sets, const void *args)
{
	cudaEvent_t mark[RUNS + 1];
	float ms[RUNS];

	for (size_t i = 0; i <= RUNS; i++)
		check(cudaEventCreate(&mark[i]), "cudaEventCreate");
	for (size_t i = 0; i < SETS; i++)
		run(sets[i].buf, args, &cuda);
	check(cudaEventRecord(mark[0], stream), "cudaEventRecord");
	for (size_t i = 0; i < RUNS; i++) {
		run(sets[i % SETS].buf, args, &cuda);
		check(cudaEventRecord(mark[i + 1], stream), "cudaEventRecord");
	}
	check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
	for (size_t i = 0; i < RUNS; i++)
		check(cudaEventElapsedTime(&ms[i], mark[i], mark[i + 1]), "cudaEventElapsedTime");
	for (size_t i = 0; i <= RUNS; i++)
		cudaEventDestroy(mark[i]);
	sort_times(ms, RUNS);
	return (double)ms[RUNS / 2] * 1e3;
}

static void
print(const char *name, const char *shape, double us, double bytes, double flops)
{
	printf("%s\t%s\t%.1f\t%.0f\t%.0f\n", name, shape, us, bytes / us * 1e-3, flops / us * 1e-6);
	fflush(stdout);
}

static struct k3_weight
vector(struct set *s, size_t d)
{
	struct k3_weight w = {
		.first = push(s, values(d, false)), .n = 1, .rows = 1, .cols = d, .block_rows = 1};

	return w;
}

static struct k3_list
tensors(struct set *s, uint32_t n, size_t d)
{
	struct k3_list list = {s->n, n};

	for (uint32_t i = 0; i < n; i++)
		push(s, values(T * d, true));
	return list;
}

static void
mix_fwd(uint32_t n, size_t d)
{
	struct set sets[SETS] = {0};
	struct k3_mix_norm_fwd_args a = {.t = T, .d = d, .eps = 1e-5f};
	char shape[64];

	for (size_t i = 0; i < SETS; i++) {
		struct set *s = &sets[i];
		tensors(s, 1, d);
		push(s, values(T * k3_mix_stat_len(n), false));
		tensors(s, 1, d);
		a.blocks = tensors(s, n, d);
		a.gamma = vector(s, d);
		a.rho = vector(s, d);
		a.w = vector(s, d);
		a.n_buf = s->n;
	}
	snprintf(shape, sizeof(shape), "T=%d D=%zu values=%u", T, d, n + 1);
	print("mix_norm_fwd", shape, measure(KERNEL(mix_norm_fwd, bf16), sets, &a),
	      2.0 * T * (double)d * (n + 2), 0);
	release(sets);
}

static void
mix_bwd(uint32_t n, uint32_t addends, uint32_t adds, size_t d)
{
	struct set sets[SETS] = {0};
	struct k3_mix_norm_bwd_args a = {.t = T, .d = d, .eps = 1e-5f, .blocks_accumulate = adds};
	char shape[64];

	for (size_t i = 0; i < SETS; i++) {
		struct set *s = &sets[i];
		tensors(s, 2, d);
		push(s, values(T * k3_mix_stat_len(n), false));
		tensors(s, 1, d);
		a.addends = tensors(s, addends, d);
		a.blocks = tensors(s, n, d);
		a.dblocks = tensors(s, n, d);
		a.dgamma = vector(s, d);
		a.drho = vector(s, d);
		a.dw = vector(s, d);
		a.gamma = vector(s, d);
		a.rho = vector(s, d);
		a.w = vector(s, d);
		a.n_buf = s->n;
	}
	snprintf(shape, sizeof(shape), "T=%d D=%zu values=%u%s", T, d, n + 1, adds ? " added" : "");
	print("mix_norm_bwd", shape, measure(KERNEL(mix_norm_bwd, bf16), sets, &a),
	      2.0 * T * (double)d * (3 + addends + n * (adds ? 3 : 2)), 0);
	release(sets);
}

static void
optimizer(void)
{
	static const size_t n = (size_t)BLOCK * D;
	struct set sets[SETS] = {0};
	struct k3_adamw_args a = {.beta1 = 0.9,
				  .beta2 = 0.95,
				  .eps = 1e-8,
				  .weight_decay = 0.1,
				  .params = {2, 1},
				  .exp_avg = {3, 1},
				  .exp_avg_sq = {4, 1},
				  .grads = {5, 1},
				  .n_elems = &n};
	struct k3_grad_norm_args g = {.grads = {5, 1}, .n_elems = &n};
	const double out[K3_OUT_LEN] = {[K3_OUT_COEF] = 1};
	const double hyper[K3_HYPER_LEN] = {[K3_HYPER_LR] = 1e-4, [K3_HYPER_STEP] = 2};

	for (size_t i = 0; i < SETS; i++) {
		struct set *s = &sets[i];
		push(s, copied(out, sizeof(out)));
		push(s, copied(hyper, sizeof(hyper)));
		for (int k = 0; k < 4; k++)
			push(s, values(n, false));
		check(cudaMemset(s->buf[4], 0, n * 4), "cudaMemset"); /* no root of less than 0 */
	}
	print("adamw_step", "n=16777216", measure(KERNEL(adamw_step, f32), sets, &a),
	      28.0 * (double)n, 0);
	print("grad_norm", "n=16777216", measure(KERNEL(grad_norm, f32), sets, &g), 4.0 * (double)n,
	      0);
	release(sets);
}

static void
embedding(void)
{
	struct set sets[SETS] = {0};
	struct k3_embed_args a = {.t = T, .d = D};
	int32_t ids[T];

	for (size_t i = 0; i < T; i++) /* a few ids are frequent */
		ids[i] = (int32_t)(VOCAB * pow(k3_rng_uniform(2, i), 4));
	for (size_t i = 0; i < SETS; i++) {
		struct set *s = &sets[i];
		tensors(s, 1, D);
		push(s, copied(ids, sizeof(ids)));
		a.table = (struct k3_weight){
			.first = s->n, .rows = VOCAB, .cols = D, .block_rows = BLOCK, .n = 10};
		for (int b = 0; b < 10; b++)
			push(s, i ? sets[0].buf[a.table.first + (uint32_t)b]
				  : values((size_t)BLOCK * D, false));
	}
	print("embed_fwd", "T=8192 D=1024", measure(KERNEL(embed_fwd, bf16), sets, &a), 4.0 * T * D,
	      0);
	print("embed_bwd", "T=8192 D=1024 V=163840 written",
	      measure(KERNEL(embed_bwd, bf16), sets, &a), 4.0 * VOCAB * D + 2.0 * T * D, 0);
	a.table.accumulate = 1;
	print("embed_bwd", "T=8192 D=1024 V=163840 added",
	      measure(KERNEL(embed_bwd, bf16), sets, &a), 10.0 * T * D, 0);
	for (size_t i = 1; i < SETS; i++)
		sets[i].n = 2; /* the table belongs to the first */
	release(sets);
}

/* The products of ROWS rows alone, block by block. */
static void
head_products(void *const *buf, const void *args, const struct k3_cuda *c)
{
	const struct k3_lm_head_args *a = args;
	struct k3_weight dw = a->head;

	for (uint32_t b = 0; b < a->head.n; b++)
		k3_cuda_linear_fwd(c, K3_CUDA_BF16, buf[a->logits.first + b], BLOCK, 0, buf[1], D,
				   buf, &a->head, b * (size_t)BLOCK, (b + 1) * (size_t)BLOCK, ROWS);
	for (uint32_t b = 0; b < a->head.n; b++)
		k3_cuda_linear_dx(c, K3_CUDA_BF16, buf[4], D, b > 0, buf[a->logits.first + b],
				  BLOCK, buf, &a->head, b * (size_t)BLOCK, (b + 1) * (size_t)BLOCK,
				  ROWS);
	dw.first = a->keep.first, dw.accumulate = 1;
	for (uint32_t b = 0; b < a->head.n; b++)
		k3_cuda_linear_dw(c, K3_CUDA_BF16, buf, &dw, b * (size_t)BLOCK,
				  (b + 1) * (size_t)BLOCK, buf[a->logits.first + b], BLOCK, buf[1],
				  D, ROWS);
}

/* The same with cross entropy between, as the tasks of a step run. */
static void
head_step(void *const *buf, const void *args, const struct k3_cuda *c)
{
	struct k3_lm_head_args a = *(const struct k3_lm_head_args *)args, part = a;
	uint32_t dw = a.keep.first;
	void *task[MOST];

	a.keep.n = 0;
	k3_lm_head_ce_cuda_bf16(buf, &a, c);
	memcpy(task, buf, sizeof(task));
	task[0] = buf[4];
	k3_lm_head_dx_cuda_bf16(task, &a, c);
	for (uint32_t b = 0; b < a.head.n; b++) {
		void *one[] = {buf[a.logits.first + b], buf[1], buf[dw + b]};
		part.head = (struct k3_weight){.first = 2,
					       .n = 1,
					       .rows = BLOCK,
					       .cols = D,
					       .block_rows = BLOCK,
					       .accumulate = 1};
		k3_lm_head_dw_cuda_bf16(one, &part, c);
	}
}

static void
head(void)
{
	struct set sets[SETS] = {0};
	struct k3_lm_head_args a = {.t = ROWS, .d = D, .rows = ROWS, .grad = 1};
	const double hyper[K3_HYPER_LEN] = {[K3_HYPER_INV_N] = 1.0 / T};
	int32_t labels[ROWS];
	double flops = 6.0 * ROWS * (double)VOCAB * D, bytes = 6.0 * ROWS * (double)VOCAB;

	for (size_t i = 0; i < ROWS; i++)
		labels[i] = (int32_t)(k3_rng_bits(3, i) % VOCAB);
	for (size_t i = 0; i < SETS; i++) {
		struct set *s = &sets[i];
		if (i > 0) {
			*s = sets[0]; /* 1.3 GB: larger than any cache */
			continue;
		}
		push(s, values(2 * ROWS, false));
		push(s, values((size_t)ROWS * D, true));
		push(s, copied(labels, sizeof(labels)));
		push(s, copied(hyper, sizeof(hyper)));
		push(s, values((size_t)ROWS * D, true));
		a.logits = (struct k3_list){s->n, 10};
		for (int b = 0; b < 10; b++)
			push(s, values((size_t)ROWS * BLOCK, true));
		a.head = (struct k3_weight){
			.first = s->n, .n = 10, .rows = VOCAB, .cols = D, .block_rows = BLOCK};
		for (int b = 0; b < 10; b++)
			push(s, values((size_t)BLOCK * D, true));
		a.keep = (struct k3_list){s->n, 10}; /* gradients of the head */
		for (int b = 0; b < 10; b++)
			push(s, values((size_t)BLOCK * D, false));
	}
	print("head products", "rows=1024 D=1024 V=163840",
	      measure((kernel *)head_products, sets, &a), bytes, flops);
	print("head and loss", "rows=1024 D=1024 V=163840", measure((kernel *)head_step, sets, &a),
	      bytes, flops);
	a.keep.n = 0;
	print("lm_head_ce", "rows=1024 D=1024 V=163840",
	      measure(KERNEL(lm_head_ce, bf16), sets, &a), bytes, flops / 3);
	for (size_t i = 1; i < SETS; i++)
		sets[i].n = 0;
	release(sets);
}

int
main(void)
{
	static const uint32_t blocks[] = {0, 1, 2, 8};
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		fprintf(stderr, "there is no CUDA device\n");
		return 77; /* automake's skip */
	}
	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	if (k3_cuda_init(&cuda, stream, SCRATCH) != 0)
		return 1;
	printf("op\tshape\tus\tgb_per_s\ttflop_per_s\n");
	for (size_t i = 0; i < 2 * sizeof(blocks) / sizeof(blocks[0]); i++) {
		uint32_t n_blocks = blocks[i / 2];
		size_t d = i % 2 ? WIDE : D;
		mix_fwd(n_blocks, d);
		mix_bwd(n_blocks, 2, 0, d);
		if (n_blocks)
			mix_bwd(n_blocks, 2, 1, d);
	}
	optimizer();
	embedding();
	head();
	k3_cuda_fini(&cuda);
	return cudaStreamDestroy(stream) == cudaSuccess ? 0 : 1;
}
