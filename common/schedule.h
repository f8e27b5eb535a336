/* Learning-rate schedule (model.md 7): linear warm-up, plateau, linear decay. */
#ifndef K3_SCHEDULE_H
#define K3_SCHEDULE_H

/**
 * Factor of step n (0-based) of `steps`.  Decay takes round(decay_ratio * steps) steps, less when the warm-up needs them.
 * @param warmup 0 <= warmup <= steps
 * @param floor  in [0, 1]: the decay ends there
 */
double k3_lr_factor(long long n, long long steps, long long warmup, double decay_ratio, double floor);

#endif
