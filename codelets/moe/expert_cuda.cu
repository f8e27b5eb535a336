/* A group of routed experts on CUDA: the products of expert_task.h in order, on the tensor cores where
 * they can be.  The trap: both products of a data gradient must go the same way, because the second adds
 * up what the first left in the scratch. */
#include <string.h>

#include "expert_task.h"
#include "rows.cuh"
#include "fast_situ.cuh"

extern "C" {
#include "../../common/op/moe.h"
}

enum { HIDDEN_THREADS = 256 };

/* A product by the way that is possible, for both of them if there are two. */
template <typename T>
static void
products(enum expert_product which, struct expert_task *task, enum expert_product then,
	 struct expert_task *next, const struct k3_cuda *cuda)
{
	bool tensor;

	if (task->experts == 0 || (task->tk == 0 && which != WEIGHTS))
		return;
	tensor = k3_type<T>::id == K3_CUDA_BF16 && k3i_expert_wgmma_can(task) &&
		 (!next || k3i_expert_wgmma_can(next));
	for (; task; task = next, next = NULL, which = then) {
		task->parts =
			(int)blocks_for((size_t)task->f, tensor ? WGMMA_PART_COLS : FMA_PART_COLS);
		if (tensor)
			k3i_expert_wgmma(which, task, cuda);
		else
			k3i_expert_fma(k3_type<T>::id, which, task, cuda);
	}
}

static struct expert_task
task_of(const struct k3_expert_args *a, const void *route_buf)
{
	const int32_t *route = (const int32_t *)route_buf;
	struct expert_task task;

	memset(&task, 0, sizeof(task));
	task.offs = k3_route_offs(route) + a->e0;
	task.src = k3_route_src(route, a->n_experts, a->t, a->k);
	task.tk = a->t * a->k;
	task.experts = (int)(a->e1 - a->e0);
	task.r = (int)a->r;
	task.f = (int)a->f;
	task.beta1 = a->beta1;
	task.beta2 = a->beta2;
	return task;
}

template <typename T>
static void
expert_gu(void *const *buf, const struct k3_expert_args *a, const struct k3_cuda *cuda)
{
	struct expert_task task = task_of(a, buf[2]);

	task.out[0] = buf[0];
	task.x[0] = buf[1];
	task.y[0] = buf[a->w13.first];
	products<T>(GATE_UP, &task, GATE_UP, NULL, cuda);
}

template <typename T>
static void
expert_fwd(void *const *buf, const struct k3_expert_args *a, const struct k3_cuda *cuda)
{
	struct expert_task up = task_of(a, buf[3]), down = up;

	up.out[0] = buf[0];
	up.out[1] = buf[4];
	up.x[0] = buf[2];
	up.y[0] = buf[a->w13.first];
	down.out[0] = buf[1];
	down.x[0] = buf[4];
	down.y[0] = buf[a->w2.first];
	products<T>(GATE_UP, &up, DOWN, &down, cuda);
}

extern "C" size_t
k3_expert_dgrad_cuda_scratch(const struct k3_expert_args *a)
{
	return a->t * a->k * blocks_for(a->f, FMA_PART_COLS) * sizeof(float);
}

template <typename T>
static void
expert_dgrad(void *const *buf, const struct k3_expert_args *a, const struct k3_cuda *cuda)
{
	struct expert_task hidden = task_of(a, buf[5]), latent = hidden;

	hidden.out[0] = buf[0];
	hidden.x[0] = buf[3];
	hidden.y[0] = buf[a->w2.first];
	hidden.gu = buf[4];
	hidden.w = (const float *)buf[6];
	hidden.part = (float *)cuda->scratch;
	latent.out[0] = buf[1];
	latent.x[0] = buf[0];
	latent.y[0] = buf[a->w13.first];
	latent.part = (float *)cuda->scratch;
	latent.dwt = (float *)buf[2];
	products<T>(D_HIDDEN, &hidden, D_LATENT, &latent, cuda);
}

/* h of the group's rows, each times its weight: a thread has a run of a row.  The kernel behind may
 * start while the last blocks run, if it waits before it reads h. */
template <typename T, int N>
static __global__ void
weighted_hidden(T *h, const T *gu, struct expert_task task)
{
	size_t at = (size_t)blockIdx.x * HIDDEN_THREADS + threadIdx.x, f = (size_t)task.f;
	size_t row = at / (f / N), c = (at - row * (f / N)) * N;
	float g[N], u[N], weight;

	let_successor_start();
	if (row < (size_t)task.offs[0] || row >= (size_t)task.offs[task.experts])
		return;
	weight = task.w[task.src[row]];
	run_load<T, N>(g, gu + row * 2 * f + c);
	run_load<T, N>(u, gu + row * 2 * f + f + c);
#pragma unroll
	for (int q = 0; q < N; q++) {
		struct situ_parts p = situ_for<T>(g[q], u[q], task.beta1, task.beta2);
		g[q] = weight * situ_value(&p, task.beta1, task.beta2);
	}
	run_store<T, N>(h + row * f + c, g);
}

template <typename T>
static void
weigh_hidden(T *h, const T *gu, const struct expert_task *task, const struct k3_cuda *cuda)
{
	const int n = k3_pack<T>::n;
	size_t all = task->tk * (size_t)task->f;
	cudaStream_t stream = (cudaStream_t)cuda->stream;

	if (all == 0)
		return;
	if (task->f % n == 0)
		weighted_hidden<T, n>
			<<<blocks_for(all / n, HIDDEN_THREADS), HIDDEN_THREADS, 0, stream>>>(h, gu,
											     *task);
	else
		weighted_hidden<T, 1>
			<<<blocks_for(all, HIDDEN_THREADS), HIDDEN_THREADS, 0, stream>>>(h, gu,
											 *task);
	K3_CUDA_LAUNCHED("weighted_hidden");
}

extern "C" size_t
k3_expert_wgrad_cuda_scratch(const struct k3_expert_args *a)
{
	struct expert_parts parts = k3i_expert_weights_parts(a->t * a->k, a->r, a->f);

	return parts.floats * sizeof(float) + parts.counts * sizeof(int);
}

template <typename T>
static void
expert_wgrad(void *const *buf, const struct k3_expert_args *a, const struct k3_cuda *cuda)
{
	struct expert_task task = task_of(a, buf[4]);
	struct expert_parts parts = k3i_expert_weights_parts(task.tk, a->r, a->f);
	bool tensor;

	task.w = (const float *)buf[5];
	task.part = (float *)cuda->scratch;
	task.arrived = (int *)(task.part + parts.floats);
	task.part_rows = (int)parts.rows;
	task.x[0] = buf[0];
	task.y[0] = buf[3];
	task.x[1] = buf[1];
	task.y[1] = buf[6];
	task.out[0] = buf[a->w13.first];
	task.out[1] = buf[a->w2.first];
	task.accumulate[0] = (int)a->w13.accumulate;
	task.accumulate[1] = (int)a->w2.accumulate;
	if (task.experts == 0)
		return;
	tensor = k3_type<T>::id == K3_CUDA_BF16 && k3i_expert_wgmma_can(&task);
	if (tensor)
		K3_CUDA_CHECK(cudaMemsetAsync(task.arrived, 0, parts.counts * sizeof(int),
					      (cudaStream_t)cuda->stream));
	weigh_hidden((T *)buf[6], (const T *)buf[2], &task, cuda);
	if (tensor)
		k3i_expert_weights(&task, cuda);
	else
		k3i_expert_fma(k3_type<T>::id, WEIGHTS, &task, cuda);
}

K3_CUDA_BOTH(expert_gu, k3_expert_args)
K3_CUDA_BOTH(expert_fwd, k3_expert_args)
K3_CUDA_BOTH(expert_dgrad, k3_expert_args)
K3_CUDA_BOTH(expert_wgrad, k3_expert_args)
