/* A plan's kernels one after the other on the calling thread, each timed; StarPU is not started. */
#ifndef K3_DRIVERS_SERIAL_H
#define K3_DRIVERS_SERIAL_H
#include "../planner/plan.h"

struct k3_serial;

/** Buffers are made when a task first names them. @return K3_OK, K3_ENOMEM */
int k3_serial_create(struct k3_serial **serial, const struct k3_model *model);
void k3_serial_destroy(struct k3_serial *serial); /* NULL is legal */

/** How a communication task is done, given its buffers; without one they are refused. */
typedef void k3_serial_comm(void *arg, const struct k3_task *task, void *const *buf);
void k3_serial_on_comm(struct k3_serial *serial, k3_serial_comm *comm, void *arg);
/** A persistent datum as the plans so far have left it, zeros when none named it; NULL: memory is
 * out. */
void *k3_serial_datum(struct k3_serial *serial, uint32_t datum);

/**
 * Runs a checked plan of one rank in order. What it leaves in persistent data stays for the next
 * plan.
 * @param batch  host arrays of a microbatch plan, else NULL
 * @param hyper  [K3_HYPER_LEN] for a plan that loads them, else NULL
 * @param us     [n_tasks] out: time of each kernel; NULL: not wanted
 * @return K3_OK, K3_ENODEV (communication, and nobody does it), K3_ENOMEM
 */
int k3_serial_run(struct k3_serial *serial, const struct k3_plan *plan,
		  const struct k3_host_batch *batch, const double *hyper, double *us);

/** Processor time of this thread, us. */
double k3i_thread_us(void);

#endif
