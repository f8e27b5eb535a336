/* RMSNorm of rows: how many thread blocks and teams share them.  Rows that are not aligned to 16
 * bytes, or too long, are looked at twice in memory. */
#include "rms_rows.cuh"

/* Thread blocks of the backward, one on each multiprocessor of an H200: the order of its sums
 * depends on sizes alone. */
enum { PROCESSORS = 132, ANY_THREADS = 256 };

/* Aligned to 16 bytes? */
static bool
packs_fit(const void *a, const void *b, const void *c, const void *d)
{
	return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

/* Threads of a team for a row of `bytes`, 0: it does not fit. */
static unsigned
team_of(size_t bytes, size_t packs, size_t most)
{
	size_t threads = (bytes / 16 + 32 * packs - 1) / (32 * packs) * 32;

	return bytes % 16 == 0 && threads <= most ? (unsigned)threads : 0;
}

static unsigned
teams_of(unsigned team, unsigned threads)
{
	return threads / team < TEAMS_MOST ? threads / team : TEAMS_MOST;
}

template <typename T>
static void
forward(const struct k3_cuda *cuda, void *y, const struct factors &f, const void *x, const float *w,
	size_t n, size_t d)
{
	unsigned team =
		packs_fit(y, x, w, NULL) ? team_of(d * sizeof(T), FWD_PACKS, FWD_THREADS) : 0;
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (n == 0 || d == 0)
		return;
	if (team) {
		unsigned teams = teams_of(team, FWD_THREADS), blocks = blocks_for(n, teams);
		if (blocks > FWD_BLOCKS * cuda->processors)
			blocks = FWD_BLOCKS * cuda->processors;
		auto *kernel = f.again ? rms_fwd<T, true> : rms_fwd<T, false>;
		kernel<<<blocks, dim3(team, teams), 0, stream>>>(
			(T *)y, f, (const T *)x, w, (uint32_t)n, (uint32_t)(d * sizeof(T)));
	} else {
		rms_fwd_any<T><<<blocks_for(n, RMS_ROWS), 32 * RMS_ROWS, 0, stream>>>(
			(T *)y, f, (const T *)x, w, n, d);
	}
	K3_CUDA_LAUNCHED("rms_fwd");
}

extern "C" void
k3_cuda_rms_fwd(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, float *stat,
		size_t step, const void *x, const float *w, size_t n, size_t d, float eps)
{
	struct factors f = {stat, step, eps, false};

	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, f, x, w, n, d);
	else
		forward<float>(cuda, y, f, x, w, n, d);
}

extern "C" void
k3_cuda_rms_again(const struct k3_cuda *cuda, enum k3_cuda_type type, void *y, const float *stat,
		  size_t step, const void *x, const float *w, size_t n, size_t d)
{
	struct factors f = {(float *)(uintptr_t)stat, step, 0, true}; /* read alone */

	if (type == K3_CUDA_BF16)
		forward<k3_bf16>(cuda, y, f, x, w, n, d);
	else
		forward<float>(cuda, y, f, x, w, n, d);
}

/* Parts of the weight's gradient. */
static size_t
parts_of(size_t n, size_t d, unsigned team)
{
	size_t teams = team ? teams_of(team, BWD_THREADS) : 1, parts = (n + teams - 1) / teams;

	if (!team)
		return k3_cuda_row_parts(n, d);
	return parts < PROCESSORS ? parts : PROCESSORS;
}

extern "C" size_t
k3_cuda_rms_bwd_scratch(size_t n, size_t d)
{
	size_t most = k3_cuda_row_parts(n, d);

	for (size_t unit = sizeof(k3_bf16); unit <= sizeof(float); unit += sizeof(k3_bf16)) {
		size_t parts = parts_of(n, d, team_of(d * unit, BWD_PACKS, BWD_THREADS));
		most = parts > most ? parts : most;
	}
	return most * d * sizeof(float);
}

/* The number of parts. */
template <typename T>
static size_t
backward(const struct k3_cuda *cuda, const struct k3_cuda_rms_bwd *b, float *part)
{
	bool fit = packs_fit(b->dx, b->dy, b->x, b->w) &&
		   packs_fit(b->addend[0], b->addend[1], part, NULL);
	unsigned team = fit ? team_of(b->d * sizeof(T), BWD_PACKS, BWD_THREADS) : 0;
	size_t parts = parts_of(b->n, b->d, team);
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (parts == 0 || b->d == 0)
		return parts;
	if (team) {
		unsigned teams = teams_of(team, BWD_THREADS);
		size_t shared = teams * b->d * sizeof(float);
		rms_bwd<T><<<(unsigned)parts, dim3(team, teams), shared, stream>>>(
			part, *b, (uint32_t)(b->d * sizeof(T)));
	} else {
		rms_bwd_any<T><<<(unsigned)parts, ANY_THREADS, 0, stream>>>(part, *b);
	}
	K3_CUDA_LAUNCHED("rms_bwd");
	return parts;
}

extern "C" void
k3_cuda_rms_bwd(const struct k3_cuda *cuda, enum k3_cuda_type type, const struct k3_cuda_rms_bwd *b)
{
	float *part = (float *)cuda->scratch;
	size_t parts = type == K3_CUDA_BF16 ? backward<k3_bf16>(cuda, b, part)
					    : backward<float>(cuda, b, part);
	struct k3_cuda_column_sum sum = {b->dw, NULL, part, b->accumulate};

	if (parts || !b->accumulate)
		k3_cuda_column_sums(cuda, &sum, 1, parts, b->d, b->d);
}
