/* The calls.  Those of one task travel together (ncclGroup), as one launch.  The trap: a shard
 * may be shorter than the place that it has in the gathered block, and NCCL reads the whole
 * place: a short one is copied there first and gathered in place. */
#include "comm_nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../../common/log.h"
#include "../cuda/cuda.h"

static void
check(const struct k3_comm_call *c, ncclResult_t result, const char *what, int line)
{
	if (result != ncclSuccess)
		c->failed(c, (int)result, what, __FILE__, line);
}

#define CHECK(result) check(c, result, #result, __LINE__)

void
k3_comm_check_nccl(const struct k3_comm_call *c)
{
	ncclResult_t state;

	CHECK(ncclCommGetAsyncError(c->comm, &state));
	check(c, state, "an earlier call", __LINE__);
}

static ncclDataType_t
type_of(enum k3_dtype dtype)
{
	switch (dtype) {
	case K3_F32:
		return ncclFloat32;
	case K3_BF16:
		return ncclBfloat16;
	case K3_F64:
		return ncclFloat64;
	default:
		K3_ASSERT(dtype == K3_I32);
		return ncclInt32;
	}
}

static char *
at(void *p, size_t elems, enum k3_dtype dtype)
{
	return (char *)p + elems * k3_dtype_bytes(dtype);
}

static void
copy(void *to, const void *from, size_t bytes, const struct k3_comm_call *c)
{
	if (bytes)
		K3_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
					      (cudaStream_t)c->stream));
}

void
k3_gather_params_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	uint32_t n = c->n_buf / 2;
	const size_t *full = c->elems, *shard = c->elems + n;

	(void)args;
	for (uint32_t i = 0; i < n; i++)
		if (shard[i] < full[i] / c->ranks)
			copy(at(buf[i], full[i] / c->ranks * c->rank, c->dtype), buf[n + i],
			     shard[i] * k3_dtype_bytes(c->dtype), c);
	CHECK(ncclGroupStart());
	for (uint32_t i = 0; i < n; i++) {
		size_t pitch = full[i] / c->ranks;
		const void *mine =
			shard[i] < pitch ? at(buf[i], pitch * c->rank, c->dtype) : buf[n + i];
		CHECK(ncclAllGather(mine, buf[i], pitch, type_of(c->dtype), c->comm, c->stream));
	}
	CHECK(ncclGroupEnd());
}

/* What is left to do with a rank's part of the sum, which lies in its place in the full block. */
static void
keep_sums(void *const *buf, uint32_t accumulate, const struct k3_comm_call *c)
{
	enum { MOST = 16 };
	const float *from[MOST];
	float *to[MOST];
	size_t elems[MOST];
	uint32_t n = c->n_buf / 2, listed = 0;

	for (uint32_t i = 0; i < n; i++) {
		size_t pitch = c->elems[n + i] / c->ranks;
		const float *sum = (const float *)buf[n + i] + pitch * c->rank;
		if (!accumulate && c->elems[i] < pitch)
			copy(buf[i], sum, c->elems[i] * sizeof(float), c);
		if (!accumulate)
			continue;
		from[listed] = sum;
		to[listed] = buf[i];
		elems[listed++] = c->elems[i];
		if (listed == MOST || i + 1 == n) {
			k3i_comm_add(to, from, elems, listed, c->stream);
			listed = 0;
		}
	}
}

void
k3_reduce_scatter_grads_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	const struct k3_reduce_scatter_args *a = args;
	uint32_t n = c->n_buf / 2;

	CHECK(ncclGroupStart());
	for (uint32_t i = 0; i < n; i++) {
		size_t pitch = c->elems[n + i] / c->ranks;
		float *full = buf[n + i];
		float *sum = a->accumulate || c->elems[i] < pitch ? full + pitch * c->rank : buf[i];
		CHECK(ncclReduceScatter(full, sum, pitch, ncclFloat32, ncclSum, c->comm,
					c->stream));
	}
	CHECK(ncclGroupEnd());
	keep_sums(buf, a->accumulate, c);
}

void
k3_allreduce_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	(void)args;
	CHECK(ncclGroupStart());
	for (uint32_t i = 0; i < c->n_buf; i++)
		CHECK(ncclAllReduce(buf[i], buf[i], c->elems[i], type_of(c->dtype), ncclSum,
				    c->comm, c->stream));
	CHECK(ncclGroupEnd());
}

void
k3_kda_state_gather_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	const struct k3_kda_state_gather_args *a = args;

	for (uint32_t i = 0; i < a->all.n && a->sm.n == 0; i++) {
		size_t n = c->elems[a->all.first + i] / c->ranks;
		K3_CUDA_CHECK(cudaMemsetAsync((float *)buf[a->all.first + i] + n * c->rank, 0,
					      n * sizeof(float), (cudaStream_t)c->stream));
	}
	CHECK(ncclGroupStart());
	for (uint32_t i = 0; i < a->all.n; i++) {
		size_t n = c->elems[a->all.first + i] / c->ranks;
		float *all = buf[a->all.first + i];
		const float *mine = a->sm.n ? buf[a->sm.first + i] : all + n * c->rank;
		CHECK(ncclAllGather(mine, all, n, ncclFloat32, c->comm, c->stream));
	}
	CHECK(ncclGroupEnd());
}

/* Place of tile i of the root: its own buffer, or its rows of the work buffer. */
static void *
kv_place(void *const *buf, const struct k3_kv_args *a, size_t i, size_t *listed,
	 const struct k3_comm_call *c)
{
	if (a->tile[i].listed)
		return buf[a->tiles.first + (*listed)++];
	return at(buf[a->work.first], a->tile[i].row0 * a->width, c->dtype);
}

void
k3_gather_kv_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	const struct k3_kv_args *a = args;
	size_t listed = 0;

	CHECK(ncclGroupStart());
	for (size_t i = 0; i < a->n_tiles; i++) {
		void *rows = kv_place(buf, a, i, &listed, c);
		CHECK(ncclBroadcast(rows, rows, a->tile[i].rows * a->width, type_of(c->dtype),
				    c->peer, c->comm, c->stream));
	}
	CHECK(ncclGroupEnd());
}

void
k3_scatter_kv_grads_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	const struct k3_kv_args *a = args;
	bool root = c->peer == (int)c->rank;
	size_t listed = 0;

	for (size_t i = 0; i < a->n_tiles; i++) {
		void *rows = kv_place(buf, a, i, &listed, c);
		size_t bytes = a->tile[i].rows * a->width * k3_dtype_bytes(c->dtype);
		if (!a->tile[i].listed)
			K3_CUDA_CHECK(cudaMemsetAsync(rows, 0, bytes, (cudaStream_t)c->stream));
	}
	listed = 0;
	CHECK(ncclGroupStart());
	for (size_t i = 0; i < a->n_tiles; i++) {
		void *rows = kv_place(buf, a, i, &listed, c);
		CHECK(ncclReduce(rows, root ? rows : NULL, a->tile[i].rows * a->width,
				 type_of(c->dtype), ncclSum, c->peer, c->comm, c->stream));
	}
	CHECK(ncclGroupEnd());
}

void
k3_halo_send_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	(void)args;
	CHECK(ncclSend(buf[0], c->elems[0], type_of(c->dtype), c->peer, c->comm, c->stream));
}

void
k3_halo_recv_nccl(void *const *buf, const void *args, const struct k3_comm_call *c)
{
	(void)args;
	CHECK(ncclRecv(buf[0], c->elems[0], type_of(c->dtype), c->peer, c->comm, c->stream));
}
