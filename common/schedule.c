#include "schedule.h"

#include <math.h>

double
k3_lr_factor(long long n, long long steps, long long warmup, double decay_ratio, double floor)
{
	long long decay = llround(decay_ratio * (double)steps);

	if (decay > steps - warmup)
		decay = steps - warmup;
	long long stable = steps + 1 - warmup - decay;
	if (n < warmup)
		return (double)(n + 1) / (double)warmup;
	if (n < warmup + stable || decay <= 0)
		return 1;
	double left = 1 - (double)(n + 1 - warmup - stable) / (double)decay;
	return floor + (1 - floor) * (left > 0 ? left : 0);
}
