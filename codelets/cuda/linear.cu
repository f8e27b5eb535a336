/* Products with weights in row blocks.
 *
 * The trap: a gradient by the input is a sum over the blocks.  Where results are bf16 and a sum has
 * several terms, it is made in float, some rows at a time, in memory of the stream, so that it is
 * rounded once.
 */
#include "device.cuh"

enum { THREADS = 256 };

static size_t
bytes_of(enum k3_cuda_type type)
{
	return type == K3_CUDA_BF16 ? 2 : 4;
}

/* Calls part(first row in the block, rows, block, first row counted from r0) for all blocks. */
struct part {
	size_t block, from, rows, at;
};

/* The next part of rows r0 .. r1-1; p->at + p->rows counts what is done. */
static bool
next_part(struct part *p, const struct k3_weight *w, size_t r0, size_t r1)
{
	size_t row = r0 + p->at + p->rows, end;

	if (row >= r1)
		return false;
	p->at = row - r0;
	p->block = row / w->block_rows;
	p->from = row - p->block * w->block_rows;
	end = (p->block + 1) * w->block_rows;
	p->rows = (end < r1 ? end : r1) - row;
	return true;
}

/* y = beta from + x W[r0:r1]^T */
static void
linear(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, size_t ldy, float beta,
       const void *from, const void *x, size_t ldx, void *const *buf, const struct k3_weight *w,
       size_t r0, size_t r1, size_t t)
{
	struct part part = {0, 0, 0, 0};

	while (next_part(&part, w, r0, r1)) {
		struct k3_cuda_product p = {};
		p.m = t, p.n = part.rows, p.k = w->cols;
		p.a = x, p.lda = ldx;
		p.b = (const char *)buf[w->first + part.block] +
		      part.from * w->cols * bytes_of(type);
		p.ldb = w->cols, p.trans_b = 1;
		p.c = (char *)y + part.at * bytes_of(type), p.ldc = ldy;
		p.from = (const char *)from + part.at * bytes_of(type);
		p.alpha = 1, p.beta = beta;
		p.type = p.type_c = type;
		k3_cuda_gemm(cuda, &p);
	}
}

void
k3_cuda_linear_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, size_t ldy,
		   float beta, const void *x, size_t ldx, void *const *buf,
		   const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	linear(cuda, type, y, ldy, beta, y, x, ldx, buf, w, r0, r1, t);
}

void
k3_cuda_linear_onto(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, size_t ldy,
		    const void *from, const void *x, size_t ldx, void *const *buf,
		    const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	linear(cuda, type, y, ldy, from ? 1.0f : 0.0f, from ? from : y, x, ldx, buf, w, r0, r1, t);
}

/* The weight's part as the right operand of a product with dy. */
static struct k3_cuda_product
dx_product(enum k3_cuda_type type, const void *dy, size_t lddy, void *const *buf,
	   const struct k3_weight *w, const struct part *part)
{
	struct k3_cuda_product p = {};

	p.n = w->cols, p.k = part->rows;
	p.a = (const char *)dy + part->at * bytes_of(type), p.lda = lddy;
	p.b = (const char *)buf[w->first + part->block] + part->from * w->cols * bytes_of(type);
	p.ldb = w->cols;
	p.alpha = 1;
	p.type = type;
	return p;
}

template <int N>
static __global__ void
round_rows(k3_bf16 *dx, size_t lddx, const float *sum, size_t cols, float beta)
{
	k3_bf16 *to = dx + (size_t)blockIdx.y * lddx;
	const float *from = sum + (size_t)blockIdx.y * cols;
	size_t c = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
	float old[N] = {};

	if (c >= cols)
		return;
	if (N == 1) {
		to[c] = narrow<k3_bf16>(from[c] + (beta != 0 ? wide(to[c]) : 0.0f));
		return;
	}
	if (beta != 0)
		pack_load(old, to + c);
#pragma unroll
	for (int k = 0; k < N; k++)
		old[k] += from[c + k];
	pack_store(to + c, old);
}

static bool
rows_are_packed(const void *dx, size_t lddx, size_t cols)
{
	return (uintptr_t)dx % 16 == 0 && lddx % k3_pack<k3_bf16>::n == 0 &&
	       cols % k3_pack<k3_bf16>::n == 0;
}

/* Rows of dx that the memory for sums holds. */
static size_t
sum_rows(const struct k3_cuda *cuda, size_t cols)
{
	size_t rows = cuda->sum_bytes / (cols * sizeof(float));

	K3_CUDA_CHECK(rows > 0 ? cudaSuccess : cudaErrorInvalidValue);
	return rows < 65535 ? rows : 65535;
}

/* bf16 results of several blocks. */
static void
linear_dx_rounded_once(const struct k3_cuda *cuda, k3_bf16 *dx, size_t lddx, float beta,
		       const k3_bf16 *dy, size_t lddy, void *const *buf, const struct k3_weight *w,
		       size_t r0, size_t r1, size_t t)
{
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	float *sum = (float *)cuda->sum;
	const int n = k3_pack<k3_bf16>::n;
	size_t most = sum_rows(cuda, w->cols);

	for (size_t row = 0; row < t; row += most) {
		size_t rows = t - row < most ? t - row : most;
		struct part part = {0, 0, 0, 0};
		while (next_part(&part, w, r0, r1)) {
			struct k3_cuda_product p =
				dx_product(K3_CUDA_BF16, dy + row * lddy, lddy, buf, w, &part);
			p.m = rows, p.c = sum, p.ldc = w->cols;
			p.beta = part.at ? 1 : 0, p.type_c = K3_CUDA_F32;
			k3_cuda_gemm(cuda, &p);
		}
		if (rows_are_packed(dx, lddx, w->cols))
			round_rows<n>
				<<<dim3(blocks_for(w->cols, (size_t)THREADS * n), (unsigned)rows),
				   THREADS, 0, stream>>>(dx + row * lddx, lddx, sum, w->cols, beta);
		else
			round_rows<1><<<dim3(blocks_for(w->cols, THREADS), (unsigned)rows), THREADS,
					0, stream>>>(dx + row * lddx, lddx, sum, w->cols, beta);
		K3_CUDA_LAUNCHED("round_rows");
	}
}

void
k3_cuda_linear_dx(const struct k3_cuda *cuda, enum k3_cuda_type type, void *dx, size_t lddx,
		  float beta, const void *dy, size_t lddy, void *const *buf,
		  const struct k3_weight *w, size_t r0, size_t r1, size_t t)
{
	struct part part = {0, 0, 0, 0};

	if (type == K3_CUDA_BF16 && r1 > r0 && r0 / w->block_rows != (r1 - 1) / w->block_rows) {
		linear_dx_rounded_once(cuda, (k3_bf16 *)dx, lddx, beta, (const k3_bf16 *)dy, lddy,
				       buf, w, r0, r1, t);
		return;
	}
	while (next_part(&part, w, r0, r1)) {
		struct k3_cuda_product p = dx_product(type, dy, lddy, buf, w, &part);
		p.m = t, p.c = dx, p.ldc = lddx;
		p.beta = part.at ? 1 : beta, p.type_c = type;
		k3_cuda_gemm(cuda, &p);
	}
}

void
k3_cuda_linear_dw(const struct k3_cuda *cuda, enum k3_cuda_type type, void *const *buf,
		  const struct k3_weight *dw, size_t r0, size_t r1, const void *dy, size_t lddy,
		  const void *x, size_t ldx, size_t t)
{
	struct part part = {0, 0, 0, 0};

	while (next_part(&part, dw, r0, r1)) {
		struct k3_cuda_product p = {};
		float *c = (float *)buf[dw->first + part.block] + part.from * dw->cols;
		if (t == 0) {
			if (!dw->accumulate)
				K3_CUDA_CHECK(cudaMemsetAsync(c, 0,
							      part.rows * dw->cols * sizeof(*c),
							      (cudaStream_t)cuda->stream));
			continue;
		}
		p.m = part.rows, p.n = dw->cols, p.k = t;
		p.a = (const char *)dy + part.at * bytes_of(type), p.lda = lddy, p.trans_a = 1;
		p.b = x, p.ldb = ldx;
		p.c = c, p.ldc = dw->cols;
		p.alpha = 1, p.beta = dw->accumulate ? 1 : 0;
		p.type = type, p.type_c = K3_CUDA_F32;
		k3_cuda_gemm(cuda, &p);
	}
}
