/* Products of a group of experts, as both ways to compute them see them: tensor cores (expert_wgmma.cu)
 * and multiply-adds for float and for widths that are no multiple of 8 (expert_fma.cu).
 *
 *   product    rows x        weights y   out
 *   GATE_UP    zs [tk,r]     w13         gu [tk,2f], h [tk,f] unless NULL
 *   DOWN       h [tk,f]      w2          ys [tk,r]
 *   D_HIDDEN   dys [tk,r]    w2          dgu [tk,2f], part [tk,parts] (dwt over a block of columns)
 *   D_LATENT   dgu [tk,2f]   w13         dzs [tk,r], dwt [tk] from part
 *   WEIGHTS    dgu, dys      zs, h       dw13, dw2; contraction over the rows
 *
 * The trap: how many rows an expert has is known on the device alone.  Grids are sized for the worst
 * split of tk rows, and blocks find their tile from the offsets.
 */
#ifndef K3_MOE_EXPERT_TASK_H
#define K3_MOE_EXPERT_TASK_H
#include "../cuda/gemm.h"

enum expert_product { GATE_UP, DOWN, D_HIDDEN, D_LATENT, WEIGHTS, SPREAD, JOIN, ROUTED };

struct expert_task {
	const void *x[2], *y[2]; /* the second of both: W2 in WEIGHTS */
	void *out[2];
	const void *gu;
	const float *w;	     /* of (token, slot) */
	const int32_t *offs; /* of the group's first expert */
	const int32_t *src;
	float *part, *dwt; /* part is scratch; of WEIGHTS: sums over parts of an expert's rows */
	int *arrived;	   /* of WEIGHTS: parts that are done, for each tile; zero */
	int part_rows;
	size_t tk;
	int experts, r, f, parts;
	float beta1, beta2;
	int accumulate[2];
	/* of the products of moe_task.h */
	const void *add[2];
	const float *dl;
	const int32_t *ids;
	int k, n_experts;
};

/* columns of part for either way; the scratch is for the narrower blocks */
enum { WGMMA_PART_COLS = 128, FMA_PART_COLS = 64 };

/* How WEIGHTS cuts the rows of an expert on the tensor cores: parts of at most `rows`; the scratch holds
 * `floats` sums, then `counts`, the first of them one for each of `tiles` tiles that may have more
 * than one part. */
struct expert_parts {
	size_t rows, floats, tiles, counts;
};
struct expert_parts k3i_expert_weights_parts(size_t tk, size_t r, size_t f);

/** The device and all operands are for the tensor cores. */
bool k3i_expert_wgmma_can(const struct expert_task *task);
void k3i_expert_wgmma(enum expert_product product, const struct expert_task *task,
		      const struct k3_cuda *cuda);
/** WEIGHTS on the tensor cores, right behind the kernel that makes y[1]. */
void k3i_expert_weights(const struct expert_task *task, const struct k3_cuda *cuda);
void k3i_expert_fma(enum k3_cuda_type type, enum expert_product product,
		    const struct expert_task *task, const struct k3_cuda *cuda);

#endif
