/* Variables of the environment that StarPU reads. */
#ifndef K3_TASKS_ENVIRONMENT_H
#define K3_TASKS_ENVIRONMENT_H
#include <stdint.h>

/**
 * To be called before StarPU reads them.
 * @param workers  CPU workers that an option asks for, in place of STARPU_NCPU; 0: none does
 * @return K3_OK; K3_EINVAL (each logged with its value and what is allowed): StarPU would abort at
 * one, wait for ever under it, or take something else without a word; K3_EIO (logged): StarPU can
 * keep no files
 */
int k3i_environment_check(uint32_t workers);

#endif
