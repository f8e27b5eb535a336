/* Attention-residual mix and norm backward: what a team computes of a token whose rows lie in the
 * slots of its ring, from the mix to the coefficients of the outputs. */
#ifndef K3_ATTNRES_MIX_BWD_SLOTS_CUH
#define K3_ATTNRES_MIX_BWD_SLOTS_CUH
#include "../cuda/ring.cuh"
#include "mix_bwd.cuh"

/* A lane's statistics of value `lane` of a token, and the norm's factor. */
struct bwd_stat {
	float share, factor, score, r;
};

/* A team's places in shared memory: sums by warps, coefficients of the warp. */
struct bwd_shared {
	float *dots, *norm, *slopes;
};

static __device__ __forceinline__ void
stat_load(struct bwd_stat *s, const float *stat, uint32_t n, size_t token)
{
	uint32_t lane = threadIdx.x % 32;
	const float *from = stat + token * (3 * n + 1);

	s->r = from[3 * n];
	s->share = s->factor = s->score = 0;
	if (lane >= n)
		return;
	s->share = from[lane];
	s->factor = from[n + lane];
	s->score = from[2 * n + lane];
}

/* x = sum of the values by their shares. */
template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
mix_slots(float (*x)[N], const struct row_ring &ring, uint32_t slot, const uint32_t *at,
	  float share, uint32_t n)
{
#pragma unroll
	for (int p = 0; p < PACKS; p++)
#pragma unroll
		for (int i = 0; i < N; i++)
			x[p][i] = 0;
#pragma unroll 2
	for (uint32_t j = 0; j < n; j++, slot = ring_ahead(ring, slot, 1)) {
		float a = __shfl_sync(0xffffffffu, share, j);
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			float v[N];
			slot_wide<T>(v, slot + at[p]);
#pragma unroll
			for (int i = 0; i < N; i++)
				x[p][i] += a * v[i];
		}
	}
}

/* <v_j, g> and <v_j, x> of all values by warps, to dots; g = dy w. */
template <typename T, int PACKS, int N>
static __device__ __forceinline__ void
dot_slots(float *dots, const struct row_ring &ring, uint32_t slot, const uint32_t *at,
	  const float (*g)[N], const float (*x)[N], uint32_t n)
{
	for (uint32_t j = 0; j < n; j += MIX_GROUP) {
		float sums[2 * MIX_GROUP] = {};
#pragma unroll
		for (int q = 0; q < MIX_GROUP; q++) {
			if (j + q >= n)
				continue;
#pragma unroll
			for (int p = 0; p < PACKS; p++) {
				float v[N];
				slot_wide<T>(v, slot + at[p]);
#pragma unroll
				for (int i = 0; i < N; i++) {
					sums[2 * q] += v[i] * g[p][i];
					sums[2 * q + 1] += v[i] * x[p][i];
				}
			}
			slot = ring_ahead(ring, slot, 1);
		}
		mix_put(dots, sums, j, n);
	}
}

/* Coefficients of the outputs, four floats a value, for the warp; r m of the norm's gradient. */
static __device__ __forceinline__ float
slopes_put(const struct bwd_shared &s, const struct bwd_stat &stat, uint32_t n, uint32_t d)
{
	uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
	float by_d = 1.0f / (float)d, gx = 0, vg = 0, vx = 0;

	for (uint32_t k = 0; k < warps; k++)
		gx += s.norm[k];
	if (lane < n) {
		vg = mix_get(s.dots, 2 * lane);
		vx = mix_get(s.dots, 2 * lane + 1);
	}
	float rm = stat.r * stat.r * gx * by_d, da = lane < n ? stat.r * (vg - rm * vx) : 0.0f;
	float scale = stat.share * (da - warp_sum(stat.share * da)) * stat.factor;
	if (lane < n)
		*(float4 *)(s.slopes + 4 * lane) =
			make_float4(stat.share, scale, -scale * stat.score * stat.factor * by_d, 0);
	__syncwarp();
	return rm;
}

#endif
