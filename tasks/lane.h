/* The lane: how a rank with a GPU carries out its plans' communication.
 *
 * All communication tasks of a rank follow each other in plan order, by a datum that each of them
 * updates, on one CUDA worker, so every member of a communicator does the same operations in the
 * same order: the one that planner/plan_order.c proves.  With two workers on the GPU the last is
 * the lane's alone, and compute tasks cannot run there; with one they share it.
 *
 * Communicators are those of the plans (planner/mesh.h), made once at start on all ranks in one
 * order: world, then the kinds of groups as enum k3_group lists them, each kind by one split of
 * the world; then each is warmed by a sum.
 */
#ifndef K3_TASKS_LANE_H
#define K3_TASKS_LANE_H
#include <stdbool.h>

#include "device.h"

struct starpu_task;
struct k3_mesh;

enum k3_transport {
	K3_TRANSPORT_NONE, /* one rank that plans no communication */
	K3_TRANSPORT_NCCL
};

/** "none" or "nccl". @return K3_OK, K3_EINVAL (logged) */
int k3_transport_parse(enum k3_transport *transport, const char *text);

/**
 * Before StarPU starts: asks for a second worker on the GPU, unless the user's environment says
 * otherwise.
 * @return K3_OK, K3_EINVAL (no GPU is asked for), K3_ENODEV (this build has no NCCL); logged
 */
int k3i_lane_prepare(enum k3_transport transport, enum k3_device device);
/** After StarPU has started, before the CUDA workers are readied: which of them carries the lane.
 * @return K3_OK, K3_ENODEV (no GPU, or several; logged) */
int k3i_lane_choose(void);
/** After that: makes the communicators and warms them; does nothing without a transport.
 * @return K3_OK, K3_ENODEV (logged with the call that failed; no communicator is left) */
int k3i_lane_start(const struct k3_mesh *mesh);
/** Before StarPU ends, drained; legal after any of the above, and twice. */
void k3i_lane_stop(void);

/** Bytes of the GPU that the communicators took when they were made: no plan counts them. 0 without
 * a transport. */
uint64_t k3_lane_bytes(void);
/** Does this worker run communication alone? */
bool k3i_lane_owns(int worker);
/** Binds a communication task to the lane: the caller left room for one more datum, the last.
 * @param last  its number */
void k3i_lane_bind(struct starpu_task *task, unsigned last);

#endif
