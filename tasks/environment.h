/* Variables of the environment that StarPU reads as numbers. */
#ifndef K3_TASKS_ENVIRONMENT_H
#define K3_TASKS_ENVIRONMENT_H

/**
 * To be called before StarPU reads them.
 * @return K3_OK; K3_EINVAL (each logged with its value and what is allowed): one is no number that
 * StarPU takes
 */
int k3i_environment_check(void);

#endif
