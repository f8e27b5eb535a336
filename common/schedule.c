/* The schedule of the reference.  The trap: the plateau reaches one step into the decay
 * (the + 1), so the last step has factor 1/decay and not 0. */
#include "schedule.h"

#include <math.h>

double
k3_lr_factor(long long n, long long steps, long long warmup, double decay_ratio, double floor)
{
	long long decay = llrint(decay_ratio * (double)steps);

	if (warmup > steps)
		warmup = steps;
	if (decay > steps - warmup)
		decay = steps - warmup;
	long long plateau_end = steps + 1 - decay;
	if (n < warmup)
		return (double)(n + 1) / (double)warmup;
	if (n < plateau_end || decay <= 0)
		return 1.0;
	double left = 1.0 - (double)(n + 1 - plateau_end) / (double)decay;
	return floor + (1.0 - floor) * (left > 0.0 ? left : 0.0);
}
