/* The one loop that submits.  Access modes, names, priorities and arguments come from the plan;
 * StarPU derives the edges from the accesses in this order.  The trap: a priority outside the
 * scheduler's range, or arithmetic on that range, which is INT_MIN..INT_MAX for some schedulers. */
#include "submit.h"

#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "codelets.h"
#include "convert.h"
#include "lane.h"
#include "trace_starpu.h"

/* 0 .. K3_MAX_PRIORITY into what the scheduler knows; schedulers without priorities have the range
 * 0..0. */
static int
priority_for(int32_t priority, int least, int most)
{
	if (most <= 0)
		return most;
	if (most >= K3_MAX_PRIORITY)
		return priority;
	if (least < 0)
		least = 0;
	return least + (int)((int64_t)priority * (most - least) / K3_MAX_PRIORITY);
}

static enum starpu_data_access_mode
mode_of(enum k3_mode mode)
{
	return mode == K3_R ? STARPU_R : mode == K3_W ? STARPU_W : STARPU_RW;
}

/* The task's handles, and the lane's when it communicates; arrays of its own when it has more than
 * StarPU's compiled limit.  Data of one handle are used together. */
static int
set_data(struct starpu_task *task, struct k3_store *store, const struct k3_plan *plan,
	 const struct k3_task *t)
{
	const struct k3_access *a = &plan->access[t->first_access];
	uint32_t n = t->n_buffers + (t->comm >= 0), seen = 0;

	task->nbuffers = (int)n;
	if (n > STARPU_NMAXBUFS) {
		task->dyn_handles = malloc(n * sizeof(*task->dyn_handles));
		task->dyn_modes = malloc(n * sizeof(*task->dyn_modes));
		if (!task->dyn_handles || !task->dyn_modes)
			return K3_ENOMEM;
	}
	for (uint32_t i = 0; i < t->n_access; i++) {
		enum k3_mode mode = (enum k3_mode)a[i].mode;
		if (a[i].buffer < seen) {
			STARPU_TASK_SET_MODE(
				task, mode_of(mode) | STARPU_TASK_GET_MODE(task, a[i].buffer),
				a[i].buffer);
			continue;
		}
		STARPU_TASK_SET_HANDLE(task, k3_store_handle(store, plan, a[i].datum), seen);
		STARPU_TASK_SET_MODE(task, mode_of(k3_store_mode(store, a[i].datum, mode)), seen);
		seen++;
	}
	if (t->comm >= 0)
		k3i_lane_bind(task, n - 1);
	return K3_OK;
}

/* Arguments that StarPU frees with the task; NULL: no memory. */
static void *
own_args(struct starpu_task *task, size_t bytes)
{
	task->cl_arg = malloc(bytes);
	task->cl_arg_size = bytes;
	task->cl_arg_free = 1;
	return task->cl_arg;
}

/* Arguments: the plan's own, or values that come with this submission. */
static int
set_args(struct starpu_task *task, const struct k3_task *t, const struct k3_host_batch *batch,
	 const double *hyper)
{
	if (t->op == K3_OP_BATCH_LOAD) {
		struct k3_batch_load_call *call = own_args(task, sizeof(*call));
		if (!call)
			return K3_ENOMEM;
		K3_ASSERT(batch != NULL);
		*call = (struct k3_batch_load_call){t->args, *batch};
	} else if (t->op == K3_OP_VIT_LOAD) {
		struct k3_vit_load_call *call = own_args(task, sizeof(*call));
		if (!call)
			return K3_ENOMEM;
		K3_ASSERT(batch != NULL);
		*call = (struct k3_vit_load_call){t->args, *batch};
	} else if (t->op == K3_OP_STEP_LOAD) {
		struct k3_step_load_call *call = own_args(task, sizeof(*call));
		if (!call)
			return K3_ENOMEM;
		K3_ASSERT(hyper != NULL);
		memcpy(call->hyper, hyper, sizeof(call->hyper));
	} else {
		task->cl_arg = (void *)(uintptr_t)t->args;
		task->cl_arg_size = sizeof(struct k3_args_head);
	}
	return K3_OK;
}

static int
submit_one(struct k3_store *store, const struct k3_plan *plan, const struct k3_task *t,
	   const struct k3_host_batch *batch, const double *hyper, int least, int most)
{
	struct k3_trace *trace = k3_runtime_trace(k3_store_runtime(store));
	struct k3_trace_record *record = NULL;
	struct starpu_codelet *cl = k3_codelet(t->op);
	int ret;

	struct starpu_task *task = starpu_task_create();
	if (!task)
		return K3_ENOMEM;
	task->cl = cl;
	task->name = t->name;
	task->priority = priority_for(t->priority, least, most);
	task->flops = t->flops;
	task->color = cl->color;
	/* no prologue runs; this is where cost functions and the trace find the plan's task */
	task->prologue_callback_arg = (void *)(uintptr_t)t;
	K3_TRY(set_args(task, t, batch, hyper));
	K3_TRY(set_data(task, store, plan, t));
	if (trace)
		record = k3_trace_submit(trace, t);
	k3i_trace_starpu_attach(task, record);
	ret = starpu_task_submit(task);
	if (ret != 0) {
		k3_trace_cancel(trace, record);
		k3_error("tasks", "%s: no worker can run it", t->name);
		K3_TRY(K3_ENODEV);
	}
	return K3_OK;
out:
	task->destroy = 0;
	starpu_task_destroy(task);
	return ret;
}

/* Before the first task: half a plan in flight could neither go on nor be taken back. */
static int
check_codelets(const struct k3_plan *plan)
{
	for (size_t i = 0; i < plan->n_tasks; i++)
		if (!k3_codelet(plan->task[i].op)) {
			k3_error("tasks", "%s: this run has one rank and no transport (--comm)",
				 plan->task[i].name);
			return K3_ENODEV;
		}
	return K3_OK;
}

int
k3_submit_plan(struct k3_store *store, const struct k3_plan *plan,
	       const struct k3_host_batch *batch, const double *hyper)
{
	struct k3_runtime *runtime = k3_store_runtime(store);
	int least = starpu_sched_get_min_priority(), most = starpu_sched_get_max_priority();
	int32_t step = k3_runtime_step_now(runtime);
	int layer = INT16_MIN, ret;

	/* StarPU keeps two levels of iterations for its own traces: step and layer + 1 */
	starpu_iteration_push((unsigned long)(step < 0 ? 0 : step));
	K3_TRY(check_codelets(plan));
	K3_TRY(k3i_device_reserve(plan));
	K3_TRY(k3i_convert_reserve(plan));
	K3_TRY(k3_store_prepare(store, plan));
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->layer != layer) {
			if (layer != INT16_MIN)
				starpu_iteration_pop();
			layer = t->layer;
			starpu_iteration_push((unsigned long)(layer + 1));
		}
		k3_runtime_throttle(runtime);
		K3_TRY(submit_one(store, plan, t, batch, hyper, least, most));
	}
out:
	if (layer != INT16_MIN)
		starpu_iteration_pop();
	starpu_iteration_pop();
	return ret;
}
