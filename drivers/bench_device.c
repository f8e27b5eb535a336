/* Limits of a device, and marks on its stream.  The trap: a device warms up and throttles, so a figure is
 * only judged by a limit that was measured beside it. */
#include "bench_device.h"

#include "../common/log.h"
#include "../common/status.h"

#ifdef K3_HAVE_CUDA
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "../codelets/cuda/gemm.h"
#include "median.h"

enum { RUNS = 5 };
static const size_t copy_bytes = (size_t)512 << 20;

struct k3i_device {
	struct k3_cuda cuda;
	cudaStream_t stream;
	char *from, *to; /* the product's factors lie in one, the result in the other */
	bool bf16;
	size_t own_bytes;		    /* what opening took */
	cudaEvent_t mark[K3I_DEVICE_MARKS]; /* made when they are set first */
};

static size_t
side(const struct k3i_device *d)
{
	return d->bf16 ? 8192 : 4096;
}

/* Numbers of either sign; zeros would cost the device less power than any real matrix. */
static int
fill(struct k3i_device *d)
{
	size_t n = (size_t)1 << 22;
	uint16_t *x = malloc(n * sizeof(*x));
	uint64_t state = 1;

	if (!x)
		return K3_ENOMEM;
	for (size_t i = 0; i < n; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		/* sign, exponent of numbers in 1/8 .. 2, and bits: as bf16 or as half of a float */
		x[i] = (uint16_t)((state >> 63) << 15 | (0x3e00 + (state >> 40) % 0x0200));
	}
	for (size_t at = 0; at < copy_bytes; at += n * sizeof(*x)) {
		K3_CUDA_CHECK(cudaMemcpy(d->from + at, x, n * sizeof(*x), cudaMemcpyHostToDevice));
		K3_CUDA_CHECK(cudaMemcpy(d->to + at, x, n * sizeof(*x), cudaMemcpyHostToDevice));
	}
	free(x);
	return K3_OK;
}

static int
take(struct k3i_device *d, size_t scratch_bytes)
{
	size_t before, after, all;
	int n = 0, ret;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
		k3_error("drivers", "there is no CUDA device");
		return K3_ENODEV;
	}
	K3_CUDA_CHECK(cudaSetDevice(0));
	K3_CUDA_CHECK(cudaMemGetInfo(&before, &all));
	K3_CUDA_CHECK(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
	K3_TRY(k3_cuda_init(&d->cuda, d->stream, scratch_bytes));
	if (cudaMalloc((void **)&d->from, copy_bytes) != cudaSuccess ||
	    cudaMalloc((void **)&d->to, copy_bytes) != cudaSuccess) {
		k3_error("drivers", "the device has no 1 GiB left for a copy");
		K3_TRY(K3_ENOMEM);
	}
	K3_TRY(fill(d));
	K3_CUDA_CHECK(cudaMemGetInfo(&after, &all));
	d->own_bytes = before > after ? before - after : 0;
out:
	return ret;
}

int
k3i_device_open(struct k3i_device **device, bool bf16, size_t scratch_bytes)
{
	struct k3i_device *d = calloc(1, sizeof(*d));
	int ret;

	*device = NULL;
	K3_TRY(d ? K3_OK : K3_ENOMEM);
	d->bf16 = bf16;
	K3_TRY(take(d, scratch_bytes));
	*device = d;
	d = NULL;
out:
	k3i_device_close(d);
	return ret;
}

void
k3i_device_close(struct k3i_device *device)
{
	if (!device)
		return;
	for (size_t i = 0; i < K3I_DEVICE_MARKS; i++)
		if (device->mark[i])
			K3_CUDA_CHECK(cudaEventDestroy(device->mark[i]));
	if (device->from)
		K3_CUDA_CHECK(cudaFree(device->from));
	if (device->to)
		K3_CUDA_CHECK(cudaFree(device->to));
	k3_cuda_fini(&device->cuda);
	if (device->stream)
		K3_CUDA_CHECK(cudaStreamDestroy(device->stream));
	free(device);
}

void
k3i_device_scratch(struct k3i_device *device, size_t bytes)
{
	if (bytes <= device->cuda.scratch_bytes)
		return;
	k3i_device_wait(device);
	k3_cuda_fini(&device->cuda);
	if (k3_cuda_init(&device->cuda, device->stream, bytes) != K3_OK)
		k3_abort(__FILE__, __LINE__, "no scratch on the device");
}

const struct k3_cuda *
k3i_device_cuda(const struct k3i_device *device)
{
	return &device->cuda;
}

void
k3i_device_name(char *name, size_t bytes)
{
	struct cudaDeviceProp p;
	int driver;

	K3_CUDA_CHECK(cudaGetDeviceProperties(&p, 0));
	K3_CUDA_CHECK(cudaDriverGetVersion(&driver));
	snprintf(name, bytes, "%s, %d multiprocessors, driver %d.%d", p.name, p.multiProcessorCount,
		 driver / 1000, driver % 1000 / 10);
}

double
k3i_device_bytes_used(const struct k3i_device *device)
{
	size_t left, all;

	K3_CUDA_CHECK(cudaMemGetInfo(&left, &all));
	return (double)(all - left) - (double)device->own_bytes;
}

double
k3i_device_launch(const struct k3i_device *d, enum k3i_device_limit limit)
{
	size_t n = side(d);
	struct k3_cuda_product p = {
		.m = n,
		.n = n,
		.k = n,
		.a = d->from,
		.b = d->from + n * n * (d->bf16 ? 2 : 4),
		.c = d->to,
		.lda = n,
		.ldb = n,
		.ldc = n,
		.trans_b = 1,
		.alpha = 1,
		.type = d->bf16 ? K3_CUDA_BF16 : K3_CUDA_F32,
		.type_c = d->bf16 ? K3_CUDA_BF16 : K3_CUDA_F32,
	};

	if (limit == K3I_DEVICE_COPY) {
		K3_CUDA_CHECK(cudaMemcpyAsync(d->to, d->from, copy_bytes, cudaMemcpyDeviceToDevice,
					      d->stream));
		return 2 * (double)copy_bytes;
	}
	k3_cuda_gemm(&d->cuda, &p);
	return 2 * (double)n * (double)n * (double)n;
}

double
k3i_device_rate(const struct k3i_device *d, enum k3i_device_limit limit)
{
	cudaEvent_t mark[RUNS + 1];
	double rate[RUNS], amount;
	float ms;

	(void)k3i_device_launch(d, limit);
	for (int i = 0; i <= RUNS; i++)
		K3_CUDA_CHECK(cudaEventCreate(&mark[i]));
	K3_CUDA_CHECK(cudaEventRecord(mark[0], d->stream));
	for (int i = 0; i < RUNS; i++) {
		amount = k3i_device_launch(d, limit);
		K3_CUDA_CHECK(cudaEventRecord(mark[i + 1], d->stream));
	}
	K3_CUDA_CHECK(cudaStreamSynchronize(d->stream));
	for (int i = 0; i < RUNS; i++) {
		K3_CUDA_CHECK(cudaEventElapsedTime(&ms, mark[i], mark[i + 1]));
		rate[i] = amount / (1e-3 * (double)ms);
	}
	for (int i = 0; i <= RUNS; i++)
		K3_CUDA_CHECK(cudaEventDestroy(mark[i]));
	return k3i_median(rate, RUNS);
}

void
k3i_device_mark(struct k3i_device *device, size_t i)
{
	if (!device->mark[i])
		K3_CUDA_CHECK(cudaEventCreate(&device->mark[i]));
	K3_CUDA_CHECK(cudaEventRecord(device->mark[i], device->stream));
}

void
k3i_device_wait(const struct k3i_device *device)
{
	K3_CUDA_CHECK(cudaStreamSynchronize(device->stream));
}

double
k3i_device_seconds(const struct k3i_device *device, size_t from, size_t to)
{
	float ms;

	K3_CUDA_CHECK(cudaEventElapsedTime(&ms, device->mark[from], device->mark[to]));
	return 1e-3 * (double)ms;
}

#else

int
k3i_device_open(struct k3i_device **device, bool bf16, size_t scratch_bytes)
{
	(void)bf16;
	(void)scratch_bytes;
	*device = NULL;
	k3_error("drivers", "this build has no CUDA: configure --with-cuda is needed");
	return K3_ENODEV;
}

/* Nothing below is called without a device. */
void
k3i_device_close(struct k3i_device *device)
{
	(void)device;
}

void
k3i_device_name(char *name, size_t bytes)
{
	(void)bytes;
	*name = 0;
}

double
k3i_device_bytes_used(const struct k3i_device *device)
{
	(void)device;
	return 0;
}

double
k3i_device_rate(const struct k3i_device *device, enum k3i_device_limit limit)
{
	(void)device;
	(void)limit;
	return 0;
}

#endif
