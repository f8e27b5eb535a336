/* Learning-rate schedule: linear warm-up, plateau, linear decay. */
#ifndef K3_SCHEDULE_H
#define K3_SCHEDULE_H

/**
 * Factor of the learning rate in step n (from 0) of `steps`.
 *
 *   (n + 1) / warmup                               while warming up
 *   1                                              on the plateau, at least one step
 *   floor + (1 - floor) (1 - i / decay), i = 1..   in the last `decay` - 1 steps
 *
 * Decay takes round(decay_ratio * steps) steps (halves to even), fewer when the warm-up needs them.
 * Steps after the last one keep the floor, or 1 where nothing decays.
 *
 * @param warmup       from 0; above `steps` it is `steps`
 * @param decay_ratio  in [0, 1]
 * @param floor        in [0, 1]: where the decay would end one step after the last
 */
double k3_lr_factor(long long n, long long steps, long long warmup, double decay_ratio,
                    double floor);

#endif
