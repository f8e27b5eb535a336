/* Products by cuBLASLt.
 *
 * cuBLAS is column-major: a row-major C = A B is computed as C^T = B^T A^T, so operands change
 * places.  The heuristic costs tens of microseconds of host time, so its answer is kept per shape
 * and stream; a full table is begun anew.  The trap: an answer depends on the alignment of
 * pointers, which is part of the key.
 */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "gemm_plans.h"

enum { TABLE = 1024 };

struct key {
	size_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
	int trans_a, trans_b, type, type_c, aligned, beta;
};

struct entry {
	struct key key;
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t a, b, c;
	cublasLtMatmulAlgo_t algo;
	bool used;
};

struct k3_cuda_gemm_plans {
	struct entry entry[TABLE];
	size_t n;
};

struct k3_cuda_gemm_plans *
k3i_cuda_gemm_plans_create(void)
{
	return (struct k3_cuda_gemm_plans *)calloc(1, sizeof(struct k3_cuda_gemm_plans));
}

static void
forget(struct k3_cuda_gemm_plans *plans)
{
	for (size_t i = 0; i < TABLE; i++) {
		struct entry *e = &plans->entry[i];
		if (!e->used)
			continue;
		cublasLtMatmulDescDestroy(e->op);
		cublasLtMatrixLayoutDestroy(e->a);
		cublasLtMatrixLayoutDestroy(e->b);
		cublasLtMatrixLayoutDestroy(e->c);
	}
	memset(plans, 0, sizeof(*plans));
}

void
k3i_cuda_gemm_plans_destroy(struct k3_cuda_gemm_plans *plans)
{
	if (plans)
		forget(plans);
	free(plans);
}

static cudaDataType_t
data_type(int type)
{
	return type == K3_CUDA_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasLtMatrixLayout_t
layout(int type, size_t rows, size_t cols, size_t ld, size_t batch, size_t stride)
{
	cublasLtMatrixLayout_t l;
	int32_t count = (int32_t)batch;
	int64_t step = (int64_t)stride;

	/* row-major [rows, cols] is column-major [cols, rows] */
	K3_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&l, data_type(type), cols, rows, (int64_t)ld));
	if (batch > 1) {
		K3_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
			l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
		K3_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
			l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)));
	}
	return l;
}

static uint32_t
alignment(const void *p)
{
	uintptr_t bits = (uintptr_t)p | 256;

	return (uint32_t)(bits & (~bits + 1));
}

/* Of c and of what it is added to. */
static uint32_t
result_alignment(const struct k3_cuda_product *p)
{
	uint32_t c = alignment(p->c), from = p->from ? alignment(p->from) : c;

	return c < from ? c : from;
}

static void
choose(struct entry *e, const struct k3_cuda *cuda, const struct k3_cuda_product *p)
{
	cublasLtMatmulPreference_t pref;
	cublasLtMatmulHeuristicResult_t found;
	uint32_t align_a = alignment(p->b), align_b = alignment(p->a),
		 align_c = result_alignment(p);
	/* parts of a product that is split along k are added in float: a sum is rounded once */
	uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	int n = 0;

	K3_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&pref));
#define PREFER(attribute, value)                                                                   \
	K3_CUBLAS_CHECK(                                                                           \
		cublasLtMatmulPreferenceSetAttribute(pref, attribute, &(value), sizeof(value)))
	PREFER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cuda->blas_work_bytes);
	PREFER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
	PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_a);
	PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_b);
	PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_c);
	PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_c);
#undef PREFER
	K3_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)cuda->blas, e->op, e->a,
						       e->b, e->c, e->c, pref, 1, &found, &n));
	K3_CUBLAS_CHECK(n > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED);
	e->algo = found.algo;
	K3_CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(pref));
}

static void
describe(struct entry *e, const struct k3_cuda *cuda, const struct k3_cuda_product *p)
{
	cublasOperation_t op_a = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
			  op_b = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	size_t batch = p->batch ? p->batch : 1;

	K3_CUBLAS_CHECK(cublasLtMatmulDescCreate(&e->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	K3_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSA, &op_a,
						       sizeof(op_a)));
	K3_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(e->op, CUBLASLT_MATMUL_DESC_TRANSB, &op_b,
						       sizeof(op_b)));
	e->a = p->trans_b ? layout(p->type, p->n, p->k, p->ldb, batch, p->stride_b)
			  : layout(p->type, p->k, p->n, p->ldb, batch, p->stride_b);
	e->b = p->trans_a ? layout(p->type, p->k, p->m, p->lda, batch, p->stride_a)
			  : layout(p->type, p->m, p->k, p->lda, batch, p->stride_a);
	e->c = layout(p->type_c, p->m, p->n, p->ldc, batch, p->stride_c);
	choose(e, cuda, p);
	e->used = true;
}

/* All pointers of a task are at least 256 bytes aligned in StarPU; parts of them may be less. */
static int
common_alignment(const struct k3_cuda_product *p)
{
	return (int)((alignment(p->a) < alignment(p->b) ? alignment(p->a) : alignment(p->b)) |
		     (result_alignment(p) << 16));
}

static const struct entry *
look_up(const struct k3_cuda *cuda, const struct k3_cuda_product *p)
{
	struct k3_cuda_gemm_plans *plans = cuda->gemm;
	const unsigned char *bytes;
	struct entry *e;
	struct key key;
	uint64_t hash = 1469598103934665603u;

	memset(&key, 0, sizeof(key)); /* with its padding: it is compared by bytes */
	key.m = p->m, key.n = p->n, key.k = p->k;
	key.lda = p->lda, key.ldb = p->ldb, key.ldc = p->ldc;
	key.batch = p->batch;
	key.stride_a = p->stride_a, key.stride_b = p->stride_b, key.stride_c = p->stride_c;
	key.trans_a = p->trans_a, key.trans_b = p->trans_b;
	key.type = p->type, key.type_c = p->type_c;
	key.aligned = common_alignment(p);
	key.beta = p->beta != 0;
	bytes = (const unsigned char *)&key;
	for (size_t i = 0; i < sizeof(key); i++)
		hash = (hash ^ bytes[i]) * 1099511628211u;
	if (plans->n > TABLE / 2)
		forget(plans);
	for (size_t i = hash % TABLE;; i = (i + 1) % TABLE) {
		e = &plans->entry[i];
		if (!e->used)
			break;
		if (memcmp(&e->key, &key, sizeof(key)) == 0)
			return e;
	}
	e->key = key;
	describe(e, cuda, p);
	plans->n++;
	return e;
}

void
k3_cuda_gemm(const struct k3_cuda *cuda, const struct k3_cuda_product *p)
{
	const struct entry *e;

	if (p->m == 0 || p->n == 0)
		return;
	e = look_up(cuda, p);
	K3_CUBLAS_CHECK(cublasLtMatmul((cublasLtHandle_t)cuda->blas, e->op, &p->alpha, p->b, e->a,
				       p->a, e->b, &p->beta, p->from ? p->from : p->c, e->c, p->c,
				       e->c, &e->algo, cuda->blas_work, cuda->blas_work_bytes,
				       (cudaStream_t)cuda->stream));
}
