/* Rows of several tensors on their way into shared memory, a few tokens ahead of the team of warps
 * that reads them: each team has a ring of slots of its own, one row in each, which the copy
 * engine fills.
 *
 * A token is `rows` rows, which take neighbouring slots of the ring, and one barrier, at which the
 * rows arrive.  Lanes of the team's first warp bring one row each.  The traps: a slot is filled
 * again only after the whole team has read it (team_sync before feed_more); and behind its row a
 * slot has 16 bytes of zeros, which threads read whose columns are behind the end of the row.
 */
#ifndef K3_CUDA_RING_CUH
#define K3_CUDA_RING_CUH
#include "pointers.cuh"
#include "shared.cuh"
#include "team.cuh"

enum { RING_ROWS = 32, RING_PAD = 16 };

/* A team's ring; addresses in shared memory. */
struct row_ring {
	uint32_t first, end, pitch, bars, bars_end;
	uint32_t rows, row_bytes; /* of a token; of a row */
};

/* Of a lane: where its next row comes from and goes to. */
struct row_feed {
	const char *from;
	uint32_t at, bar;
	size_t token;
};

/* Of a team: the first slot and the barrier of the token that it looks at. */
struct row_place {
	uint32_t at, bar, phase;
};

/** A pack of a slot, widened. */
template <typename T>
static __device__ __forceinline__ void
slot_wide(float *x, uint32_t at)
{
	pack_wide<T>(x, shared_load_16(at));
}

/** The slot `rows` slots further, at most once around. */
static __device__ __forceinline__ uint32_t
ring_ahead(const struct row_ring &r, uint32_t at, uint32_t rows)
{
	at += rows * r.pitch;
	return at >= r.end ? at - (r.end - r.first) : at;
}

static __device__ __forceinline__ uint32_t
ring_next_bar(const struct row_ring &r, uint32_t bar)
{
	return bar + 8 == r.bars_end ? r.bars : bar + 8;
}

/** Bytes of a ring. */
static inline __host__ __device__ size_t
ring_bytes(size_t row_bytes, size_t rows, size_t slots)
{
	return (slots * (row_bytes + RING_PAD) + 8 * (slots / rows + 2) + 15) / 16 * 16;
}

/** A ring at `base`, aligned to 16 bytes; by all threads of its team, which has to meet before it
 * reads.  Returns what is behind it. */
static __device__ __forceinline__ char *
ring_open(struct row_ring *r, char *base, uint32_t row_bytes, uint32_t rows, uint32_t slots)
{
	r->first = shared_address(base);
	r->pitch = row_bytes + RING_PAD;
	r->end = r->bars = r->first + slots * r->pitch;
	r->bars_end = r->bars + 8 * (slots / rows + 2);
	r->rows = rows;
	r->row_bytes = row_bytes;
	for (uint32_t s = threadIdx.x; s < slots; s += blockDim.x)
		asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
				     r->first + s * r->pitch + row_bytes),
			     "r"(0)
			     : "memory");
	if (threadIdx.x == 0) {
		for (uint32_t b = r->bars; b < r->bars_end; b += 8)
			phase_init(b, (int)rows);
		phase_publish();
	}
	__syncwarp();
	return base + ring_bytes(row_bytes, rows, slots);
}

/* Brings the lane's row, if there is one. */
static __device__ __forceinline__ void
feed_row(const struct row_feed &f, const struct row_ring &r, size_t t)
{
	if (f.token >= t)
		return;
	phase_expect(f.bar, r.row_bytes);
	copy_run(f.at, f.from, r.row_bytes, f.bar);
}

/* Row number q of all that the team will see. */
static __device__ __forceinline__ void
feed_at(struct row_feed *f, const struct row_ring &r, const struct k3_pointers<RING_ROWS> &rows,
	uint32_t q, size_t first, size_t step)
{
	uint32_t token = q / r.rows, slots = (r.end - r.first) / r.pitch;

	f->token = first + token * step;
	f->from = (const char *)rows.p[q % r.rows] + f->token * r.row_bytes;
	f->at = r.first + q % slots * r.pitch;
	f->bar = r.bars + token % ((r.bars_end - r.bars) / 8) * 8;
}

/** Fills the ring of a team that looks at tokens first, first + step, .. below t; by its first
 * warp. */
static __device__ __forceinline__ void
feed_first(struct row_feed *f, const struct row_ring &r, const struct k3_pointers<RING_ROWS> &rows,
	   size_t first, size_t step, size_t t)
{
	uint32_t slots = (r.end - r.first) / r.pitch, lane = threadIdx.x % 32;

	for (uint32_t q = lane; q < slots; q += 32) {
		feed_at(f, r, rows, q, first, step);
		feed_row(*f, r, t);
	}
	feed_at(f, r, rows, slots + lane, first, step);
	if (lane >= r.rows)
		f->token = t;
}

/** Fills the slots of the token that the team is done with; by its first warp. */
static __device__ __forceinline__ void
feed_more(struct row_feed *f, const struct row_ring &r, size_t step, size_t t)
{
	feed_row(*f, r, t);
	if (f->token >= t)
		return;
	f->token += step;
	f->from += step * r.row_bytes;
	f->at = ring_ahead(r, f->at, r.rows);
	f->bar = ring_next_bar(r, f->bar);
}

/** Until the token's rows are there; the barrier of the next one is the place's then. */
static __device__ __forceinline__ void
ring_wait(struct row_place *p, const struct row_ring &r)
{
	phase_wait(p->bar, p->phase);
	p->bar = ring_next_bar(r, p->bar);
	p->phase ^= p->bar == r.bars;
}

/** Slots of the largest ring in so many bytes, 0: not one token fits. */
static inline size_t
ring_slots(size_t row_bytes, size_t rows, size_t bytes)
{
	size_t slots = bytes / (row_bytes + RING_PAD);

	while (slots >= rows && ring_bytes(row_bytes, rows, slots) > bytes)
		slots--;
	return slots < rows ? 0 : slots;
}

#endif
