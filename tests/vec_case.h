/* The row loops that this processor runs, and the error of a float in units of its last place. */
#ifndef K3_TESTS_VEC_CASE_H
#define K3_TESTS_VEC_CASE_H
#include <math.h>

#include "../codelets/vec/vec.h"

/* What this processor runs; returns the number. */
static inline size_t
tables(const struct k3_vec *table[3])
{
	size_t n = 0;

	for (; n <= k3_lanes_of_cpu(); n++)
		table[n] = K3_LANES_TABLE(k3_vec, n);
	return n;
}

/* Units in the last place of want between it and got; below the normal numbers their spacing. */
static inline double
ulps(float got, double want)
{
	double size = fmax(fabs(want), (double)0x1p-126f);

	return fabs((double)got - want) / ldexp(1, ilogb(size) - 23);
}

#endif
