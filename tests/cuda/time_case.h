/* What the programs that time kernels share. */
#ifndef K3_TESTS_CUDA_TIME_CASE_H
#define K3_TESTS_CUDA_TIME_CASE_H
#include <cuda_runtime_api.h>
#include <stddef.h>

/** Ends the program, with a message, unless the call succeeded. */
void check(cudaError_t error, const char *what);
/** Ascending. */
void sort_times(float *ms, size_t n);

#endif
