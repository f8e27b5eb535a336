/* Hopper's tensor cores and copy engine: barriers in shared memory, boxes that the engine loads, products
 * of 64 x 128 x 16 by a warpgroup.
 *
 * Every tile in shared memory is made of boxes of 64 rows of 128 bytes with the 128-byte swizzle, at
 * multiples of 1024 bytes; an operand is "k-major" when a box's rows run along its rows and its columns
 * along the contraction, else "transposed".  The trap: wgmma is code for sm_90a alone.  Compiled for
 * anything else these functions are empty, and k3_wgmma_probe tells the host which one was loaded.
 */
#ifndef K3_MOE_WGMMA_CUH
#define K3_MOE_WGMMA_CUH
#include <cuda.h>

#include "../cuda/device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA(...) asm volatile(__VA_ARGS__)
enum { PROBE_THREADS = 128 };
#else
#define WGMMA(...) __trap()
enum { PROBE_THREADS = 32 };
#endif

enum { BOX = 64, BOX_BYTES = 8192 };

/* Its largest block is 128 threads where there is wgmma. */
static __global__ void
__launch_bounds__(PROBE_THREADS) wgmma_probe(void)
{
}

static __device__ __forceinline__ uint32_t
shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
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

/** Until the phase of this parity has ended.  Ends the program when that takes 2^35 cycles: a lost copy
 * must not become a silent machine. */
static __device__ __forceinline__ void
barrier_wait(uint32_t barrier, uint32_t parity)
{
	if (barrier_try(barrier, parity))
		return;
	for (long long since = clock64(); !barrier_try(barrier, parity);)
		if (clock64() - since > 1ll << 35)
			__trap();
}

/** Column, row and matrix of the box; what lies outside is zero. */
static __device__ __forceinline__ void
box_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row, int matrix)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(col), "r"(row), "r"(matrix)
		     : "memory");
}

/** Ordinary stores to shared memory become visible to the tensor cores (then: a barrier). */
static __device__ __forceinline__ void
shared_publish(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Descriptor of boxes from an address on.  Groups of 8 rows are 1024 bytes apart; the other stride is
 * from box to box along the rows of a transposed operand. */
static __device__ __forceinline__ uint64_t
operand(uint32_t address)
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

static __device__ __forceinline__ void
wgmma_begin(void)
{
	WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void
wgmma_commit(void)
{
	WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/** Until at most N committed groups are unfinished. */
template <int N>
static __device__ __forceinline__ void
wgmma_wait(void)
{
	WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/** Keeps the compiler from moving uses of d over what is before. */
static __device__ __forceinline__ void
wgmma_pin(float (&d)[64])
{
#pragma unroll
	for (int i = 0; i < 64; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/** d = (adds ? d : 0) + a b, a [64, 16], b [16, 128]; asynchronous. */
template <int A_TRANSPOSED, int B_TRANSPOSED>
static __device__ __forceinline__ void
wgmma_128(float (&d)[64], uint64_t a, uint64_t b, int adds)
{
	WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
	      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
	      "%0, %1, %2, %3, %4, %5, %6, %7, "
	      "%8, %9, %10, %11, %12, %13, %14, %15, "
	      "%16, %17, %18, %19, %20, %21, %22, %23, "
	      "%24, %25, %26, %27, %28, %29, %30, %31, "
	      "%32, %33, %34, %35, %36, %37, %38, %39, "
	      "%40, %41, %42, %43, %44, %45, %46, %47, "
	      "%48, %49, %50, %51, %52, %53, %54, %55, "
	      "%56, %57, %58, %59, %60, %61, %62, %63"
	      "}, %64, %65, p, 1, 1, %67, %68;\n\t}"
	      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
		"+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
		"+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
		"+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
		"+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
		"+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
		"+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
		"+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
		"+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),
		"+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
		"+f"(d[61]), "+f"(d[62]), "+f"(d[63])
	      : "l"(a), "l"(b), "r"(adds), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
}

#endif
