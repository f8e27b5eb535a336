/* Communication between ranks that have a GPU: NCCL calls on the stream of a CUDA worker.
 *
 * One function for each operation of common/op/comm.h, whose buffers it takes, with device
 * pointers:
 *
 *   void k3_<op>_nccl(void *const *buf, const void *args, const struct k3_comm_call *call);
 *
 * Everything is enqueued and nothing waits.  Every status is checked; what a failure means is the
 * caller's: kernels log nothing.
 *
 * Order of sums.  A ring or a tree of NCCL adds in an order that follows from the ranks, the
 * machine, the size and the algorithm, all of which are the same whenever a task runs again: equal
 * runs give equal bits.  In-switch sums (NVLS) do not promise that; NCCL_NVLS_ENABLE=0 turns them
 * off.  NCCL's environment is the user's.
 */
#ifndef K3_COMM_COMM_NCCL_H
#define K3_COMM_COMM_NCCL_H
#include <stddef.h>
#include <stdint.h>

#include "../../common/op/comm.h"
#include "../../common/safetensors.h"

struct k3_comm_call;

/** A call failed with this ncclResult_t. Does not return. */
typedef void k3_comm_failed(const struct k3_comm_call *call, int result, const char *what,
			    const char *file, int line);

struct k3_comm_call {
	void *comm;	      /* ncclComm_t */
	void *stream;	      /* cudaStream_t */
	uint32_t rank, ranks; /* place in the communicator; members */
	int peer;	      /* place of the partner or the root; -1: collective without one */
	enum k3_dtype dtype;
	uint32_t n_buf;
	const size_t *elems; /* [n_buf] that each buffer holds */
	k3_comm_failed *failed;
};

typedef void k3_comm_func(void *const *buf, const void *args, const struct k3_comm_call *call);
k3_comm_func k3_gather_params_nccl, k3_reduce_scatter_grads_nccl, k3_allreduce_nccl,
	k3_gather_kv_nccl, k3_scatter_kv_grads_nccl, k3_halo_send_nccl, k3_halo_recv_nccl,
	k3_kda_state_gather_nccl;

/** Finds what went wrong since the last call, on this rank or another. */
void k3_comm_check_nccl(const struct k3_comm_call *call);

/** to[i][e] += from[i][e], of n buffers (codelets/comm/comm_add_cuda.cu). */
void k3i_comm_add(float *const *to, const float *const *from, const size_t *elems, uint32_t n,
		  void *stream);

#endif
