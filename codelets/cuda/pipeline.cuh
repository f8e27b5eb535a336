/* Warpgroups with roles: one brings tiles into shared memory, the others compute on them.
 *
 * A stage has two barriers: the loaders arrive at `full` when its bytes are there, the warps that
 * read it arrive at `empty` when they are done.  Both sides count stages; the phase of a barrier is
 * the parity of how often the stage was used.  The traps: copies and stores of the loaders are seen
 * by products only after shared_fence in the waiting thread; registers change hands only if the
 * kernel has a bound on its blocks and the roles are two branches of one if, and who asks for more
 * than the others have given away waits for ever: three warpgroups begin with 168 registers a
 * thread (40 + 2 * 232, 24 + 2 * 240), four with 128 (32 + 3 * 160).
 */
#ifndef K3_CUDA_PIPELINE_CUH
#define K3_CUDA_PIPELINE_CUH
#include "wgmma.cuh"

enum { GROUP = 128 }; /* threads of a warpgroup */

/** One arrival of a warp that is done with a stage. */
static __device__ __forceinline__ void
phase_release(uint32_t empty)
{
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		phase_arrive(empty);
}

/** A loader's arrival: with the copies that it has started where it made no ordinary stores. */
static __device__ __forceinline__ void
phase_loaded(uint32_t full, bool copies)
{
	if (copies) {
		phase_arrive_copied(full);
	} else {
		/* of all copies, also of those in no group */
		asm volatile("cp.async.wait_all;" ::: "memory");
		shared_fence();
		phase_arrive(full);
	}
}

/** The rest of a role runs with N registers a thread: of all warps of a warpgroup. */
template <int N>
static __device__ __forceinline__ void
registers_less(void)
{
#if K3_WGMMA
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N>
static __device__ __forceinline__ void
registers_more(void)
{
#if K3_WGMMA
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif
