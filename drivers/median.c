#include "median.h"

#include <stdlib.h>

static int
ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double
k3i_median(double *x, size_t n)
{
	qsort(x, n, sizeof(*x), ascending);
	return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}
