/* Cases of `k3_bench op` on a device.
 *
 * Buffers that a case has built on the host are copied there, in bf16 mode rounded on both sides,
 * the CUDA kernels take the same arguments, and what they have written comes back as floats, with
 * the guards behind it.  The trap: a case that fits in the device's cache would be timed from
 * there, and limits, which run in between, empty it. */
#include "bench.h"

#include "../../common/log.h"

#ifdef K3_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "../../codelets/cuda/kernels.h"
#include "../../codelets/vec/vec.h"
#include "../../drivers/bench_device.h"

typedef void run_func(void *const *buf, const void *args, const struct k3_cuda *cuda);
typedef size_t scratch_func(const void *args);

#define X(op, arguments, stem, has_scratch)                                                        \
	static void run_f32_##op(void *const *buf, const void *a, const struct k3_cuda *cuda)      \
	{                                                                                          \
		k3_##stem##_cuda_f32(buf, a, cuda);                                                \
	}                                                                                          \
	static void run_bf16_##op(void *const *buf, const void *a, const struct k3_cuda *cuda)     \
	{                                                                                          \
		k3_##stem##_cuda_bf16(buf, a, cuda);                                               \
	}
K3_CUDA_OP_MAP(X)
#undef X

#define SCRATCH_0(stem) NULL
#define SCRATCH_1(stem) (scratch_func *)(void (*)(void))k3_##stem##_cuda_scratch
static const struct {
	run_func *run[2];
	scratch_func *scratch;
} kernels[K3_N_OPS] = {
#define X(op, arguments, stem, has_scratch)                                                        \
	[K3_OP_##op] = {{run_f32_##op, run_bf16_##op}, SCRATCH_##has_scratch(stem)},
	K3_CUDA_OP_MAP(X)
#undef X
};

static bool
is_narrow(const struct bench_case *c, const struct bench_memory *m)
{
	return m->type == BENCH_T && c->b->bf16;
}

static size_t
device_bytes(const struct bench_case *c, const struct bench_memory *m)
{
	return is_narrow(c, m) ? m->bytes / 2 : m->bytes;
}

/* Rounds the host's floats, too. */
static void
upload(const struct bench_case *c, struct bench_memory *m)
{
	size_t bytes = device_bytes(c, m);
	uint16_t *narrow = NULL;

	if (cudaMalloc(&m->device, bytes + BENCH_GUARD_BYTES) != cudaSuccess) {
		k3_error("drivers", "%s needs %zu more bytes of the device", c->name, bytes);
		k3_abort(__FILE__, __LINE__, "out of memory on the device");
	}
	K3_CUDA_CHECK(cudaMemset((char *)m->device + bytes, BENCH_GUARD_BYTE, BENCH_GUARD_BYTES));
	if (m->type == BENCH_WORK)
		return;
	if (is_narrow(c, m)) {
		narrow = malloc(bytes + 2);
		K3_ASSERT(narrow);
		k3_vec()->to_bf16(narrow, m->host, bytes / 2);
		k3_vec()->from_bf16(m->host, narrow, bytes / 2);
	}
	K3_CUDA_CHECK(cudaMemcpy(m->device, narrow ? (void *)narrow : m->host, bytes,
				 cudaMemcpyHostToDevice));
	free(narrow);
}

static void
download(const struct bench_case *c, const struct bench_memory *m)
{
	size_t bytes = device_bytes(c, m);
	char *from = malloc(bytes + BENCH_GUARD_BYTES);

	K3_ASSERT(from);
	K3_CUDA_CHECK(
		cudaMemcpy(from, m->device, bytes + BENCH_GUARD_BYTES, cudaMemcpyDeviceToHost));
	if (is_narrow(c, m))
		k3_vec()->from_bf16(m->host, (uint16_t *)(void *)from, bytes / 2);
	else
		memcpy(m->host, from, bytes);
	memcpy((char *)m->host + m->bytes, from + bytes, BENCH_GUARD_BYTES);
	free(from);
}

struct ready {
	void *buf[BENCH_CALLS][BENCH_BUFFERS];
};

static void
upload_all(struct bench_case *c, struct ready *r)
{
	size_t scratch = 0;

	for (size_t k = 0; k < c->n_calls; k++) {
		const struct bench_call *call = &c->call[k];
		size_t bytes =
			kernels[call->op].scratch ? kernels[call->op].scratch(call->args) : 0;
		scratch = bytes > scratch ? bytes : scratch;
		for (uint32_t i = 0; i < call->n; i++) {
			struct bench_memory *m = bench_record(c, call->buf[i]);
			if (!m->device)
				upload(c, m);
			r->buf[k][i] = m->device;
		}
	}
	k3i_device_scratch(c->b->device, scratch);
}

static void
launch(const struct bench_case *c, size_t k, const struct ready *r)
{
	const struct bench_call *call = &c->call[k];

	kernels[call->op].run[c->b->bf16](r->buf[k], call->args, k3i_device_cuda(c->b->device));
}

void
bench_device_run(struct bench_case *c)
{
	struct ready r;

	upload_all(c, &r);
	for (size_t k = 0; k < c->n_calls; k++)
		launch(c, k, &r);
	k3i_device_wait(c->b->device);
	for (size_t i = 0; i < c->n_memory; i++)
		if (c->memory[i].device && c->memory[i].written)
			download(c, &c->memory[i]);
}

/* Each buffer once for each way that its content goes. */
static double
bytes_of(struct bench_case *c, const struct bench_call *call)
{
	double bytes = -call->unmoved_bytes;

	for (uint32_t i = 0; i < call->n; i++) {
		const struct bench_memory *m = bench_record(c, call->buf[i]);
		bool before = m->type == BENCH_WORK;
		for (uint32_t j = 0; j < i; j++)
			before |= call->buf[j] == call->buf[i];
		if (!before)
			bytes += (double)device_bytes(c, m) * (m->read + m->written);
	}
	return bytes;
}

void
bench_device_measure(struct bench_case *c, double *limit_rate)
{
	enum k3i_device_limit limit =
		c->limit == BENCH_MEMORY ? K3I_DEVICE_COPY : K3I_DEVICE_PRODUCT;
	struct k3i_device *d = c->b->device;
	size_t repeat = c->b->repeat, each = c->n_calls + 2;
	struct ready r;
	double amount = 0;

	K3_ASSERT((repeat + 1) * each <= K3I_DEVICE_MARKS);
	upload_all(c, &r);
	for (size_t k = 0; k < c->n_calls; k++) {
		c->call[k].seconds = bench_memory(c, repeat * sizeof(double));
		c->call[k].traffic_bytes = bytes_of(c, &c->call[k]);
	}
	/* the first round warms up and is left out; nothing waits before the last */
	for (size_t round = 0; round <= repeat; round++) {
		for (size_t k = 0; k < c->n_calls; k++) {
			k3i_device_mark(d, round * each + k);
			launch(c, k, &r);
		}
		k3i_device_mark(d, round * each + c->n_calls);
		amount = k3i_device_launch(d, limit);
		k3i_device_mark(d, round * each + c->n_calls + 1);
	}
	k3i_device_wait(d);
	for (size_t i = 0; i < repeat; i++) {
		size_t at = (i + 1) * each;
		for (size_t k = 0; k < c->n_calls; k++)
			c->call[k].seconds[i] = k3i_device_seconds(d, at + k, at + k + 1);
		limit_rate[i] =
			amount / k3i_device_seconds(d, at + c->n_calls, at + c->n_calls + 1);
	}
}

void
bench_device_release(struct bench_case *c)
{
	for (size_t i = 0; i < c->n_memory; i++)
		if (c->memory[i].device)
			K3_CUDA_CHECK(cudaFree(c->memory[i].device));
}

#else

/* Without CUDA no device was opened, and nothing of this is called but the release. */
void
bench_device_run(struct bench_case *c)
{
	(void)c;
}

void
bench_device_measure(struct bench_case *c, double *limit_rate)
{
	(void)c;
	(void)limit_rate;
}

void
bench_device_release(struct bench_case *c)
{
	(void)c;
}

#endif
