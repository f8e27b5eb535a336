/* h of the group's rows, each times its weight, by warps that neither load nor multiply, while the
 * others are at dW13: dW2 reads it.
 *
 * Warps claim pieces of an expert's rows one after the other, so whoever waits for an expert waits for
 * warps that run.  The trap: three warps with few registers must keep much of the memory busy.
 * Nothing that they wait for was asked for just before: g and u come through shared memory, two
 * runs ahead, the lines and routing weights of a claim half a claim ahead.
 */
#ifndef K3_MOE_EXPERT_WEIGHTS_HIDDEN_CUH
#define K3_MOE_EXPERT_WEIGHTS_HIDDEN_CUH
#include "expert_weights_tiles.cuh"

static const uint32_t NO_RUN = 0xffffffffu;

/* Of the group: runs of 8 hidden elements of a row, first row, factors. */
struct hidden_rows {
	uint32_t each, row0;
	float over_b1, over_b2;
};

/* Of a warp.  Runs are counted from the group's first row on. */
struct claim {
	uint32_t run, end;   /* next run of the lane, end of the expert's */
	uint32_t row, col;   /* of that run, in runs */
	uint32_t first;	     /* row of the claim */
	int step, place;     /* runs that a lane has had; of the expert in `order` */
	int next;	     /* claim after this one */
	uint32_t next_src;   /* token and slot of its row number `lane` */
	float weight, ready; /* of this claim's row number `lane`, of the next one's */
};

/* First run of a claim and the end of its expert's. */
static __device__ __forceinline__ uint32_t
claim_at(uint32_t *end, int *place, const struct hidden_rows *g, const struct grad_experts *x,
	 int number, int experts)
{
	int e;

	*place = place_of(x->claims, experts, number);
	e = x->order[*place];
	*end = ((uint32_t)x->offs[e + 1] - g->row0) * g->each;
	return ((uint32_t)x->offs[e] - g->row0) * g->each +
	       (uint32_t)(number - x->claims[*place]) * 32 * CLAIM_RUNS;
}

/* Asks for lines of the next claim, of which 128 bytes are 8 runs, and for whose rows they are. */
static __device__ __forceinline__ void
expect_claim(struct claim *c, const struct hidden_rows *g, const struct grad_job *job,
	     const struct grad_experts *x)
{
	uint32_t end, run, lane = threadIdx.x & 31, f = (uint32_t)job->task.f;
	int place;

	if (c->next >= x->claims[job->task.experts])
		return;
	run = claim_at(&end, &place, g, x, c->next, job->task.experts);
	if (run / g->each + lane < (end + g->each - 1) / g->each)
		c->next_src = (uint32_t)__ldg(job->task.src + g->row0 + run / g->each + lane);
	run += lane * 8;
	for (int i = 0; i < CLAIM_RUNS / 8 && run < end; i++, run += 256) {
		uint32_t row = run / g->each;
		const k3_bf16 *at = (const k3_bf16 *)job->task.gu +
				    (size_t)(g->row0 + row) * 2 * f + (run - row * g->each) * RUN;
		asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
		asm volatile("prefetch.global.L2 [%0];" ::"l"(at + f));
	}
}

static __device__ __forceinline__ void
begin_claim(struct claim *c, const struct hidden_rows *g, const struct grad_job *job,
	    const struct grad_experts *x)
{
	uint32_t run = claim_at(&c->end, &c->place, g, x, c->next, job->task.experts);

	c->first = run / g->each;
	c->run = run + (threadIdx.x & 31);
	c->row = c->run / g->each;
	c->col = c->run - c->row * g->each;
	c->step = 0;
	c->weight = c->ready;
	if ((threadIdx.x & 31) == 0)
		c->next = atomicAdd(&job->counts[NEXT_CLAIM], 1);
}

/* This lane's next run if there is one, with its weight and g: false when all claims are taken. */
static __device__ __forceinline__ bool
next_run(uint32_t *run, float *weight, const k3_bf16 **at, struct claim *c,
	 const struct hidden_rows *g, const struct grad_job *job, const struct grad_experts *x)
{
	const bool few_rows = 32 * CLAIM_RUNS / g->each + 2 <= 32;

	*run = NO_RUN;
	if (c->step == CLAIM_RUNS) {
		if (c->next >= x->claims[job->task.experts])
			return false;
		begin_claim(c, g, job, x);
	}
	if (c->step == CLAIM_RUNS / 2) {
		c->next = __shfl_sync(0xffffffffu, c->next, 0);
		expect_claim(c, g, job, x);
	}
	if (c->step == CLAIM_RUNS - CLAIM_RUNS / 8)
		c->ready = __ldg(job->task.w + c->next_src);
	c->step++;
	*weight = __shfl_sync(0xffffffffu, c->weight, (int)(c->row - c->first) & 31);
	if (c->run < c->end) {
		*run = c->run;
		*at = (const k3_bf16 *)job->task.gu +
		      (size_t)(g->row0 + c->row) * 2 * (size_t)job->task.f + c->col * RUN;
		if (!few_rows)
			*weight = __ldg(job->task.w + __ldg(job->task.src + g->row0 + c->row));
	}
	c->run += 32;
	for (c->col += 32; c->col >= g->each; c->col -= g->each)
		c->row++;
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
weighted_pair(uint32_t g, uint32_t u, float weight, const struct hidden_rows *r, float b1, float b2)
{
	struct situ_parts first = fast_situ_of(pair_first(g), pair_first(u), r->over_b1,
					       r->over_b2),
			  second = fast_situ_of(pair_second(g), pair_second(u), r->over_b1,
						r->over_b2);

	return bf16_pair(weight * situ_value(&first, b1, b2), weight * situ_value(&second, b1, b2));
}

static __device__ __forceinline__ void
weigh_run(const struct grad_job *job, const struct hidden_rows *r, uint4 *to, uint32_t from,
	  float weight)
{
	const float b1 = job->task.beta1, b2 = job->task.beta2;
	uint4 g = shared_load_16(from), u = shared_load_16(from + 32 * 16);

	*to = make_uint4(weighted_pair(g.x, u.x, weight, r, b1, b2),
			 weighted_pair(g.y, u.y, weight, r, b1, b2),
			 weighted_pair(g.z, u.z, weight, r, b1, b2),
			 weighted_pair(g.w, u.w, weight, r, b1, b2));
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

/* By a warp: until no claim is left.  run[2] is asked for, run[0] is there. */
static __device__ __forceinline__ void
weigh_rows(const struct grad_job *job, const struct grad_experts *x, uint32_t buffers)
{
	const uint32_t lane = threadIdx.x & 31, bytes = 32 * RUN_BYTES;
	const struct hidden_rows g = {(uint32_t)(job->task.f / RUN), (uint32_t)x->offs[0],
				      1.0f / job->task.beta1, 1.0f / job->task.beta2};
	const uint32_t buffer = buffers + ((threadIdx.x >> 5) - 1) * RUN_BUFFERS * bytes + lane * 16;
	uint4 *h = (uint4 *)((k3_bf16 *)job->task.y[1] + (size_t)g.row0 * (size_t)job->task.f);
	uint32_t run[3] = {NO_RUN, NO_RUN, NO_RUN};
	float weight[3] = {};
	int last[3] = {-1, -1, -1}; /* the place, of a claim's last run */
	struct claim c = {};

	c.step = CLAIM_RUNS;
	if (lane == 0)
		c.next = atomicAdd(&job->counts[NEXT_CLAIM], 1);
	c.next = __shfl_sync(0xffffffffu, c.next, 0);
	expect_claim(&c, &g, job, x);
	c.ready = __ldg(job->task.w + c.next_src);
	for (uint32_t at = 0, tail = 0; tail < 2; at = at == RUN_BUFFERS - 1 ? 0 : at + 1) {
		const k3_bf16 *from = NULL;
		tail += !next_run(&run[2], &weight[2], &from, &c, &g, job, x);
		last[2] = tail == 0 && c.step == CLAIM_RUNS ? c.place : -1;
		if (run[2] != NO_RUN) {
			copy_16(buffer + at * bytes, from);
			copy_16(buffer + at * bytes + 32 * 16, from + job->task.f);
		}
		asm volatile("cp.async.commit_group;" ::: "memory");
		asm volatile("cp.async.wait_group 2;" ::: "memory");
		if (run[0] != NO_RUN)
			weigh_run(job, &g, h + run[0],
				  buffer + (at == RUN_BUFFERS - 1 ? 0 : at + 1) * bytes, weight[0]);
		if (last[0] >= 0)
			claim_done(job, last[0]);
		run[0] = run[1], run[1] = run[2];
		weight[0] = weight[1], weight[1] = weight[2];
		last[0] = last[1], last[1] = last[2];
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
