/* The plan: the whole step as data.
 *
 * A plan is built for one rank of a mesh and one microbatch layout (or for the optimizer step, or
 * for the initial values) by pure functions, checked (plan_check.h), then submitted task by task in
 * this order (tasks/), printed or simulated. Nothing here knows StarPU, MPI or CUDA.
 *
 * Three kinds of place hold data:
 *  - persistent data (parameters, gradients, moments, buffers, scalars of the step): entries
 *    0 .. model->n_persist-1 of every plan's data table, the same index in every plan of a model;
 *    each is one handle that lives as long as the run;
 *  - slots: everything short-lived (activations, gradients of activations, work space, inputs,
 *    gathered copies) is assigned to a slot of its size class.  Two data in one slot are ordered by
 *    their accesses, since the second writer waits for the last reader of the first.  Slots are
 *    shared by all plans of a run: slot i of a class is the same handle everywhere.  So memory is
 *    bounded by persistent data + slots under every schedule that the edges allow;
 *  - what another rank holds: not in this table.  It arrives through a communication task that
 *    writes a slot here.
 *
 * A handle lives in main memory and, where a GPU worker uses it, in a copy on that GPU's memory
 * node; StarPU makes, invalidates and evicts those copies.  The plan counts each node's copies as
 * if everything were there: that is the bound per node.
 *
 * Lifetimes count positions.  A position is a place in the canonical order of submission, the same
 * for every document layout of one (T, tile): a task that a layout does not need still takes its
 * position, so the slots do not depend on the documents.
 */
#ifndef K3_PLANNER_PLAN_H
#define K3_PLANNER_PLAN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/config.h"
#include "../common/ops.h"
#include "../common/safetensors.h"
#include "machine.h"
#include "memory.h"
#include "params.h"
#include "plan_options.h"
#include "vision_split.h"

enum k3_mode { K3_R = 1, K3_W = 2, K3_RW = 3 };

enum k3_data_kind {
	K3_DATA_PARAM,
	K3_DATA_GRAD,
	K3_DATA_EXP_AVG,
	K3_DATA_EXP_AVG_SQ, /* per row block of a parameter */
	K3_DATA_COPY,	    /* the same in bf16, of matrices, for the tasks to read */
	K3_DATA_BUFFER,	    /* router bias, balance counts, scalars */
	K3_DATA_INPUT,	    /* token ids, labels, layout, forced routes: written by batch_load */
	K3_DATA_ACT,	    /* activations and their gradients */
	K3_DATA_WORK,	    /* work space of one task */
	/* a unit's parameters gathered from the shard group, or its full gradients */
	K3_DATA_GATHERED,
	K3_N_DATA_KINDS
};

enum { K3_NO_SLOT = -1, K3_NO_DATUM = -1 };

struct k3_datum {
	const char *what;    /* e.g. "qkv", "prefix"; static string */
	uint8_t kind;	     /* enum k3_data_kind */
	uint8_t dtype;	     /* enum k3_dtype */
	bool keep;	     /* lives to the end of the plan: the host reads it afterwards */
	int16_t layer;	     /* -1: none */
	int32_t tile, index; /* token tile; head group, expert group, block; -1: none */
	int32_t param;	     /* of persistent blocks and gathered copies, else -1 */
	size_t row0, rows, row_elems; /* rows of the parameter or tile; elements of a row */
	size_t bytes;		      /* rows * row_elems * size of the type */
	size_t slot_bytes;	      /* with a tile's nominal rows: size class before rounding */
	int32_t slot;		      /* index in plan->slot, K3_NO_SLOT for persistent data */
	/* persistent data may share a handle (whole.c): datum + 1 whose handle holds this one, at
	 * byte `at`; 0: it has its own, of whole_bytes when others are in it */
	uint32_t whole;
	size_t at, whole_bytes;
	uint32_t first_pos, last_pos; /* lifetime in positions; first > last: never used */
};

enum { K3_MOST_BUFFERS = (1 << 24) - 1 };
struct k3_access {
	uint32_t datum;
	uint32_t mode : 8;    /* enum k3_mode */
	uint32_t buffer : 24; /* place of its handle among the task's */
};

enum k3_pass {
	K3_PASS_FORWARD,
	K3_PASS_BACKWARD,
	K3_PASS_OPTIMIZER,
	K3_PASS_SETUP,
	K3_PASS_RECOMPUTE, /* forward tasks again, just before a layer's backward tasks */
	K3_N_PASSES
};

struct k3_task {
	uint16_t op;   /* enum k3_op */
	uint8_t pass;  /* enum k3_pass */
	int16_t layer; /* -1: none */
	int32_t tile;  /* -1: none */
	int32_t group; /* head group, expert group, vocabulary or parameter block; -1: none */
	uint32_t first_access, n_access; /* in plan->access, in the order of the kernel's buffers */
	uint32_t n_buffers;		 /* handles: fewer, when data share one */
	uint32_t pos;
	const struct k3_plan *plan; /* that it belongs to */
	const void *args;	    /* k3_<op>_args in the plan's arena; NULL: it has none */
	const char *name;	    /* "kda_chunk_fwd.l2.t0.g1", no blanks; lives with the plan */
	double flops, bytes;	    /* arithmetic and data moved, from the shapes */
	double param_bytes;	    /* of the bytes: parameters, their gradients and moments */
	double cost_us;		    /* from operation, flops and bytes: k3_task_cost_us */
	/* scratch of a CPU worker, whose kernel computes on float copies of bf16 operands; 0: the
	 * kernel takes the buffers as they are */
	size_t wide_bytes;
	int32_t priority; /* 0 .. K3_MAX_PRIORITY */
	/* communication only */
	int32_t comm;	    /* index in plan->comm, -1 else */
	int32_t peer;	    /* rank of the other side (point to point), of the root; else -1 */
	uint64_t count;	    /* elements per member */
	uint8_t comm_dtype; /* enum k3_dtype */
};
enum { K3_MAX_PRIORITY = 10000, K3_BLOCK_BYTES = 64 << 20, K3_GPU_LOGITS_BYTES = 1 << 30 };

/* Slot: a place for short-lived data; (slot_class bytes, ordinal) names the same handle in all
 * plans of a run. */
struct k3_slot {
	size_t bytes;	  /* of the class, rounded up */
	uint32_t ordinal; /* number within the class */
};

/* A group of ranks; created once at start-up on all ranks in the order of this table. */
struct k3_comm {
	char name[32]; /* e.g. "shard", "cp", "replicate", "world" */
	uint32_t n_members;
	uint32_t *member; /* global ranks, ascending */
};

/* Everything that does not depend on the batch: configuration, parameter table, persistent data of
 * this rank. */
struct k3_model {
	struct k3_config config;
	struct k3_plan_options options; /* zeros replaced by what was chosen */
	struct k3_machine machine;	/* options.machine points here */
	struct k3_params params;
	size_t n_persist;
	struct k3_datum *persist;
	/* persistent index of ... */
	/* [params.n] the first block's PARAM; GRAD, EXP_AVG, EXP_AVG_SQ follow at + n_blocks each */
	uint32_t *param_block;
	uint32_t n_blocks; /* row blocks of this rank over all parameters */
	int32_t *copy;	   /* [n_blocks] the bf16 copy that tasks read in a block's place, or -1 */
	int32_t *bias, *balance;	       /* [layers] datum or -1 */
	uint32_t hyper, loss_acc;	       /* scalars of the step */
	uint32_t step_out[2];		       /* alternates with the parity of the step */
	uint32_t norm_partial, n_norm_partial; /* one per gradient-norm task */
	/* [n_blocks] row blocks in table order, and in that of their updates: as the next step
	 * reads them, of each layer the vectors first */
	uint32_t *table, *update;
	uint32_t n_updates;	/* tasks that update */
	uint32_t turn, n_turns; /* each of so many data lets one update follow another (GPUs) */
	/* fingerprint words: loss, gradient blocks, parameter blocks; 0 when off */
	uint32_t hash, n_hash;
	uint64_t persist_bytes;
};

/**
 * @param config  must have passed k3_config_check; copied
 * @return K3_OK, K3_ENOMEM, K3_EINVAL (an option is outside its domain; logged with value and what
 *         is allowed)
 */
int k3_model_create(struct k3_model **model, const struct k3_config *config,
		    const struct k3_plan_options *options);
void k3_model_destroy(struct k3_model *model); /* NULL is legal */

/* Documents of one microbatch: the whole stream of a data-parallel rank, before it is cut among cp
 * ranks. */
struct k3_layout {
	size_t n_tokens;	/* T >= 1 */
	const int32_t *doc_ids; /* [T]; 0 = padding or hole; 1.. ascending, each one run, which may
				   hold holes */
	/* images and videos whose features replace embeddings; 0 in a text model */
	size_t n_items;
	const struct k3_grid *grid; /* [n_items] */
	const uint32_t *item_row; /* [n_items] first row of the stream that the features go to; they
				       take h/merge_h * w/merge_w rows; ascending, disjoint */
};

/** Refuses negative ids, and ids that descend or come back after another document, with the
 * position. @return K3_OK, K3_EINVAL, K3_ESHAPE (no token, or more than 2^31-1; logged) */
int k3_layout_check(const struct k3_layout *layout);
/**
 * Checks the items of a layout against model, stream and limits: grids, rows that the features go to
 * (in order, inside the stream), and where slots are bounded, patches and vision tiles.  All that is
 * wrong is logged, with the item's number and the option that would do.
 * @return K3_OK, K3_ESHAPE, K3_ELIMIT (more than the options allow)
 */
int k3_vision_check_items(const struct k3_config *config, const struct k3_plan_options *options,
			  const struct k3_layout *layout);
/** 64-bit hash of a layout; equal layouts give equal plans. */
uint64_t k3_layout_hash(const struct k3_layout *layout);

struct k3_tile {
	uint32_t owner_cp;	     /* cp index of the rank that owns it */
	size_t row0, rows;	     /* global rows of the stream */
	int32_t first_doc, last_doc; /* of its valid rows; 0: the tile has none */
	int32_t prev;		     /* tile whose state and halo the first segment continues; -1 */
	int32_t next;		     /* tile that continues the last segment; -1 */
	int32_t *layout;	     /* tile layout (op.h), [k3_tile_layout_len(rows)] */
};

struct k3_plan {
	const struct k3_model *model;
	size_t n_data;
	struct k3_datum *data; /* 0 .. n_persist-1: copies of the model's persistent data */
	size_t n_tasks;
	struct k3_task *task;
	size_t n_access;
	struct k3_access *access;
	size_t n_slots;
	struct k3_slot *slot;
	size_t n_comms;
	struct k3_comm *comm;
	size_t n_tiles; /* all tiles of the stream, in row order */
	struct k3_tile *tile;
	size_t own_first, own_n;   /* tiles of this rank */
	size_t n_tokens, own_rows; /* T of the stream (padded to the ranks); rows of this rank */
	uint32_t n_pos;
	/* most wide_bytes of a task, whatever the documents and images: also of tasks that these do
	 * not need */
	size_t wide_bytes;
	uint64_t layout_hash;
	double flops;	     /* of all tasks */
	uint64_t slot_bytes; /* of all slots */
	/* rounds of the loops that search while a plan is built: they grow like its positions,
	 * which tests hold fast */
	uint64_t steps;
	struct k3_arena *arena; /* owns everything above */
};

/* What a microbatch plan does. */
struct k3_microbatch {
	bool backward;	     /* false: loss only */
	bool first;	     /* of its step: gradients and counts are written, else added to */
	bool forced_routing; /* ids come with the batch */
	bool keep;	     /* prefixes, routes, logits and their gradients stay readable */
	bool keep_logits;    /* only the logits */
	bool count;	     /* expert loads are counted (training) */
	/* to measure vision alone: embeddings and tower without the text layers; the loss is
	 * half the square of the embeddings, which are their own gradient */
	bool tower;
};

/* Limits of one plan: 2^22 positions, whose tasks take about 2 GiB of the planner's memory, and
 * 2^26 tokens, whose tables take 1 GiB. */
enum { K3_MAX_POSITIONS = 1 << 22, K3_MAX_TOKENS = 1 << 26 };

/** A lower bound of the positions that a microbatch takes; nothing is built. */
double k3_plan_least_positions(const struct k3_model *model, size_t n_tokens, bool backward);
/**
 * Refuses what is sure to pass the limits, before anything is allocated for it.
 * @return K3_OK; K3_ELIMIT (logged: the values, what is allowed and what would help)
 */
int k3_plan_check_tokens(const struct k3_model *model, size_t n_tokens, bool backward);

/** Plans one microbatch. @return K3_OK, K3_ENOMEM, K3_EINVAL, K3_ESHAPE, K3_ELIMIT (logged). */
int k3_plan_microbatch(struct k3_plan **plan, const struct k3_model *model,
		       const struct k3_layout *layout, const struct k3_microbatch *what);
/** Plans the end of a step: norm, clip, AdamW, router bias (and fingerprint).
 * @param parity  which step_out is written */
int k3_plan_optimizer(struct k3_plan **plan, const struct k3_model *model, uint32_t parity);
/** Plans the initial values of parameters (seeded), moments (zero) and biases (zero). */
int k3_plan_init(struct k3_plan **plan, const struct k3_model *model, uint64_t seed,
		 bool parity_mixers);
void k3_plan_destroy(struct k3_plan *plan); /* NULL is legal */

/** Cost of a task on a CPU core, or on a GPU (NAN: it has no kernel there), us. */
double k3_task_cost_us(const struct k3_task *task, bool gpu);

/** Bytes of the place of a bf16 datum's float copy in a worker's scratch: for a full tile. */
static inline size_t
k3_wide_bytes(const struct k3_datum *datum)
{
	return (datum->slot_bytes * 2 + 63) / 64 * 64;
}

/** Persistent datum whose handle holds this one. */
static inline uint32_t
k3_datum_leader(const struct k3_datum *data, uint32_t datum)
{
	return data[datum].whole ? data[datum].whole - 1 : datum;
}

/** Bytes of a persistent datum's own handle; 0: another one's holds it. */
size_t k3_datum_place_bytes(const struct k3_datum *datum);

/** Datum of a plan by name, K3_NO_DATUM when there is none. */
int32_t k3_plan_find(const struct k3_plan *plan, const char *what, int layer, int tile, int index);
/** "o l3 t2 i1" into text; returns text. */
const char *k3_datum_label(const struct k3_datum *datum, char *text, size_t text_bytes);

#endif
