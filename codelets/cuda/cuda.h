/* What a CUDA kernel gets besides buffers and arguments, and the shape of all of them.
 *
 *   void k3_<op>_cuda_f32(void *const *buf, const struct k3_<op>_args *a,
 *                          const struct k3_cuda *cuda);
 *   void k3_<op>_cuda_bf16(... the same ...);
 *   size_t k3_<op>_cuda_scratch(const struct k3_<op>_args *a);
 *
 * buf[] and arguments are those of the CPU kernel (common/op), with device pointers.  Everything is
 * launched on cuda->stream and nothing waits.  Scratch belongs to the stream: a task may use all of
 * it, its content means nothing to the next; k3_<op>_cuda_scratch says how many bytes a task needs,
 * whatever the type (no such function: none).
 *
 * Types of the bf16 kernels: operands that the contract marks (f32), parameter vectors, gradients
 * of parameters and states stay float; all other floating operands are bf16.  Arithmetic is float
 * (model.md 0): operands are widened, results rounded once.
 *
 * The bits depend on the arguments alone: sums have one order, no atomics on floating numbers.
 */
#ifndef K3_CUDA_CUDA_H
#define K3_CUDA_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct k3_cuda_gemm_plans;

/* Of each stream: cuBLAS's work space; float sums that are rounded at their end. */
enum { K3_CUDA_BLAS_BYTES = 64 << 20, K3_CUDA_SUM_BYTES = 32 << 20 };

struct k3_cuda {
	void *stream; /* cudaStream_t */
	void *scratch;
	size_t scratch_bytes;
	void *blas; /* cublasLtHandle_t */
	void *blas_work;
	size_t blas_work_bytes;
	void *sum; /* of linear.cu; nothing in it outlives a call */
	size_t sum_bytes;
	struct k3_cuda_gemm_plans *gemm; /* of this stream: shapes seen and how they are run */
	uint32_t processors;		 /* multiprocessors of the device */
};

/**
 * For the current device: allocates scratch and cuBLAS's work space.  Not in a task.
 * @param stream  cudaStream_t
 * @return K3_OK, K3_ENOMEM, K3_ENODEV (logged)
 */
int k3_cuda_init(struct k3_cuda *cuda, void *stream, size_t scratch_bytes);
/** One that is all zero is legal. */
void k3_cuda_fini(struct k3_cuda *cuda);

/** Aborts, with file and line, unless a cudaError_t is cudaSuccess. */
void k3_cuda_check(int error, const char *what, const char *file, int line);
/** The same for a cublasStatus_t. */
void k3_cublas_check(int status, const char *what, const char *file, int line);

#define K3_CUDA_CHECK(call) k3_cuda_check((int)(call), #call, __FILE__, __LINE__)
#define K3_CUBLAS_CHECK(call) k3_cublas_check((int)(call), #call, __FILE__, __LINE__)
/* After a launch. */
#define K3_CUDA_LAUNCHED(what) k3_cuda_check((int)cudaGetLastError(), what, __FILE__, __LINE__)

#ifdef __cplusplus
}
#endif
#endif
