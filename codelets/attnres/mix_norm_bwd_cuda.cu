/* Attention-residual mix and norm, backward: one pass over values and gradients.  Gradients
 * of the parameters are sums over tokens: each thread block leaves a part, a second kernel adds the
 * parts.  The number of blocks, and with it the order of the sums, depends on the sizes alone. */
#include "../norm/rms_cuda.h"
#include "mix_bwd_team.cuh"

/* Thread blocks and the teams of each; team 0: the kernel for any shape. */
struct plan {
	unsigned team, teams;
	size_t parts, bytes;
};

template <typename T, int VALUES>
static struct plan
team_plan(const struct k3_mix_norm_bwd_args *a)
{
	enum { SHARED = 220 << 10, PROCESSORS = 132 };
	struct plan p = {mix_team(a->d, sizeof(T), a->blocks.n + 1), 0, 0, 0};

	if (p.team == 0)
		return p;
	size_t floats = team_floats<VALUES>(a->d, p.team), blocks = blocks_of<VALUES>();
	p.teams = THREADS / p.team < TEAMS_MOST ? THREADS / p.team : TEAMS_MOST;
	while (p.teams > 1 && p.teams * floats * sizeof(float) * blocks > SHARED)
		p.teams--;
	p.bytes = p.teams * floats * sizeof(float);
	p.parts = (a->t + p.teams - 1) / p.teams;
	if (p.parts > PROCESSORS * blocks)
		p.parts = PROCESSORS * blocks;
	if (p.bytes > SHARED)
		p.team = 0;
	return p;
}

template <typename T>
static struct plan
plan_of(const struct k3_mix_norm_bwd_args *a)
{
	struct plan p =
		a->blocks.n + 1 <= MIX_FEW ? team_plan<T, MIX_FEW>(a) : team_plan<T, MIX_VALUES>(a);

	if (p.team == 0)
		p.parts = k3_cuda_row_parts(a->t, a->d);
	return p;
}

extern "C" size_t
k3_mix_norm_bwd_cuda_scratch(const struct k3_mix_norm_bwd_args *a)
{
	size_t parts = k3_cuda_row_parts(a->t, a->d), f32 = plan_of<float>(a).parts,
	       bf16 = plan_of<k3_bf16>(a).parts;

	if (a->blocks.n == 0)
		return k3_cuda_rms_bwd_scratch(a->t, a->d);
	parts = parts > f32 ? parts : f32;
	return (parts > bf16 ? parts : bf16) * MIX_COLUMNS * a->d * sizeof(float);
}

/* The values' rows, and one more; gradients of the values. */
template <int MOST>
static void
rows_of(struct mix_rows<MOST> *rows, struct mix_rows<MOST> *grads, void *const *buf,
	const struct k3_mix_norm_bwd_args *a)
{
	rows->row = pointers_of<MOST>(buf, a->blocks.first, a->blocks.n);
	rows->row.p[a->blocks.n] = buf[3];
	rows->n = a->blocks.n + 1;
	grads->row = pointers_of<MOST>(buf, a->dblocks.first, a->blocks.n);
	grads->row.p[a->blocks.n] = buf[0];
	grads->n = rows->n;
}

template <typename T, int VALUES>
static void
run(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct mix_vectors &vec,
    const struct plan &p, const struct k3_cuda *cuda)
{
	struct mix_rows<VALUES> rows, grads;

	rows_of(&rows, &grads, buf, a);
	K3_CUDA_CHECK(cudaFuncSetAttribute(
		mix_bwd<T, VALUES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)p.bytes));
	mix_bwd<T, VALUES>
		<<<(unsigned)p.parts, dim3(p.team, p.teams), p.bytes, (cudaStream_t)cuda->stream>>>(
			(float *)cuda->scratch, (const T *)buf[1], rows, grads, vec, a->t, a->d,
			a->blocks_accumulate != 0);
	K3_CUDA_LAUNCHED("mix_bwd");
}

template <typename T>
static void
run_any(void *const *buf, const struct k3_mix_norm_bwd_args *a, const struct mix_vectors &vec,
	size_t parts, const struct k3_cuda *cuda)
{
	struct mix_rows<MIX_MOST> rows, grads;
	unsigned threads = mix_threads(a->d);
	size_t n = a->blocks.n + 1, bytes = mix_bwd_floats(n, threads) * sizeof(float);

	rows_of(&rows, &grads, buf, a);
	rows.row.p[rows.n++] = buf[1];
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
	struct plan p = plan_of<T>(a);

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
	if (a->t && (p.team == 0 || !all_aligned(buf, 0, a->n_buf)))
		run_any<T>(buf, a, vec, p.parts, cuda);
	else if (a->t && a->blocks.n + 1 <= MIX_FEW)
		run<T, MIX_FEW>(buf, a, vec, p, cuda);
	else if (a->t)
		run<T, MIX_VALUES>(buf, a, vec, p, cuda);
	parameter_gradients(buf, a, p.parts, cuda);
}

K3_CUDA_BOTH(mix_norm_bwd, k3_mix_norm_bwd_args)
