/* Median of measurements. */
#ifndef K3_DRIVERS_MEDIAN_H
#define K3_DRIVERS_MEDIAN_H
#include <stddef.h>

/** Of n >= 1 numbers, which are sorted ascending; the mean of the two in the middle when n is
 * even. */
double k3i_median(double *x, size_t n);

#endif
