#include "time_case.h"

#include <stdio.h>
#include <stdlib.h>

void
check(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
	exit(1);
}

static int
ascending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

void
sort_times(float *ms, size_t n)
{
	qsort(ms, n, sizeof(*ms), ascending);
}
