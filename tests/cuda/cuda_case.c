/* See cuda_case.h.  Guards of poison around every device buffer show writes out of bounds. */
#include "cuda_case.h"

#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/op/op.h"
#include "../../common/rng.h"
#include "../../common/status.h"

enum { GUARD_BYTES = 512, POISON = 0xff }; /* all ones: NaN in every floating type */

void
cuda_case_need_device(void)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
		cr_skip_test("there is no CUDA device");
}

void
cuda_case_begin(struct cuda_case *c, uint64_t seed)
{
	memset(c, 0, sizeof(*c));
	c->seed = seed;
}

void
cuda_case_end(struct cuda_case *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->operand[i].host);
	c->n = 0;
}

static size_t
host_bytes(const struct cuda_operand *o)
{
	switch (o->type) {
	case CUDA_F64:
		return 8 * o->elems;
	case CUDA_WORK:
		return o->elems;
	default:
		return 4 * o->elems;
	}
}

static struct cuda_operand *
add(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode, size_t elems,
    const char *name)
{
	struct cuda_operand *o = &c->operand[c->n++];

	cr_assert(c->n <= CUDA_CASE_MAX);
	*o = (struct cuda_operand){.type = type, .mode = mode, .elems = elems, .name = name};
	o->host = malloc(host_bytes(o) + 1);
	cr_assert_not_null(o->host);
	memset(o->host, POISON, host_bytes(o));
	return o;
}

uint32_t
cuda_case_add(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
	      size_t elems, double scale, const char *name)
{
	struct cuda_operand *o = add(c, type, mode, elems, name);
	uint64_t key = k3_rng_key(name, c->seed + c->n);

	for (size_t i = 0; mode != CUDA_W && i < elems && type <= CUDA_F32; i++)
		((float *)o->host)[i] = (float)(scale * k3_rng_normal(key, i, INFINITY));
	return (uint32_t)c->n - 1;
}

uint32_t
cuda_case_values(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
		 size_t elems, const void *values, const char *name)
{
	struct cuda_operand *o = add(c, type, mode, elems, name);

	memcpy(o->host, values, host_bytes(o));
	return (uint32_t)c->n - 1;
}

struct k3_weight
cuda_case_weight(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
		 size_t rows, size_t cols, size_t block_rows, double scale, const char *name)
{
	struct k3_weight w = {.first = (uint32_t)c->n,
			      .rows = rows,
			      .cols = cols,
			      .block_rows = block_rows,
			      .accumulate = mode == CUDA_RW};

	for (size_t row = 0; row < rows; row += block_rows, w.n++)
		cuda_case_add(c, type, mode,
			      (rows - row < block_rows ? rows - row : block_rows) * cols, scale,
			      name);
	return w;
}

struct k3_list
cuda_case_list(struct cuda_case *c, enum cuda_operand_type type, enum cuda_operand_mode mode,
	       size_t n, size_t elems, double scale, const char *name)
{
	struct k3_list list = {(uint32_t)c->n, (uint32_t)n};

	for (size_t i = 0; i < n; i++)
		cuda_case_add(c, type, mode, elems, scale, name);
	return list;
}

void
cuda_case_tolerance(struct cuda_case *c, double f32, double bf16)
{
	c->operand[c->n - 1].tolerance_f32 = f32;
	c->operand[c->n - 1].tolerance_bf16 = bf16;
}

static uint16_t
to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float
from_bf16(uint16_t x)
{
	uint32_t u = (uint32_t)x << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

/* Inputs of the bf16 run are those that bf16 can hold, for both kernels. */
static void
round_inputs(struct cuda_case *c)
{
	for (size_t i = 0; i < c->n; i++) {
		struct cuda_operand *o = &c->operand[i];
		float *x = o->host;
		for (size_t k = 0; o->type == CUDA_T && k < o->elems; k++)
			x[k] = from_bf16(to_bf16(x[k]));
	}
}

static size_t
device_bytes(const struct cuda_operand *o, bool bf16)
{
	return o->type == CUDA_T && bf16 ? 2 * o->elems : host_bytes(o);
}

/* Host values as they lie on the device, malloc'ed. */
static void *
packed(const struct cuda_operand *o, bool bf16)
{
	size_t bytes = device_bytes(o, bf16);
	unsigned char *out = malloc(bytes + 1);

	cr_assert_not_null(out);
	if (o->mode == CUDA_W) {
		memset(out, POISON, bytes);
	} else if (o->type == CUDA_T && bf16) {
		for (size_t i = 0; i < o->elems; i++)
			((uint16_t *)out)[i] = to_bf16(((const float *)o->host)[i]);
	} else {
		memcpy(out, o->host, bytes);
	}
	return out;
}

static void
check(cudaError_t error, const char *what)
{
	cr_assert_eq(error, cudaSuccess, "%s: %s", what, cudaGetErrorString(error));
}

static void
upload(void **base, void **buf, struct cuda_case *c, bool bf16)
{
	for (size_t i = 0; i < c->n; i++) {
		size_t bytes = device_bytes(&c->operand[i], bf16);
		void *values = packed(&c->operand[i], bf16);
		check(cudaMalloc(&base[i], bytes + 2 * GUARD_BYTES), "cudaMalloc");
		check(cudaMemset(base[i], POISON, bytes + 2 * GUARD_BYTES), "cudaMemset");
		buf[i] = (char *)base[i] + GUARD_BYTES;
		check(cudaMemcpy(buf[i], values, bytes, cudaMemcpyHostToDevice), "upload");
		free(values);
	}
}

/* Device bytes of a buffer, malloc'ed; its guards must be as they were. */
static void *
download(void *base, const struct cuda_operand *o, bool bf16, const char *name)
{
	size_t bytes = device_bytes(o, bf16), all = bytes + 2 * GUARD_BYTES, bad = 0;
	unsigned char *whole = malloc(all);

	cr_assert_not_null(whole);
	check(cudaMemcpy(whole, base, all, cudaMemcpyDeviceToHost), "download");
	for (size_t i = 0; i < GUARD_BYTES; i++)
		bad += (whole[i] != POISON) + (whole[GUARD_BYTES + bytes + i] != POISON);
	cr_expect_eq(bad, 0, "%s, %s: %zu bytes beside the buffer were written", name, o->name,
		     bad);
	memmove(whole, whole + GUARD_BYTES, bytes);
	return whole;
}

static double
value_at(const struct cuda_operand *o, const void *data, size_t i, bool bf16)
{
	if (o->type == CUDA_F64)
		return ((const double *)data)[i];
	if (o->type == CUDA_T && bf16)
		return (double)from_bf16(((const uint16_t *)data)[i]);
	return (double)((const float *)data)[i];
}

static void
compare_floats(const struct cuda_operand *o, const void *want, const void *got, bool bf16,
	       const char *name)
{
	double tolerance = bf16 ? o->tolerance_bf16 : o->tolerance_f32, err = 0, ref = 0, ratio;
	size_t unwritten = 0;

	if (tolerance == 0)
		tolerance = o->type == CUDA_F64 ? 1e-12 : bf16 ? 5e-3 : 1e-5;
	for (size_t i = 0; i < o->elems; i++) {
		double w = value_at(o, want, i, false), g = value_at(o, got, i, bf16);
		if (isinf(w) && w == g)
			continue;
		unwritten += !isfinite(g);
		err += (g - w) * (g - w);
		ref += w * w;
	}
	cr_expect_eq(unwritten, 0, "%s %s, %s: %zu of %zu elements are not finite", name,
		     bf16 ? "bf16" : "f32", o->name, unwritten, o->elems);
	ratio = ref > 0 ? sqrt(err / ref) : sqrt(err);
	cr_expect(ratio <= tolerance, "%s %s, %s: RMS ratio %.3g, at most %.3g", name,
		  bf16 ? "bf16" : "f32", o->name, ratio, tolerance);
	if (getenv("K3_CUDA_TABLE"))
		fprintf(stderr, "%s\t%s\t%s\t%.3g\t%.3g\n", name, bf16 ? "bf16" : "f32", o->name,
			ratio, tolerance);
}

static void
compare_one(const struct cuda_operand *o, const void *want, const void *got, bool bf16,
	    const char *name)
{
	size_t differ = 0;

	if (o->type == CUDA_WORK || !(o->mode & CUDA_W))
		return;
	if (o->type != CUDA_I32) {
		compare_floats(o, want, got, bf16, name);
		return;
	}
	for (size_t i = 0; i < o->elems; i++)
		differ += ((const int32_t *)want)[i] != ((const int32_t *)got)[i];
	cr_expect_eq(differ, 0, "%s, %s: %zu of %zu integers differ", name, o->name, differ,
		     o->elems);
}

/* The CPU kernel on copies; results stay in the copies. */
static void
run_cpu(struct cuda_case *c, void **buf, void *args, cuda_case_cpu *cpu)
{
	for (size_t i = 0; i < c->n; i++) {
		size_t bytes = host_bytes(&c->operand[i]);
		/* kernels may read whole registers */
		buf[i] = aligned_alloc(64, (bytes + 127) / 64 * 64);
		cr_assert_not_null(buf[i]);
		memcpy(buf[i], c->operand[i].host, bytes);
	}
	cpu(buf, args);
}

static void
run_cuda(struct cuda_case *c, const char *name, void *const *want, void *args,
	 cuda_case_cuda *kernel, size_t scratch, bool bf16)
{
	void *base[CUDA_CASE_MAX], *buf[CUDA_CASE_MAX], *first[CUDA_CASE_MAX];
	struct k3_cuda cuda;
	cudaStream_t stream;

	check(cudaStreamCreate(&stream), "cudaStreamCreate");
	cr_assert_eq(k3_cuda_init(&cuda, stream, scratch), K3_OK);
	for (int run = 0; run < 2; run++) {
		upload(base, buf, c, bf16);
		if (scratch)
			check(cudaMemset(cuda.scratch, POISON, scratch), "cudaMemset");
		check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
		kernel(buf, args, &cuda);
		check(cudaStreamSynchronize(stream), name);
		for (size_t i = 0; i < c->n; i++) {
			const struct cuda_operand *o = &c->operand[i];
			void *got = download(base[i], o, bf16, name);
			if (run == 0) {
				compare_one(o, want[i], got, bf16, name);
				first[i] = got;
			} else {
				if (o->type != CUDA_WORK)
					cr_expect_arr_eq(got, first[i], device_bytes(o, bf16),
							 "%s, %s: other bits when repeated", name,
							 o->name);
				free(got);
				free(first[i]);
			}
			check(cudaFree(base[i]), "cudaFree");
		}
	}
	k3_cuda_fini(&cuda);
	check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void
cuda_case_compare(struct cuda_case *c, const char *name, void *args, cuda_case_cpu *cpu,
		  cuda_case_cuda *f32, cuda_case_cuda *bf16, size_t scratch)
{
	void *want[CUDA_CASE_MAX];

	((struct k3_args_head *)args)->n_buf = (uint32_t)c->n;
	for (int type = 0; type < 2; type++) {
		cuda_case_cuda *kernel = type ? bf16 : f32;
		if (!kernel)
			continue;
		if (type)
			round_inputs(c);
		run_cpu(c, want, args, cpu);
		run_cuda(c, name, want, args, kernel, scratch, type);
		for (size_t i = 0; i < c->n; i++)
			free(want[i]);
	}
}
