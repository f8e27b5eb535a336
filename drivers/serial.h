/* A plan's kernels one after the other on the calling thread, each timed; StarPU is not started. */
#ifndef K3_DRIVERS_SERIAL_H
#define K3_DRIVERS_SERIAL_H
#include "../planner/plan.h"

struct k3_serial;

/** Buffers are made when a task first names them. @return K3_OK, K3_ENOMEM */
int k3_serial_create(struct k3_serial **serial, const struct k3_model *model);
void k3_serial_destroy(struct k3_serial *serial); /* NULL is legal */

/**
 * Runs a checked plan of one rank in order. What it leaves in persistent data stays for the next
 * plan.
 * @param batch  host arrays of a microbatch plan, else NULL
 * @param hyper  [K3_HYPER_LEN] for a plan that loads them, else NULL
 * @param us     [n_tasks] out: time of each kernel; NULL: not wanted
 * @return K3_OK, K3_ENODEV (communication), K3_ENOMEM
 */
int k3_serial_run(struct k3_serial *serial, const struct k3_plan *plan,
		  const struct k3_host_batch *batch, const double *hyper, double *us);

/** Processor time of this thread, us. */
double k3i_thread_us(void);

#endif
