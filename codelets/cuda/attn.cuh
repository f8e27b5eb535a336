/* What the attention kernels share: ids of rows, the keys that a block of queries can see, and
 * tiles in shared memory.
 *
 * A block of rows meets the run of partner rows whose ids lie between its own; blocks outside that
 * run are never touched.  Where all ids of both are one, only the diagonal needs masks.  The trap:
 * rows without an id may hold NaN and are zeros in shared memory, since zero times NaN is NaN.
 */
#ifndef K3_CUDA_ATTN_CUH
#define K3_CUDA_ATTN_CUH
#include "attn.h"
#include "wgmma.cuh"

extern "C" {
#include "../../common/op/vit.h"
}

enum { NO_ID = 0x7fffffff, THREADS = 256 };

/* A tile's layout on the device. */
struct tile_rows {
	const int32_t *layout;
	enum k3_attn_ids ids;
	int n, row0;
};

static __device__ __forceinline__ struct tile_rows
tile_rows(const int32_t *layout, enum k3_attn_ids ids)
{
	struct tile_rows t = {layout, ids, 0, 0};

	if (ids == K3_ATTN_DOCUMENTS) {
		t.n = layout[K3_TL_ROWS];
		t.row0 = layout[K3_TL_ROW0];
	} else {
		t.n = layout[K3_VL_PATCHES];
	}
	return t;
}

/** First and last patch + 1 of a part, and its id. */
static __device__ __forceinline__ void
part_rows(const struct tile_rows *t, int part, int *from, int *to, int *id)
{
	const int32_t *p = t->layout + K3_VL_HEAD + part * K3_VP_LEN;

	*from = p[K3_VP_PATCH0];
	*to = *from + p[K3_VP_T] * p[K3_VP_ROWS] * p[K3_VP_W];
	*id = p[K3_VP_ITEM] + 1;
}

/** Id of a row, 0 beyond the tile. */
static __device__ __forceinline__ int
row_id(const struct tile_rows *t, int row)
{
	int lo = 0, hi;

	if (row < 0 || row >= t->n)
		return 0;
	if (t->ids == K3_ATTN_DOCUMENTS)
		return t->layout[K3_TL_HEAD + row];
	hi = t->layout[K3_VL_PARTS];
	while (hi - lo > 1) { /* the last part that begins at or before the row */
		int mid = (lo + hi) / 2;
		if (t->layout[K3_VL_HEAD + mid * K3_VP_LEN + K3_VP_PATCH0] <= row)
			lo = mid;
		else
			hi = mid;
	}
	return t->layout[K3_VL_HEAD + lo * K3_VP_LEN + K3_VP_ITEM] + 1;
}

/* Ids of a block of rows: the smallest and greatest that there is; one: all rows have it. */
struct ids {
	int lo, hi;
	bool one;
};

/* Partner rows from .. to - 1; even: all of them and all rows of the block have one id. */
struct run {
	int from, to;
	bool even;
};

/* Threads of a block of the grid that work together, whole warps; barrier 0 is the block's. */
struct crew {
	int thread, threads, barrier;
};

static __device__ __forceinline__ void
crew_sync(const struct crew &c)
{
	group_sync(c.barrier, c.threads);
}

/** Minimum, maximum and sum over a crew, in all of its threads. */
static __device__ __forceinline__ void
crew_reduce(const struct crew &c, int *least, int *most, int *sum)
{
	__shared__ int part[3][32];
	int lane = c.thread & 31, warp = c.thread >> 5;

	*least = __reduce_min_sync(0xffffffffu, *least);
	*most = __reduce_max_sync(0xffffffffu, *most);
	*sum = __reduce_add_sync(0xffffffffu, *sum);
	crew_sync(c);
	if (lane == 0) {
		part[0][warp] = *least;
		part[1][warp] = *most;
		part[2][warp] = *sum;
	}
	crew_sync(c);
	*sum = 0;
	for (int i = 0; i < c.threads / 32; i++) {
		*least = min(*least, part[0][i]);
		*most = max(*most, part[1][i]);
		*sum += part[2][i];
	}
}

/** Ids of rows from .. from + n - 1; every thread of the crew calls. */
static __device__ __forceinline__ struct ids
block_ids(const struct crew &c, const struct tile_rows *t, int from, int n)
{
	int lo = NO_ID, hi = 0, holes = 0, end = min(from + n, t->n);

	for (int r = from + c.thread; r < end; r += c.threads) {
		int id = row_id(t, r);
		hi = max(hi, id);
		lo = min(lo, id ? id : NO_ID);
		holes += id == 0;
	}
	crew_reduce(c, &lo, &hi, &holes);
	return {lo, hi, lo == hi && holes == 0};
}

/* Rows first .. last - 1 of a segment or part of a tile, their id, whether all of them have it. */
static __device__ __forceinline__ bool
segment_rows(const struct tile_rows *t, int s, int *first, int *last, int *id)
{
	const int32_t *doc = t->layout + K3_TL_HEAD, *order = doc + t->n, *seg = order + t->n;

	if (t->ids != K3_ATTN_DOCUMENTS) {
		part_rows(t, s, first, last, id);
		return true;
	}
	*first = order[seg[s]];
	*last = order[seg[s + 1] - 1] + 1;
	*id = doc[*first];
	return *last - *first == seg[s + 1] - seg[s];
}

/** The run of partners in rows begin .. end - 1; every thread of the crew calls. */
static __device__ __forceinline__ struct run
partners(const struct crew &c, const struct tile_rows *t, struct ids ids, int begin, int end)
{
	int from = NO_ID, to = 0, same = 0,
	    segments =
		    t->layout[t->ids == K3_ATTN_DOCUMENTS ? (int)K3_TL_SEGMENTS : (int)K3_VL_PARTS];

	for (int s = c.thread; s < segments; s += c.threads) {
		int first, last, id;
		bool full = segment_rows(t, s, &first, &last, &id);
		first = max(first, begin);
		last = min(last, end);
		if (id < ids.lo || id > ids.hi || first >= last)
			continue;
		from = min(from, first);
		to = max(to, last);
		same += full && id == ids.lo ? last - first : 0;
	}
	crew_reduce(c, &from, &to, &same);
	if (from >= to)
		return {0, 0, true};
	return {from, to, ids.one && same == to - from};
}

/* One side of the scores in memory, of one head: x = (a | b) meets the other side's x, y its y. */
template <typename T> struct side {
	const T *a, *b, *y;
	size_t ld, ldy;
	int na, nb, ny;
};

template <typename T>
static __device__ __forceinline__ struct side<T>
key_side(const struct k3_attn_shape *s, const struct k3_attn_keys *k, const void *kv, int head) {
	const T *x = static_cast<const T *>(kv), *of_head = x + head * k->head;

	return {of_head + k->k, x + k->rope, of_head + k->v, k->ld, k->ld, s->nope, s->rope, s->v};
}

/** y NULL: there is none. */
template <typename T>
static __device__ __forceinline__ struct side<T>
query_side(const struct k3_attn_shape *s, const struct k3_attn_rows *q,
	   const struct k3_attn_rows *y, int head) {
	const T *x = static_cast<const T *>(q->x) + head * q->head,
		*second = y ? static_cast<const T *>(y->x) + head * y->head : nullptr;

	return {x, x, second, q->ld, y ? y->ld : 0, s->nope + s->rope, 0, s->v};
}

/** x at column c; 0 behind the last. */
template <typename T>
static __device__ __forceinline__ T
x_at(const struct side<T> *s, int row, int c)
{
	if (c < s->na)
		return s->a[row * s->ld + c];
	return c < s->na + s->nb ? s->b[row * s->ld + (c - s->na)] : narrow<T>(0.0f);
}

template <typename T>
static __device__ __forceinline__ T
y_at(const struct side<T> *s, int row, int c)
{
	return c < s->ny ? s->y[row * s->ldy + c] : narrow<T>(0.0f);
}

#endif
