/* NCCL and the copies of CUDA over host memory: ranks are threads of this process.
 *
 * A test that links nccl_ranks.c calls these functions in the place of the libraries'.  Every call
 * blocks until all members (or both partners) have made it; sums go in the order of the ranks.
 */
#ifndef K3_TESTS_NCCL_RANKS_H
#define K3_TESTS_NCCL_RANKS_H
#include <stdint.h>

#include "../codelets/comm/comm_nccl.h"

/** A group of ranks; a rank's communicator of it is what the calls take for an ncclComm_t. */
struct nccl_ranks_group *nccl_ranks_group_create(uint32_t ranks);
void nccl_ranks_group_destroy(struct nccl_ranks_group *group);
void *nccl_ranks_comm(struct nccl_ranks_group *group, uint32_t rank);
/** No call over host memory fails: aborts. */
k3_comm_failed nccl_ranks_failed;

#endif
