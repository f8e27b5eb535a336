/* Matrices [16 channels, 64 rows] in the registers of a warp: what bf16 chunks are made of.
 *
 * A lane holds channels g and g + 8 (g = lane / 4) of rows 8 m + 2 t and the next (t = lane % 4,
 * m < 8): x[m][0..1] of the first channel, x[m][2..3] of the second.  Results of a product lie
 * so, and packed in pairs of rows they are the left operand of the next one, so that decays, sums
 * over rows and chains of products need no memory.  Tiles in shared memory are [rows, COLS] and
 * swizzled: a row's packs of 8 elements change places, which frees both ldmatrix and 16-byte
 * loads of neighbouring rows from bank conflicts.
 *
 * The trap: decays are taken to the middle of a sub-block of 16 rows, where they stay inside 2^+-58
 * because gates are bounded by -5; without that bound nothing here may be used.
 */
#ifndef K3_KDA_CHANNELS_CUH
#define K3_KDA_CHANNELS_CUH

#include "kda_rows.cuh"

typedef struct fragment<k3_bf16> kda_frag;

/** Whether a task may use these kernels; the others take any type, gate, width and address. */
template <typename T>
static inline bool
kda_by_channels(const struct kda_task &x)
{
	const struct k3_kda_chunk_args &a = x.a;
	uintptr_t all = (uintptr_t)x.qkv | (uintptr_t)x.f | (uintptr_t)x.d_o | (uintptr_t)x.dqkv |
			(uintptr_t)x.df;

	return sizeof(T) == 2 && k3i_kda_width(a.k) == KDA_MAX_WIDTH && !a.raw &&
	       a.lower_bound >= -5.0f && a.v <= KDA_MAX_WIDTH && (a.k | a.v) % 8 == 0 &&
	       all % 16 == 0;
}

/** Element of a tile where pack `pack` of a row begins. */
template <int COLS>
static __device__ __forceinline__ int
pack_at(int row, int pack)
{
	return row * COLS + ((pack ^ ((row & 1) << 2 | (row >> 1 & 3))) << 3);
}

/** Left operand: rows row .. row+15, packs pack and pack+1 deep. */
template <int COLS>
static __device__ __forceinline__ void
left_load(kda_frag *f, const k3_bf16 *tile, int row, int pack)
{
	int lane = (int)(threadIdx.x & 31);

	ldmatrix(f->r, tile + pack_at<COLS>(row + (lane & 15), pack + (lane >> 4)));
}

/** Right operand, 16 columns wide: rows of the tile are its columns. */
template <int COLS>
static __device__ __forceinline__ void
right_load(kda_frag *f, const k3_bf16 *tile, int row, int pack)
{
	int lane = (int)(threadIdx.x & 31);

	ldmatrix(f->r,
		 tile + pack_at<COLS>(row + (lane & 7) + (lane >> 4) * 8, pack + (lane >> 3 & 1)));
}

/** Rows row .. row+15 of 16 channels, from a tile [rows, channels] whose packs `pack` and the next
 * hold them. */
template <int COLS>
static __device__ __forceinline__ void
channels_load(kda_frag *f, const k3_bf16 *tile, int row, int pack)
{
	int lane = (int)(threadIdx.x & 31);

	ldmatrix_trans(f->r, tile + pack_at<COLS>(row + (lane & 7) + (lane >> 4) * 8,
						  pack + (lane >> 3 & 1)));
}

/** And back. */
template <int COLS>
static __device__ __forceinline__ void
channels_store(k3_bf16 *tile, const kda_frag &f, int row, int pack)
{
	int lane = (int)(threadIdx.x & 31);

	stmatrix_trans(
		tile + pack_at<COLS>(row + (lane & 7) + (lane >> 4) * 8, pack + (lane >> 3 & 1)),
		f.r);
}

/* Where register i of a fragment of rows 16 b .. 16 b+15 lies in a matrix: x[m][p] and x[m][p+1].
 */
#define FRAGMENT_PIECE(i, b, m, p) int m = 2 * (b) + ((i) >> 1), p = ((i)&1) * 2

/** Rounded rows 16 b .. 16 b+15 of a matrix. */
static __device__ __forceinline__ void
fragment_of(kda_frag *f, const float (*x)[4], int b)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		FRAGMENT_PIECE(i, b, m, p);
		f->r[i] = bf16_pair(x[m][p], x[m][p + 1]);
	}
}

/** x = rows 16 b .. 16 b+15 widened. */
static __device__ __forceinline__ void
fragment_widen(float (*x)[4], const kda_frag &f, int b)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		FRAGMENT_PIECE(i, b, m, p);
		float2 two = unpack_two(f.r[i]);
		x[m][p] = two.x;
		x[m][p + 1] = two.y;
	}
}

/** Rounds a matrix into the packs `pack` and the next of a tile. */
template <int COLS>
static __device__ __forceinline__ void
matrix_store(k3_bf16 *tile, const float (*x)[4], int pack)
{
	__syncwarp();
#pragma unroll
	for (int b = 0; b < 4; b++) {
		kda_frag f;

		fragment_of(&f, x, b);
		channels_store<COLS>(tile, f, b * 16, pack);
	}
}

/* Numbers of the rows that a thread copies: a pack of every THREADS / PACKS-th row. */
template <int PACKS, int THREADS> struct kda_row_run {
	static const int step = THREADS / PACKS, n = KDA_CHUNK / step;
	uint32_t row[n];
};

/** order: NULL for rows that follow each other. */
template <int PACKS, int THREADS>
static __device__ __forceinline__ struct kda_row_run<PACKS, THREADS>
rows_find(const int32_t *order, int n) {
	typedef struct kda_row_run<PACKS, THREADS> run;
	int r = (int)(threadIdx.x % THREADS / PACKS);
	run rows;

#pragma unroll
	for (int j = 0; j < run::n; j++) {
		int at = r + j * run::step;

		rows.row[j] = at >= n ? 0 : (uint32_t)(order ? order[at] : at);
	}
	return rows;
}

/** THREADS threads copy PACKS packs of n rows to a tile, from pack `first` on; zeros behind the
 * rows and `cols` columns. */
template <int COLS, int PACKS, int THREADS>
static __device__ __forceinline__ void
rows_fetch(k3_bf16 *tile, int first, const k3_bf16 *from, size_t ld,
	   const struct kda_row_run<PACKS, THREADS> &rows, int n, int cols)
{
	typedef struct kda_row_run<PACKS, THREADS> run;
	int pack = (int)(threadIdx.x % PACKS), r = (int)(threadIdx.x % THREADS / PACKS);
	k3_bf16 *to = tile + pack_at<COLS>(r, first + pack);

	from += pack * 8;
	/* steps of eight rows do not change the places of packs */
#pragma unroll
	for (int j = 0; j < run::n; j++)
		copy_async(to + j * run::step * COLS, from + (uint64_t)rows.row[j] * (uint32_t)ld,
			   r + j * run::step < n && pack * 8 < cols);
}

/** One warp writes packs `pack` and the next of a tile's rows, `cols` columns of which are there.
 */
template <int COLS>
static __device__ __forceinline__ void
rows_store(k3_bf16 *to, size_t ld, const int32_t *order, int n, int cols, const k3_bf16 *tile,
	   int pack)
{
	int lane = (int)(threadIdx.x & 31), r = lane >> 1, c = (lane & 1) * 8;
	struct kda_row_run<2, 32> rows = rows_find<2, 32>(order, n);
	const k3_bf16 *from = tile + pack_at<COLS>(r, pack + (lane & 1));

	__syncwarp();
#pragma unroll
	for (int j = 0; j < 4; j++)
		if (r + 16 * j < n && c < cols)
			*reinterpret_cast<uint4 *>(to + (uint64_t)rows.row[j] * (uint32_t)ld + c) =
				*reinterpret_cast<const uint4 *>(from + j * 16 * COLS);
	__syncwarp();
}

/* Lower triangles [64, 64]: the blocks [16, 16] up to the diagonal, one after the other. */
enum { LOWER_SIZE = 10 * 256 };

static __device__ __forceinline__ int
lower_at(int row, int col)
{
	return (row * (row + 1) / 2 + col) * 256;
}

/** Element of a block where a pack of a row begins. */
static __device__ __forceinline__ int
lower_pack(int row, int pack)
{
	return row * 16 + ((pack ^ (row >> 2 & 1)) << 3);
}

/** A block as right operand: its rows are columns. */
static __device__ __forceinline__ void
block_load(kda_frag *f, const k3_bf16 *block)
{
	int lane = (int)(threadIdx.x & 31);

	ldmatrix(f->r, block + lower_pack((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1));
}

static __device__ __forceinline__ void
lower_load(kda_frag *f, const k3_bf16 *lower, int row, int col)
{
	block_load(f, lower + lower_at(row, col));
}

/** And with its rows as depth. */
static __device__ __forceinline__ void
lower_load_deep(kda_frag *f, const k3_bf16 *lower, int row, int col)
{
	int lane = (int)(threadIdx.x & 31);

	ldmatrix_trans(f->r, lower + lower_at(row, col) + lower_pack(lane & 15, lane >> 4));
}

/** Copies n rows of a matrix [.., 64]; zeros behind them. */
template <int THREADS>
static __device__ __forceinline__ void
lower_fetch(k3_bf16 *lower, const k3_bf16 *from, int n)
{
	int pack = (int)(threadIdx.x % 8);

#pragma unroll
	for (int j = 0; j < 64 * 8 / THREADS; j++) {
		int i = (int)threadIdx.x + j * THREADS, r = i / 8;

		if (pack / 2 <= r / 16)
			copy_async(lower + lower_at(r / 16, pack / 2) +
					   lower_pack(r % 16, pack & 1),
				   from + (r < n ? i * 8 : 0), r < n);
	}
}

/** x += a^T [16, 64] b for a lower triangular b: row block R of a meets columns up to its own. */
static __device__ __forceinline__ void
times_lower(float (*x)[4], const kda_frag *a, const k3_bf16 *lower)
{
#pragma unroll
	for (int r = 0; r < 4; r++)
#pragma unroll
		for (int c = 0; c <= r; c++) {
			kda_frag b;

			lower_load_deep(&b, lower, r, c);
			multiply<false>(x + 2 * c, a[r], b);
		}
}

/** Sums over the warp's channels of x[m][i] (two rows a lane and m), rows 2 lane and the next. */
static __device__ __forceinline__ float2
sum_channels(float (*x)[2])
{
	int lane = (int)(threadIdx.x & 31);

#pragma unroll
	for (int half = 4; half > 0; half /= 2) {
		bool upper = lane & 4 * half;

#pragma unroll
		for (int m = 0; m < half; m++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float keep = upper ? x[m + half][i] : x[m][i];
				float give = upper ? x[m][i] : x[m + half][i];

				x[m][i] = keep + __shfl_xor_sync(0xffffffffu, give, 4 * half);
			}
	}
	return make_float2(x[0][0], x[0][1]);
}

#endif
