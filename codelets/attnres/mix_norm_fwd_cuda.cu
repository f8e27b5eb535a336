/* Attention-residual mix and norm, forward: how many threads share a token and which kernel takes
 * it.
 */
#include "../norm/rms_cuda.h"
#include "mix_fwd_team.cuh"

/* With a team of all threads that a token needs; false: they are too many, or the values. */
template <typename T, int VALUES, int BLOCKS>
static bool
run(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct mix_vectors &vec,
    const struct k3_cuda *cuda)
{
	size_t bytes = a->d * sizeof(T);
	unsigned team = team_threads(bytes / 16, FWD_PACKS);
	unsigned threads = team > FWD_SMALL ? FWD_THREADS : FWD_SMALL;
	struct fwd_rows<VALUES> rows;

	if (bytes % 16 != 0 || team > FWD_THREADS || a->blocks.n + 1 > VALUES)
		return false;
	rows.row = pointers_of<VALUES>(buf, a->blocks.first, a->blocks.n);
	rows.row.p[a->blocks.n] = buf[2];
	rows.n = (int)a->blocks.n + 1;
	unsigned teams = threads / team < TEAMS_MOST ? threads / team : TEAMS_MOST;
	unsigned blocks = blocks_for(a->t, teams);
	unsigned resident = BLOCKS * FWD_THREADS / threads * cuda->processors;
	blocks = blocks < resident ? blocks : resident;
	size_t shared = teams * (team / 32) * (2 * VALUES + 1) * sizeof(float);
	mix_fwd<T, VALUES, BLOCKS>
		<<<blocks, dim3(team, teams), shared, (cudaStream_t)cuda->stream>>>(
			(T *)buf[0], (float *)buf[1], rows, vec, a->t, (uint32_t)bytes, a->eps);
	K3_CUDA_LAUNCHED("mix_fwd");
	return true;
}

template <typename T>
static void
run_any(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct mix_vectors &vec,
	const struct k3_cuda *cuda)
{
	unsigned threads = mix_threads(a->d);
	size_t blocks = 8 * (size_t)cuda->processors, n = a->blocks.n + 1;
	struct mix_rows<MIX_MOST> rows;

	rows.row = pointers_of<MIX_MOST>(buf, a->blocks.first, a->blocks.n);
	rows.row.p[a->blocks.n] = buf[2];
	rows.n = (uint32_t)n;
	mix_fwd_any<T><<<(unsigned)(a->t < blocks ? a->t : blocks), threads,
			 mix_fwd_floats(n, threads) * sizeof(float), (cudaStream_t)cuda->stream>>>(
		(T *)buf[0], (float *)buf[1], rows, vec, a->t, a->d, a->eps);
	K3_CUDA_LAUNCHED("mix_fwd_any");
}

template <typename T>
static void
mix_norm_fwd(void *const *buf, const struct k3_mix_norm_fwd_args *a, const struct k3_cuda *cuda)
{
	bool aligned = all_aligned(buf, 0, a->n_buf);

	if (a->t == 0 || a->d == 0)
		return;
	if (a->blocks.n == 0) {
		k3_cuda_rms_fwd(cuda, k3_type<T>::id, buf[0], (float *)buf[1], 4, buf[2],
				(const float *)buf[a->w.first], a->t, a->d, a->eps);
		return;
	}
	struct mix_vectors vec = {(const float *)buf[a->gamma.first],
				  (const float *)buf[a->rho.first], (const float *)buf[a->w.first]};
	if (aligned && (run<T, 2, 2>(buf, a, vec, cuda) || run<T, 3, 2>(buf, a, vec, cuda) ||
			run<T, 9, 1>(buf, a, vec, cuda)))
		return;
	run_any<T>(buf, a, vec, cuda);
}

K3_CUDA_BOTH(mix_norm_fwd, k3_mix_norm_fwd_args)
