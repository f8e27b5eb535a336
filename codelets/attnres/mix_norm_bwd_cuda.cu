/* Attention-residual mix and norm, backward: one pass over values and gradients.  Gradients
 * of the parameters are sums over tokens: each thread block leaves a part, a second kernel adds the
 * parts.  The number of blocks, and with it the order of the sums, depends on the sizes alone. */
#include "../norm/rms_cuda.h"
#include "mix_bwd_ring.cuh"

/* Thread blocks, the teams of each and their rings; team 0: the kernel for any shape. */
struct plan {
	unsigned team, teams, packs;
	size_t parts, rows, olds, slots, team_bytes;
};

/* Threads of a team with so many packs each, 0: too many. */
static unsigned
team_of(size_t bytes, size_t packs)
{
	unsigned threads = team_threads(bytes / 16, packs);

	return threads <= (packs == 1 ? RING_THREADS_ONE : RING_THREADS_TWO) ? threads : 0;
}

/* As many teams as there are threads and room for.  False: there is no room for one. */
static bool
rings_fit(struct plan *p, size_t row_bytes, size_t fixed)
{
	enum { SHARED = 224 << 10 };

	p->teams = (p->packs == 1 ? RING_THREADS_ONE : RING_THREADS_TWO) / p->team;
	p->teams = p->teams < TEAMS_MOST ? p->teams : TEAMS_MOST;
	for (; p->teams > 0 && p->rows <= RING_ROWS; p->teams--) {
		size_t room = SHARED / p->teams / 16 * 16;
		p->slots = fixed < room ? ring_slots(row_bytes, p->rows, room - fixed) : 0;
		p->team_bytes = ring_bytes(row_bytes, p->rows, p->slots) + fixed;
		if (p->slots)
			return true;
	}
	return false;
}

/* Old gradients go through the rings if these hold a token then. */
static void
rings_of(struct plan *p, const struct k3_mix_norm_bwd_args *a, size_t row_bytes)
{
	size_t n = a->blocks.n + 1, fixed = bwd_team_bytes(n, p->team);

	p->olds = a->blocks_accumulate ? a->blocks.n : 0;
	p->rows = n + 1 + a->addends.n + p->olds;
	if (rings_fit(p, row_bytes, fixed))
		return;
	p->rows -= p->olds;
	p->olds = 0;
	if (!rings_fit(p, row_bytes, fixed))
		p->team = 0;
}

/* Parts: a thread block on each multiprocessor of an H200. */
static struct plan
plan_of(const struct k3_mix_norm_bwd_args *a, size_t unit)
{
	enum { PROCESSORS = 132 };
	size_t bytes = a->d * unit;
	struct plan p = {};

	for (p.packs = 1; p.team == 0 && p.packs <= 2; p.packs += p.team == 0)
		p.team = bytes % 16 == 0 ? team_of(bytes, p.packs) : 0;
	if (p.team)
		rings_of(&p, a, bytes);
	if (p.team == 0) {
		p.parts = k3_cuda_row_parts(a->t, a->d);
		return p;
	}
	p.parts = (a->t + p.teams - 1) / p.teams;
	p.parts = p.parts < PROCESSORS ? p.parts : PROCESSORS;
	return p;
}

extern "C" size_t
k3_mix_norm_bwd_cuda_scratch(const struct k3_mix_norm_bwd_args *a)
{
	size_t parts = k3_cuda_row_parts(a->t, a->d), f32 = plan_of(a, sizeof(float)).parts,
	       bf16 = plan_of(a, sizeof(k3_bf16)).parts;

	if (a->blocks.n == 0)
		return k3_cuda_rms_bwd_scratch(a->t, a->d);
	parts = parts > f32 ? parts : f32;
	return (parts > bf16 ? parts : bf16) * MIX_COLUMNS * a->d * sizeof(float);
}

template <typename T>
static void
run_rings(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct mix_vectors &vec,
	  const struct plan &p, const struct k3_cuda *cuda)
{
	uint32_t n = a->blocks.n;
	struct bwd_task k = {};
	size_t bytes = p.teams * p.team_bytes,
	       columns = p.teams * MIX_COLUMNS * a->d * sizeof(float);

	k.row = pointers_of<RING_ROWS>(buf, a->blocks.first, n);
	k.grad = pointers_of<RING_ROWS>(buf, a->dblocks.first, n);
	k.row.p[n] = buf[3], k.row.p[n + 1] = buf[1], k.grad.p[n] = buf[0];
	for (uint32_t i = 0; i < a->addends.n; i++)
		k.row.p[n + 2 + i] = buf[a->addends.first + i];
	for (uint32_t i = 0; i < p.olds; i++)
		k.row.p[n + 2 + a->addends.n + i] = k.grad.p[i];
	k.vec = vec;
	k.part = (float *)cuda->scratch;
	k.t = a->t, k.d = (uint32_t)a->d;
	k.rows = (uint32_t)p.rows, k.values = n + 1, k.addends = a->addends.n;
	k.olds = (uint32_t)p.olds, k.adds = a->blocks_accumulate != 0;
	k.slots = (uint32_t)p.slots, k.team_bytes = (uint32_t)p.team_bytes;
	bytes = bytes > columns ? bytes : columns;
	auto *kernel = p.packs == 1 ? mix_bwd<T, 1> : mix_bwd<T, 2>;
	K3_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
					   (int)bytes));
	kernel<<<(unsigned)p.parts, dim3(p.team, p.teams), bytes, (cudaStream_t)cuda->stream>>>(k);
	K3_CUDA_LAUNCHED("mix_bwd");
}

template <typename T>
static void
run_any(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct mix_vectors &vec,
	size_t parts, const struct k3_cuda *cuda)
{
	struct mix_rows<MIX_MOST> rows, grads;
	unsigned threads = mix_threads(a->d);
	size_t n = a->blocks.n, bytes = mix_bwd_floats(n + 1, threads) * sizeof(float);

	rows.row = pointers_of<MIX_MOST>(buf, a->blocks.first, n);
	grads.row = pointers_of<MIX_MOST>(buf, a->dblocks.first, n);
	rows.row.p[n] = buf[3], rows.row.p[n + 1] = buf[1], grads.row.p[n] = buf[0];
	rows.n = n + 2, grads.n = n + 1;
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		mix_bwd_any<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
	mix_bwd_any<T><<<(unsigned)parts, threads, bytes, (cudaStream_t)cuda->stream>>>(
		(float *)cuda->scratch, rows, grads, vec, a->t, a->d, a->blocks_accumulate != 0);
	K3_CUDA_LAUNCHED("mix_bwd_any");
}

/* The gradient of gamma is rho times the sum of e, that of rho gamma times it. */
static void
parameter_gradients(void *const *buf, const struct k3_mix_norm_bwd_args *a, size_t parts,
		    const struct k3_cuda *cuda)
{
	const float *part = (const float *)cuda->scratch, *e = part + a->d;
	struct k3_cuda_column_sum sums[3] = {
		{(float *)buf[a->dw.first], NULL, part, a->dw.accumulate != 0},
		{(float *)buf[a->dgamma.first], (const float *)buf[a->rho.first], e,
		 a->dgamma.accumulate != 0},
		{(float *)buf[a->drho.first], (const float *)buf[a->gamma.first], e,
		 a->drho.accumulate != 0}};

	k3_cuda_column_sums(cuda, sums, 3, a->t ? parts : 0, MIX_COLUMNS * a->d, a->d);
}

/* Without blocks: the gradient of a norm. */
static void
norm_alone(enum k3_cuda_type type, void *const *buf, const struct k3_mix_norm_bwd_args *a,
	   const struct k3_cuda *cuda)
{
	struct k3_cuda_rms_bwd b = {.dx = buf[0],
				    .dy = buf[1],
				    .x = buf[3],
				    .w = (const float *)buf[a->w.first],
				    .stat = (const float *)buf[2],
				    .step = 4};

	for (uint32_t k = 0; k < a->addends.n; k++)
		b.addend[k] = buf[a->addends.first + k];
	b.dw = (float *)buf[a->dw.first];
	b.accumulate = a->dw.accumulate != 0;
	b.n = a->t, b.d = a->d;
	k3_cuda_rms_bwd(cuda, type, &b);
}

template <typename T>
static void
mix_norm_bwd(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct k3_cuda *cuda)
{
	struct plan p = plan_of(a, sizeof(T));

	if (a->d == 0)
		return;
	if (a->blocks.n == 0) {
		norm_alone(k3_type<T>::id, buf, a, cuda);
		return;
	}
	struct mix_vectors vec = {(const float *)buf[a->gamma.first],
				  (const float *)buf[a->rho.first], (const float *)buf[a->w.first],
				  (const float *)buf[2]};
	for (uint32_t k = 0; k < a->addends.n; k++)
		vec.addend[k] = buf[a->addends.first + k];
	if (p.team && !all_aligned(buf, 0, a->n_buf)) {
		p.team = 0;
		p.parts = k3_cuda_row_parts(a->t, a->d);
	}
	if (a->t && p.team)
		run_rings<T>(buf, a, vec, p, cuda);
	else if (a->t)
		run_any<T>(buf, a, vec, p.parts, cuda);
	parameter_gradients(buf, a, p.parts, cuda);
}

K3_CUDA_BOTH(mix_norm_bwd, k3_mix_norm_bwd_args)
