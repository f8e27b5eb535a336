/* One mixture-of-experts layer as its kernels see it: operands, how they are cut, poisoned results,
 * and a call of each kernel. The memory belongs to the test (held.h). */
#ifndef K3_TESTS_MOE_CASE_H
#define K3_TESTS_MOE_CASE_H
#include "../common/op/moe.h"

struct moe_case {
	size_t t, d, r, f, n_experts, k;
	float scale;
	float *x, *wr, *bias, *wdown, *w13, *w2, *norm, *wup, *p_in, *shared, *dp;
	int32_t *forced;
	size_t blocks; /* row blocks of wr, wdown and wup */
	uint32_t n_groups;
	uint32_t edge[5]; /* group g holds experts edge[g] .. edge[g+1]-1 */
	int32_t *route;
	float *routew, *zs, *gu, *ys, *y, *p_out;
	float *dys, *dgu, *dzs, *dwt, *dx, *dz, *dl, *dnorm;
	float *dwr, *dwdown, *dw13, *dw2, *dwup;
};

/** The layer of the dump moe, one group of experts, one block per weight. */
struct moe_case moe_golden(void);
/** Small random numbers, bias 0; d = 6, r = 4, f = 3. */
struct moe_case moe_random(size_t t, size_t n_experts, size_t k);
/** One group, one block, scale 1. */
void moe_one_group(struct moe_case *l);
/** Poisons all results; dx begins with a copy of shared. */
void moe_outputs(struct moe_case *l);

void moe_route(struct moe_case *l);
void moe_dispatch(struct moe_case *l);
void moe_group_forward(struct moe_case *l, uint32_t g);
void moe_combine(struct moe_case *l);
/** All of the above. */
void moe_forward(struct moe_case *l);

void moe_combine_back(struct moe_case *l, int accumulate);
void moe_group_dgrad(struct moe_case *l, uint32_t g);
void moe_dispatch_back(struct moe_case *l);
/** All of the above. */
void moe_backward(struct moe_case *l);
void moe_group_wgrad(struct moe_case *l, uint32_t g, int accumulate);
/** All weight gradients but that of the norm. */
void moe_weights_back(struct moe_case *l, int accumulate);

#endif
