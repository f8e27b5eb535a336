/* Parameter blocks of any sizes in one launch: the grid counts tiles of all of them, and a thread
 * block looks its own up. */
#ifndef K3_OPTIM_FLAT_CUH
#define K3_OPTIM_FLAT_CUH
#include "../cuda/device.cuh"

enum { FLAT_MOST = 16 };

struct flat {
	uint32_t n;
	size_t elems[FLAT_MOST];
	size_t first_tile[FLAT_MOST + 1];
};

struct flat_tile {
	uint32_t buffer;
	size_t tile; /* of the buffer */
};

static inline struct flat
flat_of(const size_t *elems, uint32_t n, size_t tile)
{
	struct flat f = {};

	f.n = n;
	for (uint32_t i = 0; i < n; i++) {
		f.elems[i] = elems[i];
		f.first_tile[i + 1] = f.first_tile[i] + (elems[i] + tile - 1) / tile;
	}
	return f;
}

static __device__ __forceinline__ struct flat_tile
flat_find(const struct flat &f, size_t tile)
{
	uint32_t i = 0;

	while (i + 1 < f.n && tile >= f.first_tile[i + 1])
		i++;
	return {i, tile - f.first_tile[i]};
}

#endif
