/* Clocks in seconds. */
#ifndef K3_CLOCK_H
#define K3_CLOCK_H

#include <time.h>

/** Seconds of a clock, which begin anywhere: only differences mean something. */
static inline double
k3_clock_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
