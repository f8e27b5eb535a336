/* What the forward and the backward chunk kernel share (kda_chunk_cpu.c has the explanation). */
#ifndef K3_KDA_CHUNK_H
#define K3_KDA_CHUNK_H
#include <cblas.h>
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

/** c [m, n] = alpha op(a) op(b) + beta c, contraction length n_sum. */
static inline void
k3i_gemm(enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t n_sum,
	 float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
	 size_t ldc)
{
	cblas_sgemm(CblasRowMajor, ta, tb, (blasint)m, (blasint)n, (blasint)n_sum, alpha, a,
		    (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
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
/** m, p, t, W and U; tmp [2 SUB, CHUNK], left [2 SUB, kp], right [CHUNK, kp]. */
void k3i_kda_chunk_intra(struct k3i_kda_chunk *c, float *tmp, float *left, float *right);
/** V~ and the state part of o into vt; then s_next = state after the chunk (may be s, or NULL). */
void k3i_kda_chunk_scan(struct k3i_kda_chunk *c, float *s_next);
/** Appends sub-block b to the right operands of the rows behind it: right[j] = k_j exp(G_end of b -
 * G_j). */
void k3i_kda_chunk_push_right(const struct k3i_kda_chunk *c, float *right, size_t b);
/** State [k, v] <-> padded [kp, vp]; src NULL: zeros. */
void k3i_kda_state_load(const struct k3i_kda_chunk *c, float *s, const float *src);
void k3i_kda_state_store(const struct k3i_kda_chunk *c, float *dst, const float *s);

#endif
