/* Hopper's warpgroup products and asynchronous copies, for bf16 tiles in shared memory.
 *
 * A tile [rows, cols] lies in panels of 64 columns: rows of 128 bytes, whose eight pieces of 16
 * bytes are swizzled by the row's number (piece ^ row % 8).  Panels begin at multiples of 1024
 * bytes.  The same tile serves as an operand whose sum runs over its columns (k_major) and, as the
 * right operand, over its rows (mn_major).  Four whole warps take part.  The traps: registers of a
 * product in flight must not be touched before wgmma_wait; what ordinary stores or cp.async wrote
 * is seen by products only after a barrier and shared_fence (shared.cuh).
 */
#ifndef K3_CUDA_WGMMA_CUH
#define K3_CUDA_WGMMA_CUH

#include "shared.cuh"

/* Instructions of sm_90a; other targets never run these kernels. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define K3_WGMMA 1
#else
#define K3_WGMMA 0
#endif

enum { PANEL_COLS = 64, PANEL_ROW_BYTES = 128 };

/** Panels of a tile of cols columns. */
static __host__ __device__ constexpr int
panels(int cols)
{
	return (cols + PANEL_COLS - 1) / PANEL_COLS;
}

static __host__ __device__ constexpr int
tile_bytes(int rows, int cols)
{
	return panels(cols) * rows * PANEL_ROW_BYTES;
}

/** Where piece `piece` (8 columns) of a row lies in a tile of `rows` rows. */
static __device__ __forceinline__ uint32_t
piece_at(int rows, int row, int piece)
{
	return (uint32_t)((piece / 8 * rows + row) * PANEL_ROW_BYTES + ((piece ^ row) & 7) * 16);
}

/** 16 bytes from global to shared memory; zeros unless `there`. */
static __device__ __forceinline__ void
copy_16(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
		     "r"(there ? 16 : 0)
		     : "memory");
}

static __device__ __forceinline__ void
copy_16(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void
copy_4(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
		     "r"(there ? 4 : 0)
		     : "memory");
}

/** Four matrices of 8 rows of 16 bytes; lane 8 i + j has the address of row j of matrix i. */
static __device__ __forceinline__ void
shared_load_matrices(uint32_t *x, uint32_t row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(row)
		     : "memory");
}

/** Descriptor of an operand `offset` bytes behind a tile: 128-byte swizzle, 1024 bytes from eight
 * rows to the next, `panel` bytes from a panel to the next where a product is wider than one.
 * Offsets are constants after unrolling: an addition is left of each. */
static __device__ __forceinline__ uint64_t
operand(uint32_t tile, int offset, int panel)
{
	uint32_t low = (tile >> 4) + (uint32_t)((offset >> 4) + (panel >> 4 << 16));
	uint64_t x;

	asm("mov.b64 %0, {%1, %2};" : "=l"(x) : "r"(low), "n"(1024 >> 4 | 1 << 30));
	return x;
}

/** Columns 16 k .. 16 k + 15 of a tile of `rows` rows, from row `row` (a multiple of 8) on. */
static __device__ __forceinline__ uint64_t
k_major(uint32_t tile, int rows, int row, int k)
{
	return operand(tile + (uint32_t)(row * PANEL_ROW_BYTES),
		       k / 4 * rows * PANEL_ROW_BYTES + k % 4 * 32, 16);
}

/** Rows 16 k .. 16 k + 15 of all panels. */
static __device__ __forceinline__ uint64_t
mn_major(uint32_t tile, int rows, int k)
{
	return operand(tile, 16 * k * PANEL_ROW_BYTES, rows * PANEL_ROW_BYTES);
}

static __device__ __forceinline__ void
wgmma_fence(void)
{
#if K3_WGMMA
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void
wgmma_commit(void)
{
#if K3_WGMMA
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <int N>
static __device__ __forceinline__ void
wgmma_wait(void)
{
#if K3_WGMMA
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

/** Accumulators of N columns that wgmma_wait has brought in: the compiler, which does not know that
 * products are under way, uses none of them before. */
template <int N>
static __device__ __forceinline__ void
settled(float *d)
{
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

#define K3_ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define K3_ACC16(d, i) K3_ACC4(d, i), K3_ACC4(d, i + 4), K3_ACC4(d, i + 8), K3_ACC4(d, i + 12)
#define K3_REG16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define K3_REG24 K3_REG16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define K3_REG32 K3_REG24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define K3_REG48 K3_REG32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define K3_REG64 K3_REG48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define K3_REG96                                                                                   \
	K3_REG64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                \
		 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

/** d [64, N] = (add ? d : 0) + A B, both in shared memory, sums over the columns of both tiles or,
 * DOWN, over their rows; N/2 registers. */
template <int N, bool DOWN = false>
static __device__ __forceinline__ void
wgmma_shared(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(N == 64 || N == 128, "no such product");
#if K3_WGMMA
	if constexpr (N == 64)
		asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
			     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" K3_REG32
			     "}, %32, %33, p, 1, 1, %35, %35;}"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16)
			     : "l"(a), "l"(b), "r"(add), "n"(DOWN));
	else
		asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
			     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" K3_REG64
			     "}, %64, %65, p, 1, 1, %67, %67;}"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48)
			     : "l"(a), "l"(b), "r"(add), "n"(DOWN));
#endif
}

/** d [64, N] += A B, A [64, 16] in registers, B's sums over rows. */
template <int N>
static __device__ __forceinline__ void
wgmma_register(float *d, const uint32_t *a, uint64_t b)
{
	static_assert(N == 32 || N == 48 || N == 64 || N == 96 || N == 128 || N == 192,
		      "no such product");
#if K3_WGMMA
	if constexpr (N == 32)
		asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" K3_REG16
			     "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
	else if constexpr (N == 48)
		asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" K3_REG24
			     "}, {%24,%25,%26,%27}, %28, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0), K3_ACC4(d, 16), K3_ACC4(d, 20)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
	else if constexpr (N == 64)
		asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" K3_REG32
			     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
	else if constexpr (N == 96)
		asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" K3_REG48
			     "}, {%48,%49,%50,%51}, %52, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
	else if constexpr (N == 128)
		asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" K3_REG64
			     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
	else
		asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" K3_REG96
			     "}, {%96,%97,%98,%99}, %100, 1, 1, 1, 1;"
			     : K3_ACC16(d, 0), K3_ACC16(d, 16), K3_ACC16(d, 32), K3_ACC16(d, 48),
			       K3_ACC16(d, 64), K3_ACC16(d, 80)
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

/** d [64, COLS] += A tile: rows 16 k .. of a tile in shared memory of `rows` rows. */
template <int COLS>
static __device__ __forceinline__ void
wgmma_rows(float *d, const uint32_t *a, uint32_t tile, int rows, int k)
{
	wgmma_register<COLS>(d, a, mn_major(tile, rows, k));
}

/** Two accumulators, rounded, as one register of a left operand. */
static __device__ __forceinline__ uint32_t
bf16_pair(float x, float y)
{
	__nv_bfloat162 pair = __floats2bfloat162_rn(x, y);

	return *reinterpret_cast<uint32_t *>(&pair);
}

#endif
