/* Routes for the tests of the mixture's CUDA kernels: experts of each token by a pattern, tables by the
 * CPU router.  The memory is malloc'ed. */
#ifndef K3_TESTS_ROUTE_CASE_H
#define K3_TESTS_ROUTE_CASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum route_pattern {
	ROUTE_RANDOM,
	ROUTE_SKEWED, /* low experts far more often */
	ROUTE_FEW     /* every token takes the first k experts: the others are empty */
};

struct route_case {
	size_t t, n_experts, k;
	int32_t *ids;	/* [t,k] */
	int32_t *route; /* see common/op/moe.h */
	float *routew;
};

void route_case_make(struct route_case *c, size_t t, size_t n_experts, size_t k,
		     enum route_pattern pattern, uint64_t seed);
void route_case_free(struct route_case *c);

#endif
