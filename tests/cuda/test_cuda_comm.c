/* The communication calls on a communicator of one rank, by NCCL itself: every sum has one part
 * and every gather one shard, so results are known to the bit.  tests/test_comm_ranks.c has more
 * ranks. */
#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../codelets/comm/comm_nccl.h"
#include "../../common/rng.h"
#include "cuda_case.h"

#define TEST(name) Test(cuda_comm, name, .init = cuda_case_need_device, .timeout = 120)

enum { MOST = 48 };

/* Buffers of a task: what the host gave, and the device's copies. */
struct buffers {
	uint32_t n;
	size_t elems[MOST], bytes[MOST];
	unsigned char *host[MOST];
	void *device[MOST];
	struct k3_comm_call call;
	cudaStream_t stream;
};

/* No call of these is expected to fail. */
static void
failed(const struct k3_comm_call *call, int result, const char *what, const char *file, int line)
{
	cr_assert_fail("%s:%d: %s: %s: %s", file, line, what,
		       ncclGetErrorString((ncclResult_t)result), ncclGetLastError(call->comm));
}

static void
begin(struct buffers *b, enum k3_dtype dtype)
{
	ncclUniqueId id;
	ncclComm_t comm;

	memset(b, 0, sizeof(*b));
	cr_assert_eq(cudaSetDevice(0), cudaSuccess);
	cr_assert_eq(cudaStreamCreate(&b->stream), cudaSuccess);
	cr_assert_eq(ncclGetUniqueId(&id), ncclSuccess);
	cr_assert_eq(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess, "%s", ncclGetLastError(NULL));
	b->call = (struct k3_comm_call){.comm = comm,
					.stream = b->stream,
					.ranks = 1,
					.peer = 0,
					.dtype = dtype,
					.elems = b->elems,
					.failed = failed};
}

static void
end(struct buffers *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		free(b->host[i]);
		cudaFree(b->device[i]);
	}
	cr_expect_eq(ncclCommDestroy(b->call.comm), ncclSuccess);
	cudaStreamDestroy(b->stream);
}

/* A buffer of numbers of the call's type, small enough that their sums are numbers too. */
static void
add(struct buffers *b, size_t elems)
{
	size_t each = k3_dtype_bytes(b->call.dtype), bytes = elems * each;
	uint32_t i = b->n++;

	cr_assert(b->n <= MOST);
	b->elems[i] = elems;
	b->bytes[i] = bytes;
	b->host[i] = malloc(bytes + 1);
	for (size_t e = 0; e < elems; e++) {
		float x = (float)(int)(k3_rng_bits(i + 1, e) % 2001) / 8 - 125;
		double d = (double)x;
		int32_t n = (int32_t)(8 * x);
		uint32_t word;
		memcpy(&word, &x, sizeof(word));
		uint16_t half = (uint16_t)(word >> 16);
		const void *value = b->call.dtype == K3_F64    ? (const void *)&d
				    : b->call.dtype == K3_I32  ? (const void *)&n
				    : b->call.dtype == K3_BF16 ? (const void *)&half
							       : (const void *)&x;
		memcpy(b->host[i] + e * each, value, each);
	}
	cr_assert_eq(cudaMalloc(&b->device[i], bytes + 1), cudaSuccess);
	cudaMemcpy(b->device[i], b->host[i], bytes, cudaMemcpyHostToDevice);
	b->call.n_buf = b->n;
}

static void
wait_for(struct buffers *b)
{
	cr_assert_eq(cudaStreamSynchronize(b->stream), cudaSuccess);
}

/* Does device buffer i hold these bytes? */
static void
expect_bytes(const struct buffers *b, uint32_t i, const void *want)
{
	unsigned char *got = malloc(b->bytes[i] + 1);

	cudaMemcpy(got, b->device[i], b->bytes[i], cudaMemcpyDeviceToHost);
	cr_expect(memcmp(got, want, b->bytes[i]) == 0, "buffer %u of %zu elements", i, b->elems[i]);
	free(got);
}

static void
expect_unchanged(const struct buffers *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		expect_bytes(b, i, b->host[i]);
}

static const size_t sizes[] = {1,    2,	 3,  4,	   31,	  4096, 4097, 10001, 8,	 16,
			       4095, 17, 64, 2049, 16385, 5,	100,  33,    12, 7};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

TEST(gathered_blocks_are_the_shards)
{
	static const enum k3_dtype types[] = {K3_F32, K3_BF16};

	for (size_t t = 0; t < 2; t++) {
		struct buffers b;
		begin(&b, types[t]);
		for (size_t i = 0; i < 2 * N_SIZES; i++)
			add(&b, sizes[i % N_SIZES]);
		k3_gather_params_nccl(b.device, NULL, &b.call);
		wait_for(&b);
		for (uint32_t i = 0; i < N_SIZES; i++) {
			expect_bytes(&b, i, b.host[N_SIZES + i]);
			expect_bytes(&b, N_SIZES + i, b.host[N_SIZES + i]);
		}
		end(&b);
	}
}

TEST(a_short_shard_leaves_the_rest_of_its_place)
{
	struct buffers b;

	begin(&b, K3_F32);
	add(&b, 100);
	add(&b, 60);
	k3_gather_params_nccl(b.device, NULL, &b.call);
	wait_for(&b);
	memcpy(b.host[0], b.host[1], b.bytes[1]);
	expect_unchanged(&b);
	end(&b);
}

/* Shards at odd addresses too: the same buffers one element further. */
static void
reduce(uint32_t accumulate, size_t shift)
{
	struct k3_reduce_scatter_args a = {.accumulate = accumulate};
	struct buffers b;
	void *moved[MOST];

	begin(&b, K3_F32);
	for (size_t i = 0; i < 2 * N_SIZES; i++)
		add(&b, sizes[i % N_SIZES] + shift);
	for (size_t i = 0; i < 2 * N_SIZES; i++) {
		moved[i] = (float *)b.device[i] + shift;
		b.elems[i] -= shift;
	}
	k3_reduce_scatter_grads_nccl(moved, &a, &b.call);
	wait_for(&b);
	for (uint32_t i = 0; i < N_SIZES; i++) {
		float *shard = (float *)(void *)b.host[i];
		const float *full = (const float *)(const void *)b.host[N_SIZES + i];
		for (size_t e = shift; e < sizes[i] + shift; e++)
			shard[e] = accumulate ? shard[e] + full[e] : full[e];
		expect_bytes(&b, i, shard);
	}
	end(&b);
}

TEST(a_first_sum_sets_the_shards)
{
	reduce(0, 0);
	reduce(0, 1);
}

TEST(later_sums_are_added)
{
	reduce(1, 0);
	reduce(1, 1);
}

TEST(a_sum_over_one_rank_is_its_part)
{
	static const enum k3_dtype types[] = {K3_F32, K3_F64, K3_I32, K3_BF16};

	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		struct buffers b;
		begin(&b, types[t]);
		for (size_t i = 0; i < N_SIZES; i++)
			add(&b, sizes[i]);
		k3_allreduce_nccl(b.device, NULL, &b.call);
		wait_for(&b);
		expect_unchanged(&b);
		end(&b);
	}
}

TEST(states_are_gathered_and_zeros_where_no_document_is_cut)
{
	struct k3_kda_state_gather_args a = {.all = {0, 2}, .sm = {2, 2}};
	struct buffers b;

	begin(&b, K3_F32);
	for (size_t i = 0; i < 4; i++)
		add(&b, i % 2 ? 1500 : 3000);
	k3_kda_state_gather_nccl(b.device, &a, &b.call);
	wait_for(&b);
	expect_bytes(&b, 0, b.host[2]);
	expect_bytes(&b, 1, b.host[3]);
	a.sm.n = 0;
	b.call.n_buf = 2;
	k3_kda_state_gather_nccl(b.device, &a, &b.call);
	wait_for(&b);
	memset(b.host[0], 0, b.bytes[0]);
	memset(b.host[1], 0, b.bytes[1]);
	expect_unchanged(&b);
	end(&b);
}

TEST(latents_of_the_root_stay_and_missing_gradients_are_zeros)
{
	static const struct k3_kv_tile tile[] = {{0, 64, 1}, {64, 64, 0}, {128, 3, 1}};
	struct k3_kv_args a = {
		.width = 10, .work = {0, 1}, .tiles = {1, 2}, .n_tiles = 3, .tile = tile};
	struct buffers b;

	begin(&b, K3_BF16);
	add(&b, 131 * 10);
	add(&b, 64 * 10);
	add(&b, 3 * 10);
	k3_gather_kv_nccl(b.device, &a, &b.call);
	wait_for(&b);
	expect_unchanged(&b);
	k3_scatter_kv_grads_nccl(b.device, &a, &b.call);
	wait_for(&b);
	memset(b.host[0] + 64 * 10 * 2, 0, 64 * 10 * 2);
	expect_unchanged(&b);
	end(&b);
}

static jmp_buf caught;
static char caught_call[200];

static void catch (const struct k3_comm_call *call, int result, const char *what, const char *file,
		   int line)
{
	(void)call;
	cr_expect(strstr(file, "comm_nccl.c") && line > 0);
	snprintf(caught_call, sizeof(caught_call), "%s", what);
	longjmp(caught, result);
}

TEST(a_call_that_fails_is_named)
{
	struct buffers b;
	int result;

	begin(&b, K3_F32);
	add(&b, 100);
	b.call.failed = catch;
	b.call.peer = 7;
	result = setjmp(caught);
	if (result == 0)
		k3_halo_send_nccl(b.device, NULL, &b.call);
	cr_expect_eq(result, ncclInvalidArgument);
	cr_expect(strstr(caught_call, "ncclSend("), "%s", caught_call);
	cr_expect_eq(ncclCommAbort(b.call.comm), ncclSuccess);
}

TEST(a_halo_sent_to_itself_arrives)
{
	struct buffers b;

	begin(&b, K3_BF16);
	add(&b, 3 * 48);
	add(&b, 3 * 48);
	/* both ends are one rank: they must be one group */
	cr_assert_eq(ncclGroupStart(), ncclSuccess);
	k3_halo_send_nccl(b.device, NULL, &b.call);
	k3_halo_recv_nccl(b.device + 1, NULL, &b.call);
	cr_assert_eq(ncclGroupEnd(), ncclSuccess);
	wait_for(&b);
	expect_bytes(&b, 1, b.host[0]);
	end(&b);
}
