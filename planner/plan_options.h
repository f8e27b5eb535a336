/* What a plan is made for: mesh, cuts, types, rules of the optimizer. */
#ifndef K3_PLANNER_PLAN_OPTIONS_H
#define K3_PLANNER_PLAN_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/config.h"
#include "../common/ops.h"
#include "machine.h"

/* What a layer's forward pass leaves for its backward pass. */
enum k3_activation {
	/* everything that the backward tasks read */
	K3_KEEP,
	/* the prefixes before and after attention, the routes and the experts' sum (of latent
	 * width); the rest is computed again before the backward tasks */
	K3_RECOMPUTE
};

/* rank = (replicate * dp_shard + shard) * cp + cp_index */
struct k3_mesh {
	uint32_t dp_replicate, dp_shard, cp;
	uint32_t rank;
	/* groups of one rank communicate like others: what one rank plans and runs is then what
	 * many do, but for the halos, which need a neighbour */
	bool forced;
};

/* Options of a program that a refusal may advise, beside --activations. */
enum k3_offer {
	K3_OFFER_MODEL = 1,  /* --layers, --vocab */
	K3_OFFER_TYPES = 2,  /* --dtype, --optimizer-dtype */
	K3_OFFER_TOKENS = 4, /* --tokens, --accumulate, --tile-tokens, --max-patches */
	K3_OFFER_MESH = 8    /* --mesh */
};

struct k3_plan_options {
	unsigned offers;      /* enum k3_offer; 0: the user can change nothing */
	uint32_t tile_tokens; /* multiple of 64; 0: one tile per rank */
	/* head groups; 0: chosen (two when there are two heads or more) */
	uint32_t kda_groups, mla_groups;
	uint32_t expert_groups; /* 0: chosen, see k3_params_init */
	uint32_t key_tiles;	/* most key tiles of one attention task; 0: 8 */
	/* most rows of an LM-head task; 0: as k3_plan_head_rows says; raised to 64, at most a
	 * tile */
	uint32_t head_rows;
	size_t block_bytes;    /* most bytes of a row block; 0: K3_BLOCK_BYTES */
	size_t piece_bytes;    /* most bytes of an FSDP gather; 0: 256 MiB */
	uint32_t gather_slots; /* gathered pieces alive at once: the prefetch depth; 0: 2 */
	uint32_t run_ahead;    /* positions that a slot stays reserved after its last use; 0: 24 */
	uint32_t vision_patches; /* most patches of a vision tile; 0: 256 */
	uint32_t vision_bands;	 /* bands that each image is cut in, a tile each (at most its merge
				    rows); 0: as vision_patches says */
	/* most patches of a microbatch: positions and slots are those of so many, whatever the
	 * images are; 0: not known, and slots are as the images need */
	uint64_t max_patches;
	bool vision; /* with the vision tower */
	/* K3_F32, or K3_BF16: type of activations and of the matrices that tasks read (op.h);
	 * gradients of parameters stay fp32 */
	enum k3_dtype dtype;
	/* K3_F32: fp32 masters and moments; K3_BF16 (with dtype K3_BF16): matrices have no masters,
	 * their moments are bf16 too (model.md 7) */
	enum k3_dtype optimizer_dtype;
	/* tasks run on GPUs where they can: the head is cut for them, costs are a GPU's */
	bool for_gpus;
	/* and there alone: no scratch of CPU workers counts in the bound */
	bool on_gpus;
	enum k3_balance_rule balance;
	uint32_t bins;	  /* of the quantile rule; 0: 1000 */
	double balance_u; /* of the sign rule; 0: 1e-3 */
	/* all as given */
	double adam_beta1, adam_beta2, adam_eps, weight_decay, clip_norm, clip_eps;
	bool fingerprint; /* the optimizer plan hashes loss, gradients and parameters */
	/* for tests: KDA state and convolution halo end at each tile, as if every tile began its
	 * documents; attention is not changed */
	bool cut_state;
	uint8_t activations[K3_MAX_LAYERS]; /* enum k3_activation of each layer */
	struct k3_mesh mesh;		    /* all zero: one rank */
	const struct k3_machine *machine;   /* whose rates the costs are; NULL: defaults. Copied
					       into the model */
};

/** Most rows of an LM-head task when nobody says: their logits stay within block_bytes, for GPUs
 * within K3_GPU_LOGITS_BYTES; 64 at least. */
uint32_t k3_plan_head_rows(const struct k3_plan_options *options, const struct k3_config *config);

/** Defaults of model.md 7: betas 0.9 0.95, eps 1e-8, weight decay 0.1, clip 1.0 with eps 1e-6,
 * quantile balance. */
void k3_plan_options_init(struct k3_plan_options *options);

#endif
