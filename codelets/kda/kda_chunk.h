/* What the forward and the backward chunk kernel share (kda_chunk_cpu.c has the explanation). */
#ifndef K3_KDA_CHUNK_H
#define K3_KDA_CHUNK_H
#include <stdint.h>

#include "kda_lanes.h"
#include "kda_tile.h"

/* Takes n floats, rounded up to whole cache lines, from the work buffer. */
static inline float *
k3i_take(float **work, size_t n)
{
	float *p = *work;

	*work += k3_kda_pad(n);
	return p;
}

/** The work buffer from its first cache line on. */
static inline float *
k3i_align(void *work)
{
	return (float *)(((uintptr_t)work + 63) / 64 * 64);
}

/** c [rows, n] = (add ? c : 0) + a b with a lower triangular [rows, CHUNK] and b in panels of ldb
 * rows: each sub-block of rows meets the part of b that it has factors for. */
static inline void
k3i_lower_product(float *c, size_t ldc, int add, const float *a, const float *b, size_t ldb,
		  size_t rows, size_t n)
{
	for (size_t r = 0; r < rows; r += K3I_SUB)
		k3i_kda_lanes()->product(c + r * ldc, ldc, add, 1.0f, a + r * K3I_CHUNK, K3I_CHUNK,
					 1, b, ldb, K3I_SUB, n, r + K3I_SUB);
}

/** The same with the transpose of a. */
static inline void
k3i_upper_product(float *c, size_t ldc, int add, const float *a, const float *b, size_t ldb,
		  size_t rows, size_t n)
{
	for (size_t r = 0; r < rows; r += K3I_SUB)
		k3i_kda_lanes()->product(c + r * ldc, ldc, add, 1.0f, a + r * K3I_CHUNK + r, 1,
					 K3I_CHUNK, b + r * 2 * K3I_SUB, ldb, K3I_SUB, n, rows - r);
}

/** Room of the chunk but for what the backward keeps per chunk. */
void k3i_kda_chunk_init(struct k3i_kda_chunk *c, const struct k3_kda_chunk_args *a, float **work);
/** What is kept: m, p, t, wu, vt and the entering state s. */
void k3i_kda_chunk_keep(struct k3i_kda_chunk *c, float **work);
/** Gate constants of head h. */
void k3i_kda_chunk_head(struct k3i_kda_chunk *c, const struct k3i_kda_head *x,
			const struct k3_kda_chunk_args *a);
/** Packs the rows order[0 .. n-1], n <= K3I_CHUNK, and forms their decays. */
void k3i_kda_chunk_pack(struct k3i_kda_chunk *c, const struct k3i_kda_head *x, const int32_t *order,
			size_t n, int raw);
/** m, p, t, W and U; left [SUB, kp]. */
void k3i_kda_chunk_intra(struct k3i_kda_chunk *c, float *left);
/** V~; o = the state part of the output where with_output; then s_next = state after the chunk (may
 * be s, or NULL).  Leaves V~ in panels of CHUNK rows. */
void k3i_kda_chunk_scan(struct k3i_kda_chunk *c, float *s_next, int with_output);
/** State [k, v] <-> padded [kp, vp]; src NULL: zeros. */
void k3i_kda_state_load(const struct k3i_kda_chunk *c, float *s, const float *src);
void k3i_kda_state_store(const struct k3i_kda_chunk *c, float *dst, const float *s);

#endif
