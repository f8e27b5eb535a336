/* Hopper's copy engine and tensor cores for tiles in boxes: boxes that the engine loads and
 * stores, products of 64 x N x 16 by a warpgroup.
 *
 * Every tile in shared memory is made of boxes of rows of 128 bytes with the 128-byte swizzle, at
 * multiples of 1024 bytes; an operand is "k-major" when a box's rows run along its rows and its
 * columns along the contraction, else "transposed", in boxes of 64 columns.  The trap: wgmma is
 * code for sm_90a alone.  Compiled for anything else these functions are empty, and wgmma_probe
 * tells the host which one was loaded.
 */
#ifndef K3_MOE_BOXES_CUH
#define K3_MOE_BOXES_CUH
#include <cuda.h>

#include "../cuda/pipeline.cuh"

#if K3_WGMMA
#define K3_SM90A(...) asm volatile(__VA_ARGS__)
enum { PROBE_THREADS = 128 };
#else
#define K3_SM90A(...) __trap()
enum { PROBE_THREADS = 32 };
#endif

enum { BOX = 64, BOX_ROW_BYTES = 128, BOX_BYTES = BOX * BOX_ROW_BYTES };

/* Its largest block is 128 threads where there is wgmma. */
static __global__ void
__launch_bounds__(PROBE_THREADS) wgmma_probe(void)
{
}

/** What lies outside of the operand is zero. */
static __device__ __forceinline__ void
box_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row, int block,
	 int matrix)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(block), "r"(matrix)
		     : "memory");
}

/** A box of the first block and matrix; what lies outside of the operand is not stored.  Returns when
 * the box in shared memory may be overwritten. */
static __device__ __forceinline__ void
box_store(uint32_t from, const CUtensorMap *map, int col, int row)
{
	asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
		     "[%0, {%2, %3, %4, %4}], [%1];" ::"l"(map),
		     "r"(from), "r"(col), "r"(row), "r"(0)
		     : "memory");
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
	asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/** As shared_load_matrices. */
static __device__ __forceinline__ void
shared_store_matrices(uint32_t row, const uint32_t (&x)[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
		     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
		     : "memory");
}

/* Descriptor of boxes from an address on.  Groups of 8 rows are 1024 bytes apart; the other
 * stride is from box to box along the rows of a transposed operand. */
static __device__ __forceinline__ uint64_t
box_operand(uint32_t address)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(BOX_BYTES >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* What the descriptor grows by for 16 more along the contraction: 32 bytes or 16 rows. */
template <int TRANSPOSED>
static __device__ __forceinline__ uint64_t
operand_step(void)
{
	return TRANSPOSED ? 2048 >> 4 : 32 >> 4;
}

/** d += a b, a [64, 16], b [16, 128]; asynchronous. */
template <int A_TRANSPOSED, int B_TRANSPOSED>
static __device__ __forceinline__ void
wgmma_boxes(float (&d)[64], uint64_t a, uint64_t b)
{
	K3_SM90A("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" K3_REG64
		 "}, %64, %65, 1, 1, 1, %66, %67;"
		 : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48)
		 : "l"(a), "l"(b), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
}

/** The same, b [16, 192]. */
template <int A_TRANSPOSED, int B_TRANSPOSED>
static __device__ __forceinline__ void
wgmma_boxes(float (&d)[96], uint64_t a, uint64_t b)
{
	K3_SM90A("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" K3_REG96
		 "}, %96, %97, 1, 1, 1, %98, %99;"
		 : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48),
		   K3_ACC16(d, 64), K3_ACC16(d, 80)
		 : "l"(a), "l"(b), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
}

#endif
