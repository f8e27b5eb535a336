/* Hopper's copy engine and tensor cores for tiles in boxes: barriers in shared memory, boxes that
 * the engine loads, products of 64 x N x 16 by a warpgroup.
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

static __device__ __forceinline__ void
barrier_init(uint32_t barrier, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/** Before other threads or the copy engine use barriers that were just set up. */
static __device__ __forceinline__ void
barrier_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void
barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Arrives, and the phase also waits for bytes. */
static __device__ __forceinline__ void
barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		     "r"(bytes)
		     : "memory");
}

static __device__ __forceinline__ bool
barrier_try(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t.reg .pred p;\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t}"
		     : "=r"(done)
		     : "r"(barrier), "r"(parity)
		     : "memory");
	return done;
}

/** Until the phase of this parity has ended.  Ends the program when that takes 2^35 cycles: a
 * lost copy must not become a silent machine. */
static __device__ __forceinline__ void
barrier_wait(uint32_t barrier, uint32_t parity)
{
	if (barrier_try(barrier, parity))
		return;
	for (long long since = clock64(); !barrier_try(barrier, parity);)
		if (clock64() - since > 1ll << 35)
			__trap();
}

/** All threads of a warpgroup; its number picks the barrier. */
static __device__ __forceinline__ void
group_sync(int group)
{
	asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
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

static __device__ __forceinline__ uint4
shared_load_16(uint32_t from)
{
	uint4 x;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
		     : "r"(from)
		     : "memory");
	return x;
}

/** Four matrices of 8 rows of 16 bytes; lane 8 i + j has the address of row j of matrix i. */
static __device__ __forceinline__ void
shared_load_matrices(uint32_t (&x)[4], uint32_t row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(row)
		     : "memory");
}

static __device__ __forceinline__ void
shared_store_matrices(uint32_t row, const uint32_t (&x)[4])
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
		     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
		     : "memory");
}

/** Ordinary stores to shared memory become visible to the tensor cores (then: a barrier). */
static __device__ __forceinline__ void
shared_publish(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

/** Keeps the compiler from moving uses of d over what is before. */
template <int N>
static __device__ __forceinline__ void
wgmma_pin(float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

#define K3_REG96                                                                                   \
	K3_REG64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                \
		 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

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
