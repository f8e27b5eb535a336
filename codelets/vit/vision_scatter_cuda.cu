/* Features into the text, and their gradients back: copies of rows that the map on the device names.
 * A merged token belongs to one row at most, so rows of the gradient have one writer. */
#include "../cuda/pointers.cuh"
#include "../cuda/runs.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

enum { THREADS = 128, TILES_MOST = 64 };

struct tiles {
	struct k3_pointers<TILES_MOST> y, layout;
	uint32_t n;
};

template <typename T, int N>
static __device__ __forceinline__ void
copy_row(T *to, const T *from, size_t d)
{
	for (size_t c = threadIdx.x * N; c < d; c += THREADS * N) {
		if (N == 1)
			to[c] = from[c];
		else
			*(uint4 *)(to + c) = *(const uint4 *)(from + c);
	}
}

template <typename T, int N>
static __global__ void
scatter(T *p, const int32_t *map, const __grid_constant__ struct tiles tiles, size_t d)
{
	size_t i = blockIdx.x;

	for (uint32_t j = 0; map[i] >= 0 && j < tiles.n; j++) {
		int64_t row = k3_vit_merged_row((const int32_t *)tiles.layout.p[j], map[i]);
		if (row >= 0)
			copy_row<T, N>(p + i * d, (const T *)tiles.y.p[j] + (size_t)row * d, d);
	}
}

template <typename T, int N>
static __global__ void
gather(T *dy, const int32_t *layout, const T *dp, const int32_t *map, size_t d)
{
	size_t i = blockIdx.x;
	int64_t row = k3_vit_merged_row(layout, map[i]);

	if (row >= 0)
		copy_row<T, N>(dy + (size_t)row * d, dp + i * d, d);
}

template <typename T>
static void
vision_scatter_fwd(void *const *buf, const struct k3_vision_scatter_args *a,
		   const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *p = (T *)buf[0];
	const int32_t *map = (const int32_t *)buf[1];

	for (uint32_t first = 0; a->t && first < a->y.n; first += TILES_MOST) {
		struct tiles tiles;
		tiles.n = a->y.n - first < TILES_MOST ? a->y.n - first : TILES_MOST;
		tiles.y = pointers_of<TILES_MOST>(buf, a->y.first + first, tiles.n);
		tiles.layout = pointers_of<TILES_MOST>(buf, a->layout.first + first, tiles.n);
		if (a->d % n == 0)
			scatter<T, n><<<(unsigned)a->t, THREADS, 0, stream>>>(p, map, tiles, a->d);
		else
			scatter<T, 1><<<(unsigned)a->t, THREADS, 0, stream>>>(p, map, tiles, a->d);
		K3_CUDA_LAUNCHED("scatter");
	}
}

template <typename T>
static void
vision_scatter_bwd(void *const *buf, const struct k3_vision_scatter_args *a,
		   const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	cudaStream_t stream = (cudaStream_t)cuda->stream;
	T *dy = (T *)buf[0];
	const int32_t *layout = (const int32_t *)buf[1];

	K3_CUDA_CHECK(cudaMemsetAsync(dy, 0, a->m * a->d * sizeof(T), stream));
	for (uint32_t j = 0; j < a->dp.n; j++) {
		const T *dp = (const T *)buf[a->dp.first + j];
		const int32_t *map = (const int32_t *)buf[a->map.first + j];
		if (a->rows[j] == 0)
			continue;
		if (a->d % n == 0)
			gather<T, n><<<a->rows[j], THREADS, 0, stream>>>(dy, layout, dp, map, a->d);
		else
			gather<T, 1><<<a->rows[j], THREADS, 0, stream>>>(dy, layout, dp, map, a->d);
		K3_CUDA_LAUNCHED("gather");
	}
}

static void
zero_grads(void *const *buf, const struct k3_zero_args *a, const struct k3_cuda *cuda)
{
	for (uint32_t i = 0; !a->accumulate && i < a->n_buf; i++)
		K3_CUDA_CHECK(cudaMemsetAsync(buf[i], 0, a->elems[i] * sizeof(float),
					      (cudaStream_t)cuda->stream));
}

K3_CUDA_BOTH(vision_scatter_fwd, k3_vision_scatter_args)
K3_CUDA_BOTH(vision_scatter_bwd, k3_vision_scatter_args)
K3_CUDA_SAME(zero_grads, k3_zero_args)
