/* Shared memory by its addresses, and how threads of a block wait for each other and for the copy
 * engine: numbered barriers, and barriers in shared memory, whose phases end when the arrivals and
 * the bytes that they expect are there.
 *
 * A barrier in shared memory has 8 bytes.  Who waits counts its phases and names one by its parity.  The traps: what
 * ordinary stores wrote to shared memory is seen by products and by the copy engine only after
 * shared_fence; a wait that may end the program costs registers and instructions, so loops that
 * have none to spare take phase_wait, and a lost copy is noticed by whoever waits beside them.
 */
#ifndef K3_CUDA_SHARED_CUH
#define K3_CUDA_SHARED_CUH
#include "device.cuh"

static __device__ __forceinline__ uint32_t
shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
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

static __device__ __forceinline__ void
shared_store_16(uint32_t to, uint4 x)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y),
		     "r"(x.z), "r"(x.w)
		     : "memory");
}

/** Barrier `id` (1 .. 15; 0 is the block's) of so many threads, whole warps. */
static __device__ __forceinline__ void
group_sync(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/** What others wrote to shared memory may be read by products from here on; what this thread wrote,
 * by products and copies of those that it meets behind it. */
static __device__ __forceinline__ void
shared_fence(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/** One thread, before a barrier of the block. */
static __device__ __forceinline__ void
phase_init(uint32_t barrier, int arrivals)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/** After phase_init, before copies. */
static __device__ __forceinline__ void
phase_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	shared_fence();
}

static __device__ __forceinline__ void
phase_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** Arrives, and the phase also waits for bytes. */
static __device__ __forceinline__ void
phase_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		     "r"(bytes)
		     : "memory");
}

/** Arrives when all copies that the thread has started are there. */
static __device__ __forceinline__ void
phase_arrive_copied(uint32_t barrier)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/** Waits for the end of the phase of that parity; 1 passes at once on a new barrier. */
static __device__ __forceinline__ void
phase_wait(uint32_t barrier, uint32_t parity)
{
	asm volatile("{.reg .pred p;\n"
		     "wait: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
		     "@!p bra wait;}" ::"r"(barrier),
		     "r"(parity)
		     : "memory");
}

static __device__ __forceinline__ bool
phase_ended(uint32_t barrier, uint32_t parity)
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

/** The same, and ends the program when that takes 2^35 cycles: a lost copy must not become a silent
 * machine. */
static __device__ __forceinline__ void
phase_wait_guarded(uint32_t barrier, uint32_t parity)
{
	if (phase_ended(barrier, parity))
		return;
	for (long long since = clock64(); !phase_ended(barrier, parity);)
		if (clock64() - since > 1ll << 35)
			__trap();
}

/** Bytes from memory, a multiple of 16, that end in a phase. */
static __device__ __forceinline__ void
copy_run(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(barrier)
		     : "memory");
}

#endif
