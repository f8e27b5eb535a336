/* What the builders share (inside planner/): a plan in the making. */
#ifndef K3_PLANNER_BUILD_H
#define K3_PLANNER_BUILD_H
#include "arena.h"
#include "plan.h"

/* Where the weights of a parameter are for the tasks of this rank: persistent blocks, or gathered
 * slots. */
struct k3_view {
	uint32_t *datum; /* [n] */
	size_t n, block_rows;
};

struct k3_builder {
	struct k3_plan *plan;
	const struct k3_model *model;
	const struct k3_config *config;
	struct k3_microbatch what;
	struct k3_view *weight, *grad; /* [params.n] */
	struct k3i_fsdp *fsdp; /* what is gathered here; NULL on a shard group of one rank */
	uint8_t *written; /* [data capacity]: a task of this plan, or an earlier plan, has written
			     it */
	size_t cap_data, cap_tasks, cap_access;
	struct k3_task *cur; /* task being built */
	uint8_t pass;
	enum k3_dtype act; /* of operands that are no fp32 island */
	bool widens;	   /* the current task's CPU kernel computes on float copies */
	size_t wide;	   /* scratch for the operands of the current task so far, phantom or not */
	bool phantom;	   /* tasks take positions and keep data alive, but are not there */
	uint32_t pos;
	int status; /* first failure; later calls do nothing */
	/* where a build that has failed writes: arguments of tasks; arrays of datum indices */
	max_align_t args_sink[64];
	uint32_t *array_sink;
	size_t array_sink_n;
};

/** Refuses what can't be, with a message; replaces zeros by what is chosen. */
int k3i_options_choose(struct k3_plan_options *options, const struct k3_config *config);

int k3i_builder_init(struct k3_builder *b, const struct k3_model *model);
/** Assigns slots, priorities; hands the plan over, or destroys it when something failed. */
int k3i_builder_finish(struct k3_builder *b, struct k3_plan **plan);

/** New short-lived datum; nominal_rows sizes its slot. */
uint32_t k3i_data(struct k3_builder *b, const char *what, enum k3_data_kind kind,
		  enum k3_dtype dtype, int layer, int tile, int index, size_t rows,
		  size_t nominal_rows, size_t row_elems);

/** Persistent datum that tasks read in the place of a row block: its bf16 copy, or the block
 * itself. */
uint32_t k3i_source(const struct k3_model *model, uint32_t block);

/** Begins a task and takes its position; args of args_bytes are zeroed.  In phantom mode that is
 * all: what follows up to k3i_task_end extends lifetimes, without an access. */
void *k3i_task(struct k3_builder *b, enum k3_op op, int layer, int tile, int group,
	       size_t args_bytes);
/** Ends it: writes the number of buffers into the arguments, adds cost. bytes 0: k3i_moved_bytes of
 * all accesses. */
void k3i_task_end(struct k3_builder *b, double flops, double bytes);
/** Bytes that accesses first .. first + n - 1 of the current task move: what is read or written
 * counts once, what is updated twice; work space is written and read again while a cache holds it,
 * and counts once. n is cut at the last access. */
double k3i_moved_bytes(const struct k3_builder *b, uint32_t first, uint32_t n);
/** Scratch that an operation may need whatever the images are: for n operands like one datum and
 * m like another. */
void k3i_wide_most(struct k3_builder *b, uint32_t datum, size_t n, uint32_t other, size_t m);
/** Takes the position of a task that this layout does not need. */
void k3i_skip(struct k3_builder *b);
/** The same for a task that would need work space: its slot is there whatever the layout. */
void k3i_skip_work(struct k3_builder *b, size_t nominal_floats);

/** Adds an access to the current task; returns the buffer's index. */
uint32_t k3i_use(struct k3_builder *b, uint32_t datum, enum k3_mode mode);
/** Extends the lifetime of a datum to the current position without an access. */
void k3i_touch(struct k3_builder *b, uint32_t datum);
/** First contribution writes, later ones read-write; returns 1 if it accumulates. */
uint32_t k3i_use_sum(struct k3_builder *b, uint32_t datum);
/** A list of one, or absent when datum is K3_NO_DATUM. */
void k3i_list_one(struct k3_builder *b, struct k3_list *list, int32_t datum, enum k3_mode mode);
void k3i_list(struct k3_builder *b, struct k3_list *list, const uint32_t *datum, size_t n,
	      enum k3_mode mode);
/** Work space of the current task. */
void k3i_work(struct k3_builder *b, size_t nominal_floats);
/** A parameter as an operand: weights are read, gradients are sums. */
void k3i_weight(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer);
void k3i_grad(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer);
/** Extends the lifetime of a parameter's weights, for a task that is skipped. */
void k3i_touch_weight(struct k3_builder *b, enum k3_role role, int layer);
/** One row block of a parameter alone, as a weight of one block. */
void k3i_weight_block(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer,
		      size_t block);
void k3i_grad_block(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer,
		    size_t block);

/* planner/fsdp.c: bring a unit's parameters here before its tasks, let them go, reduce its
 * gradients.  On a shard group that does not communicate these do nothing. part: -1 all but
 * experts, else an expert group. */
void k3i_unit_open(struct k3_builder *b, enum k3_unit unit, int layer, int part);
void k3i_unit_close(struct k3_builder *b, enum k3_unit unit, int layer, int part);
void k3i_unit_reduce(struct k3_builder *b, enum k3_unit unit, int layer, int part);
/* In the optimizer's plan: sums of the step over the ranks (gradients over replicas, loss, expert
 * loads), before the norm; then the norm's partial sums over the shard group.  They do nothing on
 * one rank. */
void k3i_reduce_step(struct k3_builder *b);
void k3i_reduce_norm(struct k3_builder *b);
/** Fills the plan's communicators from the mesh. */
void k3i_comms(struct k3_builder *b);
/** Begins a communication task: k3i_task with communicator (index in plan->comm), peer (-1:
 * collective), elements per member. */
void *k3i_comm_task(struct k3_builder *b, enum k3_op op, int layer, int tile, int group,
		    int32_t comm, int32_t peer, uint64_t count, enum k3_dtype dtype,
		    size_t args_bytes);

/* planner/layout.c */
int k3i_layout_tiles(struct k3_builder *b, const struct k3_layout *layout);

/* Positions that work space stays reserved after its task: a few of them keep the workers apart. */
enum { K3I_WORK_AHEAD = 6 };

/* planner/slots.c, planner/priority.c */
int k3i_assign_slots(struct k3_builder *b);
void k3i_assign_priorities(struct k3_plan *plan);

#endif
