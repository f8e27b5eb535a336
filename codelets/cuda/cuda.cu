/* A stream's surroundings, and the checks of every status. */
#include "cuda.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "../../common/log.h"
#include "../../common/status.h"
}
#include "gemm_plans.h"

void
k3_cuda_check(int error, const char *what, const char *file, int line)
{
	if (error == cudaSuccess)
		return;
	k3_error("codelets", "%s:%d: %s: %s (%d)", file, line, what,
		 cudaGetErrorString((cudaError_t)error), error);
	abort();
}

void
k3_cublas_check(int status, const char *what, const char *file, int line)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return;
	k3_error("codelets", "%s:%d: %s: %s (%d)", file, line, what,
		 cublasLtGetStatusString((cublasStatus_t)status), status);
	abort();
}

/* Memory of the device, or a log line with what was asked for. */
static int
device_alloc(void **p, size_t bytes, const char *what)
{
	cudaError_t error = bytes ? cudaMalloc(p, bytes) : cudaSuccess;

	if (error == cudaSuccess)
		return K3_OK;
	k3_error("codelets", "%zu bytes of device memory for %s: %s", bytes, what,
		 cudaGetErrorString(error));
	return K3_ENOMEM;
}

int
k3_cuda_init(struct k3_cuda *cuda, void *stream, size_t scratch_bytes)
{
	int device, processors, ret;

	memset(cuda, 0, sizeof(*cuda));
	cuda->stream = stream;
	if (cudaGetDevice(&device) != cudaSuccess ||
	    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
		    cudaSuccess ||
	    cublasLtCreate((cublasLtHandle_t *)&cuda->blas) != CUBLAS_STATUS_SUCCESS) {
		k3_error("codelets", "the CUDA device cannot be used: %s",
			 cudaGetErrorString(cudaGetLastError()));
		return K3_ENODEV;
	}
	cuda->processors = (uint32_t)processors;
	cuda->gemm = k3i_cuda_gemm_plans_create();
	ret = cuda->gemm ? K3_OK : K3_ENOMEM;
	if (ret == K3_OK)
		ret = device_alloc(&cuda->scratch, scratch_bytes, "scratch");
	if (ret == K3_OK)
		ret = device_alloc(&cuda->blas_work, K3_CUDA_BLAS_BYTES, "cuBLAS");
	if (ret == K3_OK)
		ret = device_alloc(&cuda->sum, K3_CUDA_SUM_BYTES, "sums");
	cuda->scratch_bytes = scratch_bytes;
	cuda->blas_work_bytes = K3_CUDA_BLAS_BYTES;
	cuda->sum_bytes = K3_CUDA_SUM_BYTES;
	if (ret != K3_OK)
		k3_cuda_fini(cuda);
	return ret;
}

void
k3_cuda_fini(struct k3_cuda *cuda)
{
	k3i_cuda_gemm_plans_destroy(cuda->gemm);
	if (cuda->blas)
		cublasLtDestroy((cublasLtHandle_t)cuda->blas);
	if (cuda->scratch)
		cudaFree(cuda->scratch);
	if (cuda->blas_work)
		cudaFree(cuda->blas_work);
	if (cuda->sum)
		cudaFree(cuda->sum);
	memset(cuda, 0, sizeof(*cuda));
}
