/* h of the group's rows, each times its weight, by warps that neither load nor multiply, while the
 * others are at dW13: dW2 reads it.
 *
 * Warps claim pieces of the rows one after the other, so whoever waits for all of them waits for warps
 * that run.  The trap: few warps must keep much of the memory busy with few registers; g and u
 * go through shared memory, two runs ahead, and a claim's lines are asked for one claim ahead.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_HIDDEN_CUH
#define K3_MOE_EXPERT_WEIGHTS_HIDDEN_CUH
#include "expert_weights_tiles.cuh"

/* Runs of a lane in a claim. */
enum { CLAIM_RUNS = 8 };
static const uint32_t NO_RUN = 0xffffffffu;

struct claims {
	uint32_t runs, all; /* of the group */
	uint32_t now, next, step;
	int taken;
};

static __device__ __forceinline__ uint32_t
runs_of(const struct grad_job *job, const struct grad_experts *x)
{
	return (uint32_t)(x->offs[job->task.experts] - x->offs[0]) * (uint32_t)(job->task.f / RUN);
}

static __device__ __forceinline__ uint32_t
claims_of(uint32_t runs)
{
	return (runs + 32 * CLAIM_RUNS - 1) / (32 * CLAIM_RUNS);
}

static __device__ __forceinline__ const k3_bf16 *
run_of_gu(const struct grad_job *job, const struct grad_experts *x, uint32_t run, uint32_t *row)
{
	uint32_t each = (uint32_t)(job->task.f / RUN), of = run / each;

	*row = (uint32_t)x->offs[0] + of;
	return (const k3_bf16 *)job->task.gu + (size_t)*row * 2 * (size_t)job->task.f +
	       (run - of * each) * RUN;
}

/* Asks for the lines of the next claim: 128 bytes are 8 runs. */
static __device__ __forceinline__ void
expect_claim(const struct claims *c, const struct grad_job *job, const struct grad_experts *x)
{
	uint32_t run = c->next * 32 * CLAIM_RUNS + (threadIdx.x & 31) * 8, row;

	if (c->next >= c->all || run >= c->runs)
		return;
	const k3_bf16 *g = run_of_gu(job, x, run, &row);
	asm volatile("prefetch.global.L2 [%0];" ::"l"(g));
	asm volatile("prefetch.global.L2 [%0];" ::"l"(g + job->task.f));
}

/* This lane's next run. */
static __device__ __forceinline__ uint32_t
next_run(struct claims *c, const struct grad_job *job, const struct grad_experts *x)
{
	uint32_t lane = threadIdx.x & 31, run;

	if (c->step == CLAIM_RUNS && c->now < c->all) {
		c->now = c->next;
		c->step = 0;
		if (c->now < c->all) {
			c->taken++;
			if (lane == 0)
				c->next = (uint32_t)atomicAdd(&job->counts[NEXT_CLAIM], 1);
		}
	}
	if (c->now >= c->all)
		return NO_RUN;
	if (c->step == CLAIM_RUNS / 2) {
		c->next = __shfl_sync(0xffffffffu, c->next, 0);
		expect_claim(c, job, x);
	}
	run = (c->now * CLAIM_RUNS + c->step++) * 32 + lane;
	return run < c->runs ? run : NO_RUN;
}

static __device__ __forceinline__ uint4
shared_load_16(uint32_t from)
{
	uint4 x;

	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
		     : "r"(from)
		     : "memory");
	return x;
}

static __device__ __forceinline__ uint32_t
weighted_pair(uint32_t g, uint32_t u, float weight, float b1, float b2)
{
	struct situ_parts first = fast_situ(pair_first(g), pair_first(u), b1, b2),
			  second = fast_situ(pair_second(g), pair_second(u), b1, b2);

	return bf16_pair(weight * situ_value(&first, b1, b2), weight * situ_value(&second, b1, b2));
}

static __device__ __forceinline__ void
weigh_run(const struct grad_job *job, uint4 *to, uint32_t from, float weight)
{
	const float b1 = job->task.beta1, b2 = job->task.beta2;
	uint4 g = shared_load_16(from), u = shared_load_16(from + 32 * 16);

	*to = make_uint4(weighted_pair(g.x, u.x, weight, b1, b2),
			 weighted_pair(g.y, u.y, weight, b1, b2),
			 weighted_pair(g.z, u.z, weight, b1, b2),
			 weighted_pair(g.w, u.w, weight, b1, b2));
}

/* By a warp: until no claim is left. */
static __device__ __forceinline__ void
weigh_rows(const struct grad_job *job, const struct grad_experts *x, uint32_t runs)
{
	const struct expert_task *task = &job->task;
	uint32_t lane = threadIdx.x & 31, run[3] = {NO_RUN, NO_RUN, NO_RUN}, src[2] = {}, row = 0;
	uint32_t buffer =
		runs + ((threadIdx.x >> 5) - 1) * RUN_BUFFERS * 32 * RUN_BYTES + lane * 16;
	uint4 *h = (uint4 *)((k3_bf16 *)task->y[1] + (size_t)x->offs[0] * (size_t)task->f);
	struct claims c = {runs_of(job, x), 0, 0, 0, CLAIM_RUNS, 0};
	float weight[2] = {};

	c.all = claims_of(c.runs);
	if (lane == 0)
		c.next = (uint32_t)atomicAdd(&job->counts[NEXT_CLAIM], 1);
	c.next = __shfl_sync(0xffffffffu, c.next, 0);
	c.now = 0;
	if (c.next >= c.all)
		return;
	for (uint32_t at = 0, tail = 0; tail < 2; at = at == RUN_BUFFERS - 1 ? 0 : at + 1) {
		/* run[2] is asked for, run[1] gets its weight, run[0] is there */
		run[2] = next_run(&c, job, x);
		tail += c.now >= c.all;
		if (run[2] != NO_RUN) {
			const k3_bf16 *g = run_of_gu(job, x, run[2], &row);
			copy_16(buffer + at * 32 * RUN_BYTES, g);
			copy_16(buffer + at * 32 * RUN_BYTES + 32 * 16, g + task->f);
			src[1] = (uint32_t)__ldg(task->src + row);
		}
		asm volatile("cp.async.commit_group;" ::: "memory");
		if (run[1] != NO_RUN)
			weight[1] = __ldg(task->w + src[0]);
		asm volatile("cp.async.wait_group 2;" ::: "memory");
		if (run[0] != NO_RUN)
			weigh_run(job, h + run[0],
				  buffer + (at == RUN_BUFFERS - 1 ? 0 : at + 1) * 32 * RUN_BYTES,
				  weight[0]);
		run[0] = run[1], run[1] = run[2];
		src[0] = src[1], weight[0] = weight[1];
	}
	/* the copy engine of another multiprocessor reads what was stored */
	asm volatile("fence.proxy.async;" ::: "memory");
	__threadfence();
	__syncwarp();
	if (lane == 0)
		atomicAdd(&job->counts[CLAIMS_DONE], c.taken);
}

/* By a thread, before it asks for h. */
static __device__ __forceinline__ void
await_hidden(const struct grad_job *job, const struct grad_experts *x)
{
	int all = (int)claims_of(runs_of(job, x)), done;

	do
		asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
			     : "=r"(done)
			     : "l"(job->counts + CLAIMS_DONE)
			     : "memory");
	while (done < all);
	asm volatile("fence.proxy.async;" ::: "memory");
}

#endif
