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

static const uint32_t NO_RUN = 0xffffffffu;

/* Runs are counted from the group's first row on. */
struct claim {
	uint32_t run, end; /* next run of the warp, end of the expert's */
	int step, place;   /* runs that a lane has had; of the expert in `order` */
	int next;	   /* claim after this one */
};

static __device__ __forceinline__ const k3_bf16 *
run_of_gu(const struct grad_job *job, const struct grad_experts *x, uint32_t run, uint32_t *row)
{
	uint32_t each = (uint32_t)(job->task.f / RUN), of = run / each;

	*row = (uint32_t)x->offs[0] + of;
	return (const k3_bf16 *)job->task.gu + (size_t)*row * 2 * (size_t)job->task.f +
	       (run - of * each) * RUN;
}

/* First run of a claim and the end of its expert's. */
static __device__ __forceinline__ uint32_t
claim_at(uint32_t *end, int *place, const struct grad_job *job, const struct grad_experts *x,
	 int number)
{
	uint32_t each = (uint32_t)(job->task.f / RUN);
	int e;

	*place = place_of(x->claims, job->task.experts, number);
	e = x->order[*place];
	*end = (uint32_t)(x->offs[e + 1] - x->offs[0]) * each;
	return (uint32_t)(x->offs[e] - x->offs[0]) * each +
	       (uint32_t)(number - x->claims[*place]) * 32 * CLAIM_RUNS;
}

/* Asks for the lines of a claim: 128 bytes are 8 runs. */
static __device__ __forceinline__ void
expect_claim(const struct grad_job *job, const struct grad_experts *x, int number)
{
	uint32_t end, row, run;
	int place;

	if (number >= x->claims[job->task.experts])
		return;
	run = claim_at(&end, &place, job, x, number) + (threadIdx.x & 31) * 8;
	for (int i = 0; i < CLAIM_RUNS / 8; i++, run += 256) {
		if (run >= end)
			return;
		const k3_bf16 *g = run_of_gu(job, x, run, &row);
		asm volatile("prefetch.global.L2 [%0];" ::"l"(g));
		asm volatile("prefetch.global.L2 [%0];" ::"l"(g + job->task.f));
	}
}

/* This lane's next run, if there is one: false when all claims are taken. */
static __device__ __forceinline__ bool
next_run(uint32_t *run, struct claim *c, const struct grad_job *job, const struct grad_experts *x)
{
	int lane = threadIdx.x & 31;

	*run = NO_RUN;
	if (c->step == CLAIM_RUNS) {
		if (c->next >= x->claims[job->task.experts])
			return false;
		c->run = claim_at(&c->end, &c->place, job, x, c->next) + lane;
		c->step = 0;
		if (lane == 0)
			c->next = atomicAdd(&job->counts[NEXT_CLAIM], 1);
	}
	if (c->step++ == CLAIM_RUNS / 2) {
		c->next = __shfl_sync(0xffffffffu, c->next, 0);
		expect_claim(job, x, c->next);
	}
	if (c->run < c->end)
		*run = c->run;
	c->run += 32;
	return true;
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

/* By a warp: its claim of an expert's rows is stored.  The copy engine of another multiprocessor reads
 * it. */
static __device__ __forceinline__ void
claim_done(const struct grad_job *job, int place)
{
	asm volatile("fence.proxy.async;" ::: "memory");
	__threadfence();
	__syncwarp();
	if ((threadIdx.x & 31) == 0)
		atomicAdd(&job->counts[CLAIMS_DONE + place], 1);
}

/* By a warp: until no claim is left.  run[2] is asked for, run[1] gets its weight, run[0] is there. */
static __device__ __forceinline__ void
weigh_rows(const struct grad_job *job, const struct grad_experts *x, uint32_t buffers)
{
	const struct expert_task *task = &job->task;
	const uint32_t lane = threadIdx.x & 31, bytes = 32 * RUN_BYTES;
	uint32_t run[3] = {NO_RUN, NO_RUN, NO_RUN}, src[2] = {}, row = 0;
	uint32_t buffer = buffers + ((threadIdx.x >> 5) - 1) * RUN_BUFFERS * bytes + lane * 16;
	uint4 *h = (uint4 *)((k3_bf16 *)task->y[1] + (size_t)x->offs[0] * (size_t)task->f);
	struct claim c = {0, 0, CLAIM_RUNS, 0, 0};
	float weight[2] = {};
	int last[3] = {-1, -1, -1}; /* the place, of a claim's last run */

	if (lane == 0)
		c.next = atomicAdd(&job->counts[NEXT_CLAIM], 1);
	c.next = __shfl_sync(0xffffffffu, c.next, 0);
	for (uint32_t at = 0, tail = 0; tail < 2; at = at == RUN_BUFFERS - 1 ? 0 : at + 1) {
		tail += !next_run(&run[2], &c, job, x);
		last[2] = tail == 0 && c.step == CLAIM_RUNS ? c.place : -1;
		if (run[2] != NO_RUN) {
			const k3_bf16 *g = run_of_gu(job, x, run[2], &row);
			copy_16(buffer + at * bytes, g);
			copy_16(buffer + at * bytes + 32 * 16, g + task->f);
			src[1] = (uint32_t)__ldg(task->src + row);
		}
		asm volatile("cp.async.commit_group;" ::: "memory");
		if (run[1] != NO_RUN)
			weight[1] = __ldg(task->w + src[0]);
		asm volatile("cp.async.wait_group 2;" ::: "memory");
		if (run[0] != NO_RUN)
			weigh_run(job, h + run[0],
				  buffer + (at == RUN_BUFFERS - 1 ? 0 : at + 1) * bytes, weight[0]);
		if (last[0] >= 0)
			claim_done(job, last[0]);
		run[0] = run[1], run[1] = run[2];
		last[0] = last[1], last[1] = last[2];
		src[0] = src[1], weight[0] = weight[1];
	}
}

/* By a thread, before it asks for an expert's h. */
static __device__ __forceinline__ void
await_hidden(const struct grad_job *job, const struct grad_experts *x, int place)
{
	int all = x->claims[place + 1] - x->claims[place], done;

	do
		asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
			     : "=r"(done)
			     : "l"(job->counts + CLAIMS_DONE + place)
			     : "memory");
	while (done < all);
	asm volatile("fence.proxy.async;" ::: "memory");
}

#endif
