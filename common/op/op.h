/* What all operations share: how a task's arguments name its data.
 *
 * A kernel is a plain function
 *
 *   void k3_<op>_cpu_f32(void *const *buf, const struct k3_<op>_args *a);
 *
 * buf[] holds the task's data in the order that the operation's header documents:
 *
 *   fixed operands (outputs first), then lists (struct k3_list), then weights (struct k3_weight).
 *
 * Lists and weights take a variable number of buffers, so the arguments say where they begin.
 * The same arguments serve every kind of device, and the planner (plain C) fills them.
 * Matrices are row-major without padding unless a leading dimension is named.
 * Types: in bf16 mode operands of floating numbers are bf16, but
 *   - those marked (f32): statistics, scores, states, what is summed over a tile;
 *   - work buffers;
 *   - parameter vectors, convolution taps and the router bias (k3_param_is_matrix says which are
 *     matrices), and the gradients of all parameters;
 * f64 and i32 stay what they are.  Everything is computed in fp32, results are rounded once.
 * "W/RW": the first contribution to a sum writes (flag `accumulate` = 0 in the arguments: the
 * kernel must set every element, nothing may be read), later ones add (`accumulate` = 1). */
#ifndef K3_OP_OP_H
#define K3_OP_OP_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

/* Of an inline function that kernels on a GPU call as well. */
#ifdef __CUDACC__
#define K3_ON_ANY __host__ __device__
#else
#define K3_ON_ANY
#endif

/** n buffers from buf[first] on. n = 0: the operand is absent. */
struct k3_list {
	uint32_t first, n;
};

/** A matrix [rows, cols] cut in row blocks: buffer first + b holds rows b*block_rows .. (the last
 * may be short). A vector is a matrix of one row. n = 0: absent. */
struct k3_weight {
	uint32_t first, n;
	size_t rows, cols, block_rows;
	uint32_t accumulate; /* of a gradient: 0 writes, 1 adds */
};

/** Every arguments struct begins with this. */
struct k3_args_head {
	uint32_t n_buf; /* buffers of the task */
};

/** Heads of group g of h heads: `each`, of the last group what is left.
 * @param first  out: the group's first head */
static inline size_t
k3_heads_of_group(size_t h, size_t each, size_t g, size_t *first)
{
	size_t left;

	*first = g * each;
	left = h - *first;
	return left < each ? left : each;
}

/* The tile layout: one int32 datum per tile, made by the planner from the document ids.
 * Tokens with document id 0 are padding or masked holes; a document may hold holes, which do not
 * end it. */
enum k3_tile_header {
	K3_TL_ROWS,	/* t, rows of the tile */
	K3_TL_VALID,	/* rows with a document */
	K3_TL_SEGMENTS, /* documents that touch the tile */
	K3_TL_ROW0,	/* global row of the tile's first row */
	K3_TL_CONT_IN,	/* 1: the first segment continues a document of an earlier tile */
	K3_TL_CONT_OUT, /* 1: the last segment's document goes on in a later tile */
	K3_TL_HIST_IN,	/* valid rows of the entering halo, <= taps - 1; 0 if not CONT_IN */
	K3_TL_HIST_OUT, /* valid rows of the leaving halo, <= taps - 1; 0 if not CONT_OUT */
	K3_TL_HEAD	/* length of the header */
};

/** Length of the layout datum, in int32. */
static inline size_t
k3_tile_layout_len(size_t t)
{
	return K3_TL_HEAD + 3 * t + 1;
}

/** Document id of each row [t]; 0 = padding. */
static inline const int32_t *
k3_tile_doc(const int32_t *layout)
{
	return layout + K3_TL_HEAD;
}

/** Valid rows in ascending order [valid]; segments are consecutive in it. */
static inline const int32_t *
k3_tile_order(const int32_t *layout)
{
	return layout + K3_TL_HEAD + layout[K3_TL_ROWS];
}

/** Segment s is order[seg[s]] .. order[seg[s+1]-1]; [segments + 1]. */
static inline const int32_t *
k3_tile_segments(const int32_t *layout)
{
	return layout + K3_TL_HEAD + 2 * (ptrdiff_t)layout[K3_TL_ROWS];
}

#endif
