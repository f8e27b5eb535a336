/* Parts of the family moe, and the routing that they share. */
#ifndef K3_TESTS_BENCH_MOE_H
#define K3_TESTS_BENCH_MOE_H
#include "bench.h"

/* Which experts the tokens go to: evenly at random, or most to few and none to the last quarter. */
enum bench_routing { BENCH_RANDOM, BENCH_SKEWED };

struct bench_route {
	size_t t, n_experts, k;
	const int32_t *route; /* as the contract has it */
	const float *routew;
	const int32_t *offs, *ids, *row, *src;
	const float *score; /* [t, E] */
};

/** Routes made by hand; weights of k positive numbers that sum to 1, scores in (0, 1). */
struct bench_route bench_route(struct bench_case *c, enum bench_routing kind);
/** Sorts the assignments ids [t, k] by expert: fills offs, row and src of a route. */
void bench_sort(int32_t *route, const int32_t *ids, size_t t, size_t n_experts, size_t k);
void bench_moe_expert(struct bench *b);
void bench_moe_share(struct bench *b);

#endif
