/* Tiles of attention operands for warpgroup products: how they come into shared memory.  The general
 * loader takes single elements and zeros behind the last column, so widths need not fill a
 * product. */
#ifndef K3_CUDA_ATTN_TILES_CUH
#define K3_CUDA_ATTN_TILES_CUH
#include "attn.cuh"

extern __shared__ unsigned char attn_shared[];

/** The first multiple of 1024 bytes in shared memory. */
static __device__ __forceinline__ unsigned char *
shared_base(void)
{
	uint32_t at = shared_address(attn_shared);

	return attn_shared + ((1024 - at % 1024) % 1024);
}

/* Rows row0 .. of an operand (a | b), for a tile. */
struct source {
	const k3_bf16 *a, *b;
	size_t ld;
	int na, nb;
};

static __device__ __forceinline__ struct source
x_of(const struct side<k3_bf16> *s)
{
	return {s->a, s->b, s->ld, s->na, s->nb};
}

static __device__ __forceinline__ struct source
y_of(const struct side<k3_bf16> *s)
{
	return {s->y, s->y, s->ldy, s->ny, 0};
}

static __device__ __forceinline__ const k3_bf16 *
element(const struct source *s, int row, int c)
{
	return c < s->na ? s->a + row * s->ld + c : s->b + row * s->ld + (c - s->na);
}

/** Which rows row0 + m LOADERS/8 + thread/8 of ROWS take part, as bit m: those of the run with an
 * id. */
template <int ROWS, int LOADERS>
static __device__ __forceinline__ uint32_t
rows_present(const struct tile_rows &t, const struct run &run, int row0, int thread)
{
	uint32_t present = 0;

	if (run.even && row0 >= run.from && row0 + ROWS <= run.to)
		return (uint32_t)((1ull << (ROWS * 8 / LOADERS)) - 1);
#pragma unroll 1
	for (int m = 0; m < ROWS * 8 / LOADERS; m++) {
		int row = row0 + LOADERS / 8 * m + thread / 8;
		bool there = row >= run.from && row < run.to;
		if (there && !run.even)
			there = row_id(&t, row) != 0;
		present |= (uint32_t)there << m;
	}
	return present;
}

/* Eight threads have a row, so a thread's pieces lie at fixed distances. */
template <int ROWS, int COLS, int LOADERS>
static __device__ __forceinline__ void
tile_copy(uint32_t tile, const struct source &s, uint32_t present, int row0, int thread)
{
	const int step = LOADERS / 8;
	int r = thread / 8, c = thread % 8, cols = s.na + s.nb;
	uint32_t to = tile + piece_at(ROWS, r, c);

#pragma unroll 1
	for (int col = 8 * c; col < COLS; col += PANEL_COLS, to += ROWS * PANEL_ROW_BYTES) {
		bool there = col < cols;
		const k3_bf16 *from = element(&s, row0 + r, there ? col : 0);
		uint32_t rows = there ? present : 0;
#pragma unroll 2
		for (int m = 0; m < ROWS / step; m++, from += step * s.ld)
			copy_16(to + m * step * PANEL_ROW_BYTES, rows >> m & 1 ? from : s.a,
				rows >> m & 1);
	}
}

/* The same where all rows and columns are there. */
template <int ROWS, int COLS, int LOADERS>
static __device__ __forceinline__ void
tile_copy_all(uint32_t tile, const struct source &s, int row0, int thread)
{
	const int step = LOADERS / 8;
	int r = thread / 8, c = thread % 8;
	uint32_t to = tile + piece_at(ROWS, r, c);
	size_t to_next = step * s.ld;

#pragma unroll
	for (int p = 0; p < panels(COLS); p++) {
		int col = PANEL_COLS * p + 8 * c;
		if (col >= COLS)
			break;
		const k3_bf16 *from = element(&s, row0 + r, col);
#pragma unroll
		for (int m = 0; m < ROWS / step; m++, from += to_next)
			copy_16(to + (p * ROWS + m * step) * PANEL_ROW_BYTES, from);
	}
}

/* The same with single elements, as ordinary stores. */
template <int ROWS, int COLS, int LOADERS>
static __device__ __forceinline__ void
tile_gather(uint32_t tile, const struct source &s, uint32_t present, int row0, int thread)
{
	const int step = LOADERS / 8;
	int cols = s.na + s.nb;

#pragma unroll 1
	for (int m = 0; m < ROWS / step; m++) {
		int row = step * m + thread / 8;
#pragma unroll 1
		for (int piece = thread % 8; piece < (COLS + 7) / 8; piece += 8) {
			uint4 raw = {0, 0, 0, 0};
			k3_bf16 *x = reinterpret_cast<k3_bf16 *>(&raw);
#pragma unroll
			for (int k = 0; k < 8; k++)
				if (present >> m & 1 && 8 * piece + k < cols)
					x[k] = *element(&s, row0 + row, 8 * piece + k);
			shared_store_16(tile + piece_at(ROWS, row, piece), raw);
		}
	}
}

/**
 * Starts to load rows row0 .. row0 + ROWS - 1 of an operand into a tile; rows that are not present
 * become zeros.
 * @param whole  widths are multiples of 8 and rows are aligned to 16 bytes
 */
template <int ROWS, int COLS, int LOADERS>
static __device__ __forceinline__ void
tile_load(uint32_t tile, const struct source &s, uint32_t present, int row0, bool whole, int thread)
{
	const uint32_t all = (uint32_t)((1ull << (ROWS * 8 / LOADERS)) - 1);

	if (whole && present == all && s.na + s.nb == COLS)
		tile_copy_all<ROWS, COLS, LOADERS>(tile, s, row0, thread);
	else if (whole)
		tile_copy<ROWS, COLS, LOADERS>(tile, s, present, row0, thread);
	else
		tile_gather<ROWS, COLS, LOADERS>(tile, s, present, row0, thread);
}

/* Which operands fit: element pairs and pieces of 16 bytes begin at their multiples. */
static inline bool
rows_whole(const struct k3_attn_rows *r)
{
	return r->ld % 8 == 0 && r->head % 8 == 0 && (uintptr_t)r->x % 16 == 0;
}

static inline bool
keys_whole(const struct k3_attn_keys *k, const void *x)
{
	return k->ld % 8 == 0 && k->head % 8 == 0 && k->k % 8 == 0 && k->rope % 8 == 0 &&
	       k->v % 8 == 0 && (uintptr_t)x % 16 == 0;
}

static inline bool
shape_whole(const struct k3_attn_shape *s)
{
	return s->nope % 8 == 0 && s->rope % 8 == 0 && s->v % 8 == 0;
}

/** Are there warpgroup products on the current device? */
static inline bool
device_has_wgmma(void)
{
	int device, major, minor;

	K3_CUDA_CHECK(cudaGetDevice(&device));
	K3_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
	K3_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
	return major == 9 && minor == 0;
}

/** Dynamic shared memory of a kernel, raised beyond 48 KB. */
template <typename F>
static inline void
allow_shared(F *kernel, size_t bytes)
{
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		(const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

#endif
