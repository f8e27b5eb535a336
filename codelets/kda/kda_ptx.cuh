/* The instructions that CUDA C++ has no word for: tensor cores, loads of their operands, copies
 * past the registers. */
#ifndef K3_KDA_PTX_CUH
#define K3_KDA_PTX_CUH

#include "../cuda/wgmma.cuh"

/** Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void
ldmatrix(uint32_t *r, const void *row)
{
	shared_load_matrices(r, shared_address(row));
}

/** The same, each matrix transposed. */
static __device__ __forceinline__ void
ldmatrix_trans(uint32_t *r, const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(shared_address(row))
		     : "memory");
}

/** Stores four matrices, each transposed; lane l names row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void
stmatrix_trans(void *row, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
		     :
		     : "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
		     : "memory");
}

/** c [16, 8] += a [16, 16] b [16, 8] */
static __device__ __forceinline__ void
mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/** c [16, 8] += a [16, 8] b [8, 8] */
static __device__ __forceinline__ void
mma_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t
to_tf32(float x)
{
	uint32_t r;

	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
	return r;
}

/** Asks for a line of device memory. */
static __device__ __forceinline__ void
prefetch(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

/** Copies 16 bytes to shared memory, or clears them there. */
static __device__ __forceinline__ void
copy_async(void *to, const void *from, bool live)
{
	copy_16(shared_address(to), from, live);
}

static __device__ __forceinline__ void
copy_async_word(void *to, const void *from)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
		     :
		     : "r"(shared_address(to)), "l"(from)
		     : "memory");
}

static __device__ __forceinline__ void
copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/** All but the N youngest groups of copies have arrived, and products may read them after a
 * barrier. */
template <int N>
static __device__ __forceinline__ void
copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
	shared_fence();
}

#endif
