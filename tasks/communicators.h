/* Communicators of this rank, in the order that lane.h tells (inside tasks/; built with NCCL).  The
 * trap: NCCL's own threads take the binding of the thread that makes a communicator, so that is the
 * program's, not a worker's, which is bound to one core. */
#ifndef K3_TASKS_COMMUNICATORS_H
#define K3_TASKS_COMMUNICATORS_H
#include <nccl.h>
#include <stdint.h>

#include "../planner/mesh.h"

/* All zero: none. */
struct k3i_communicators {
	struct k3_mesh mesh;
	/* of this rank's group of each kind; NULL: it does not communicate, or shares an earlier
	 * kind's */
	ncclComm_t comm[K3_N_GROUPS];
	uint64_t bytes; /* that they took of the GPU */
};

/** On the current device: makes and warms them.
 * @return K3_OK, K3_ENODEV (logged with the call that failed; none is left) */
int k3i_communicators_open(struct k3i_communicators *comms, const struct k3_mesh *mesh);
/** Legal when there are none. */
void k3i_communicators_close(struct k3i_communicators *comms);
/** Ends them in the middle of a call, so that other ranks do not wait for this one. */
void k3i_communicators_abort(struct k3i_communicators *comms);

#endif
