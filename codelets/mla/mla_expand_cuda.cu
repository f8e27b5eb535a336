/* Expansion of compressed keys and values on CUDA (model.md 4).  The shared key part is neither
 * normalised nor rotated: it travels at the end of each row, and its gradient is the sum over the
 * groups of heads in ascending order. */
#include "mla_gemm.cuh"
#include "mla_norm.cuh"

extern "C" {
#include "../../common/op/mla.h"
}

enum { THREADS = 256, GROUPS = 64 };

/* Columns of up to GROUPS matrices; ld 0 ends none. */
struct parts {
	const void *x[GROUPS];
	size_t ld[GROUPS];
	int n;
};

/* y[i][c] = (add ? y : 0) + sum_g x_g[i][c] for n columns. */
template <typename T>
static __global__ void
sum_columns(T *y, size_t ldy, const __grid_constant__ struct parts parts, size_t t, size_t n,
	    int add)
{
	size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row = i / n, c = i % n;
	float sum;

	if (row >= t)
		return;
	sum = add ? wide(y[row * ldy + c]) : 0.0f;
	for (int g = 0; g < parts.n; g++)
		sum += wide(static_cast<const T *>(parts.x[g])[row * parts.ld[g] + c]);
	y[row * ldy + c] = narrow<T>(sum);
}

template <typename T>
static void
launch_sum(T *y, size_t ldy, const struct parts *parts, size_t t, size_t n, int add,
	   const struct k3_cuda *cuda)
{
	if (t * n == 0)
		return;
	sum_columns<T><<<blocks_for(t * n, THREADS), THREADS, 0, (cudaStream_t)cuda->stream>>>(
		y, ldy, *parts, t, n, add);
	K3_CUDA_LAUNCHED("sum_columns");
}

static size_t
group_rows(const struct k3_mla_expand_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * (a->nope + a->v);
	return heads * (a->nope + a->v);
}

template <typename T>
static void
normalise(T *y, const void *c, void *const *buf, const struct k3_mla_expand_args *a,
	  const struct k3_cuda *cuda)
{
	norm_forward<T>(y, (const T *)c, a->rkv + a->rope, (const float *)buf[a->kn.first], a->t,
			a->rkv, a->eps, cuda);
}

template <typename T>
static void
mla_expand_fwd(void *const *buf, const struct k3_mla_expand_args *a, const struct k3_cuda *cuda)
{
	T *kv = (T *)buf[0], *work = (T *)buf[2];
	const T *c = (const T *)buf[1];
	size_t ck = a->rkv + a->rope, all = a->h * (a->nope + a->v), ld = all + a->rope;
	struct parts shared = {{c + a->rkv}, {ck}, 1};

	normalise<T>(work, c, buf, a, cuda);
	k3_cuda_linear_fwd(cuda, k3_type<T>::id, kv, ld, 0, work, a->rkv, buf, &a->wkvb, 0, all,
			   a->t);
	launch_sum<T>(kv + all, ld, &shared, a->t, a->rope, 0, cuda);
}

/* The gradient of the shared part. */
template <typename T>
static void
sum_groups(void *const *buf, const struct k3_mla_expand_args *a, const struct k3_cuda *cuda)
{
	T *dc = (T *)buf[0];
	uint32_t g = 0;

	do {
		struct parts parts = {};
		int add = g > 0;
		for (; g < a->dkv.n && parts.n < GROUPS; g++, parts.n++) {
			size_t first, n = group_rows(a, g, &first);
			parts.x[parts.n] = (const T *)buf[a->dkv.first + g] + n;
			parts.ld[parts.n] = n + a->rope;
		}
		launch_sum<T>(dc + a->rkv, a->rkv + a->rope, &parts, a->t, a->rope, add, cuda);
	} while (g < a->dkv.n);
}

template <typename T>
static void
mla_expand_bwd_dx(void *const *buf, const struct k3_mla_expand_args *a, const struct k3_cuda *cuda)
{
	T *dc = (T *)buf[0];
	float *dlat = (float *)buf[2];
	size_t ck = a->rkv + a->rope;

	for (uint32_t g = 0; g < a->dkv.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		linear_dx_float<T>(cuda, dlat, g > 0, (const T *)buf[a->dkv.first + g], n + a->rope,
				   buf, &a->wkvb, first, first + n, a->t);
	}
	sum_groups<T>(buf, a, cuda);
	norm_backward<T>(dc, ck, (float *)buf[a->dkn.first], (int)a->dkn.accumulate, dlat,
			 (const T *)buf[1], ck, (const float *)buf[a->kn.first], a->t, a->rkv,
			 a->eps, cuda);
}

template <typename T>
static void
mla_expand_bwd_dw(void *const *buf, const struct k3_mla_expand_args *a, const struct k3_cuda *cuda)
{
	T *work = (T *)buf[1];

	normalise<T>(work, buf[0], buf, a, cuda);
	for (uint32_t g = 0; g < a->dkv.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		k3_cuda_linear_dw(cuda, k3_type<T>::id, buf, &a->wkvb, first, first + n,
				  buf[a->dkv.first + g], n + a->rope, work, a->rkv, a->t);
	}
}

extern "C" size_t
k3_mla_expand_bwd_dx_cuda_scratch(const struct k3_mla_expand_args *a)
{
	return norm_scratch(a->t, a->rkv);
}

K3_CUDA_BOTH(mla_expand_fwd, k3_mla_expand_args)
K3_CUDA_BOTH(mla_expand_bwd_dx, k3_mla_expand_args)
K3_CUDA_BOTH(mla_expand_bwd_dw, k3_mla_expand_args)
