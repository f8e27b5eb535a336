/* Warpgroup products of the walks: the left operand is in registers, as pairs of a rounded
 * accumulator; the right one is a tile of 64 rows in shared memory.
 */
#ifndef K3_KDA_WGMMA_CUH
#define K3_KDA_WGMMA_CUH

#include "kda_ptx.cuh"

enum { WALK_ROWS = 64, WALK_PANEL = WALK_ROWS * PANEL_ROW_BYTES };

/** d [64, N] = (add ? d : 0) +- A B, A [64, 16].  B: 16 columns of N rows, or DOWN: N columns of 16
 * rows. */
template <int N, bool MINUS, bool DOWN>
static __device__ __forceinline__ void
wgmma_left(float *d, const uint32_t *a, uint64_t b, int add)
{
	static_assert(N == 64 || N == 128, "no such product");
#if K3_WGMMA
	if constexpr (N == 64)
		asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
			     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" K3_REG32
			     "}, {%32,%33,%34,%35}, %36, p, %38, 1, %39;}"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
			       "n"(MINUS ? -1 : 1), "n"(DOWN));
	else
		asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
			     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" K3_REG64
			     "}, {%64,%65,%66,%67}, %68, p, %70, 1, %71;}"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
			       "n"(MINUS ? -1 : 1), "n"(DOWN));
#endif
}

/** d (+)= A tile^T, sums over the 16 STEPS columns of a tile of 64 rows. */
template <int STEPS, bool MINUS>
static __device__ __forceinline__ void
times_transposed(float *d, const uint32_t *a, uint32_t tile, bool add)
{
#pragma unroll
	for (int k = 0; k < STEPS; k++)
		wgmma_left<64, MINUS, false>(d, a + 4 * k, k_major(tile, WALK_ROWS, 0, k),
					     add || k > 0);
}

/** d += or -= A tile, sums over the 64 rows of a tile of two panels. */
template <bool MINUS>
static __device__ __forceinline__ void
times_tile(float *d, const uint32_t *a, uint32_t tile)
{
#pragma unroll
	for (int k = 0; k < WALK_ROWS / 16; k++)
		wgmma_left<128, MINUS, true>(d, a + 4 * k, mn_major(tile, WALK_ROWS, k), 1);
}

/** d (+)= left^T tile, sums over the 64 rows of both; left has 64 columns, tile COLS. */
template <int COLS>
static __device__ __forceinline__ void
tiles_product(float *d, uint32_t left, uint32_t tile, bool add)
{
#pragma unroll
	for (int k = 0; k < WALK_ROWS / 16; k++)
		wgmma_shared<COLS, true>(d, mn_major(left, WALK_ROWS, k),
					 mn_major(tile, WALK_ROWS, k), add || k > 0);
}

/** Accumulators of N columns, rounded, as left operand. */
template <int N>
static __device__ __forceinline__ void
round_left(uint32_t *to, const float *d)
{
#pragma unroll
	for (int i = 0; i < N / 4; i++)
		to[i] = bf16_pair(d[2 * i], d[2 * i + 1]);
#pragma unroll
	for (int i = 0; i < N / 4; i++)
		asm volatile("" : "+r"(to[i])::"memory");
}

#endif
