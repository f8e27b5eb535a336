/* The codelets, made from the list of operations: unpack the buffers, call the kernel, nothing
 * else.
 *
 * One wrapper serves all, since a plan's task carries everything that differs: arguments, modes,
 * name, priority, flops, cost.  The number of buffers varies, so it comes with the task.  The
 * trap: a history model must not see raw row counts, or every document layout is a new,
 * uncalibrated size; its footprint is the operation and the flops in four steps per octave.
 * Operands of bf16 are widened here for the kernels that want floats (convert.h). */
#include "codelets.h"

#include <math.h>

#include "../common/colors.h"
#include "convert.h"

void
k3i_pointers(const struct k3_task *t, void **buf, void *const *buffers)
{
	const struct k3_access *a = &t->plan->access[t->first_access];

	for (uint32_t i = 0; i < t->n_access; i++)
		buf[i] = (char *)STARPU_VECTOR_GET_PTR(buffers[a[i].buffer]) +
			 t->plan->data[a[i].datum].at;
}

/* What a kernel of fp32 works on. */
static void
take_buffers(const struct k3_task *t, void **buf, void *const *buffers)
{
	k3i_pointers(t, buf, buffers);
	if (t->wide_bytes)
		k3i_widen(t, buf);
}

static void
give_back(const struct k3_task *t, void **buf, void *const *buffers)
{
	if (!t->wide_bytes)
		return;
	k3i_pointers(t, buf, buffers);
	k3i_narrow(t, buf);
}

typedef void kernel_func(void *const *buf, const void *args);

#define X(id, name, family, args, kernel)                                                          \
	static void name##_f32(void *const *buf, const void *a)                                    \
	{                                                                                          \
		kernel(buf, a);                                                                    \
	}
K3_COMPUTE_OP_MAP(X)
#undef X
#define X(id, name, args, kernel)                                                                  \
	static void name##_bf16(void *const *buf, const void *a)                                   \
	{                                                                                          \
		kernel(buf, a);                                                                    \
	}
K3_BF16_OP_MAP(X)
#undef X

static kernel_func *const bf16_kernel[K3_N_OPS] = {
#define X(id, name, args, kernel) [K3_OP_##id] = name##_bf16,
	K3_BF16_OP_MAP(X)
#undef X
};

static void
run(enum k3_op op, kernel_func *kernel, void *const *buffers, const struct k3_args_head *args)
{
	const struct k3_task *t = k3i_task_now();
	void *buf[args->n_buf + 1];

	if (bf16_kernel[op] && t->plan->model->options.dtype == K3_BF16)
		kernel = bf16_kernel[op];
	take_buffers(t, buf, buffers);
	kernel(buf, args);
	give_back(t, buf, buffers);
}

#define X(id, name, family, args, kernel)                                                          \
	static void run_##name(void *buffers[], void *cl_arg)                                      \
	{                                                                                          \
		run(K3_OP_##id, name##_f32, buffers, cl_arg);                                      \
	}
K3_COMPUTE_OP_MAP(X)
#undef X

static void
run_batch_load(void *buffers[], void *cl_arg)
{
	const struct k3_batch_load_call *call = cl_arg;
	void *buf[call->args->n_buf + 1];

	k3i_pointers(k3i_task_now(), buf, buffers);
	k3_batch_load_cpu(buf, call->args, &call->batch);
}

static void
run_vit_load(void *buffers[], void *cl_arg)
{
	const struct k3_vit_load_call *call = cl_arg;
	const struct k3_task *t = k3i_task_now();
	void *buf[call->args->n_buf + 1];

	take_buffers(t, buf, buffers);
	k3_vit_load_cpu(buf, call->args, &call->batch);
	give_back(t, buf, buffers);
}

static void
run_step_load(void *buffers[], void *cl_arg)
{
	const struct k3_step_load_call *call = cl_arg;
	void *buf[1];

	k3i_pointers(k3i_task_now(), buf, buffers);
	k3_step_load_cpu(buf, call->hyper);
}

/* Operation and flops, or bytes where nothing is computed; four classes per octave. */
static uint32_t
footprint(struct starpu_task *task)
{
	const struct k3_task *t = task->prologue_callback_arg; /* submit.c */
	double size = task->flops > 1 ? task->flops : t && t->bytes > 1 ? t->bytes : 1;

	return (uint32_t)lround(4 * log2(size)) * 2654435761u + 1;
}

/* The plan's own cost. Every core is alike, and every GPU, so only the kind of worker matters. */
static double
plan_cost_us(struct starpu_task *task, struct starpu_perfmodel_arch *arch, unsigned nimpl)
{
	const struct k3_task *t = task->prologue_callback_arg; /* submit.c */

	(void)nimpl;
	/* NAN: StarPU knows no length */
	return t ? k3_task_cost_us(t, arch->devices[0].type == STARPU_CUDA_WORKER) : NAN;
}

#define MODEL(op_name)                                                                             \
	{                                                                                          \
		.type = STARPU_PER_ARCH, .arch_cost_function = plan_cost_us,                       \
		.footprint = footprint, .symbol = "k3_" #op_name                                   \
	}
static struct starpu_perfmodel models[K3_N_OPS] = {
#define X(id, op_name, family, args, kernel) [K3_OP_##id] = MODEL(op_name),
	K3_COMPUTE_OP_MAP(X)
#undef X
#define X(id, op_name, family) [K3_OP_##id] = MODEL(op_name),
		K3_IO_OP_MAP(X) K3_COMM_OP_MAP(X)
#undef X
};

void
k3_codelets_use_history(bool history)
{
	/* initial values are set once a run: their measurements would never settle */
	for (int op = 0; op < K3_N_OPS; op++)
		models[op].type =
			history && op != K3_OP_PARAM_INIT ? STARPU_HISTORY_BASED : STARPU_PER_ARCH;
}

static struct starpu_codelet codelets[K3_N_OPS] = {
#define X(id, op_name, family, args, kernel)                                                       \
	[K3_OP_##id] = {.name = "k3_" #op_name,                                                    \
			.where = STARPU_CPU,                                                       \
			.cpu_funcs = {run_##op_name},                                              \
			.cpu_funcs_name = {"k3_" #op_name},                                        \
			.nbuffers = STARPU_VARIABLE_NBUFFERS,                                      \
			.model = &models[K3_OP_##id]},
	K3_COMPUTE_OP_MAP(X)
#undef X
#define X(id, op_name, family)                                                                     \
	[K3_OP_##id] = {.name = "k3_" #op_name,                                                    \
			.where = STARPU_CPU,                                                       \
			.cpu_funcs = {run_##op_name},                                              \
			.nbuffers = STARPU_VARIABLE_NBUFFERS,                                      \
			.model = &models[K3_OP_##id]},
		K3_IO_OP_MAP(X)
#undef X
#define X(id, op_name, family)                                                                     \
	[K3_OP_##id] = {.name = "k3_" #op_name,                                                    \
			.nbuffers = STARPU_VARIABLE_NBUFFERS,                                      \
			.model = &models[K3_OP_##id]},
			K3_COMM_OP_MAP(X)
#undef X
};

struct starpu_codelet *
k3_codelet(enum k3_op op)
{
	struct starpu_codelet *cl = &codelets[op];

	if (!cl->cpu_funcs[0] && !cl->cuda_funcs[0])
		return NULL;
	cl->color = k3_family_color[k3_op_family(op)];
	return cl;
}

void
k3i_codelet_set_comm(enum k3_op op, starpu_cuda_func_t run)
{
	codelets[op].cuda_funcs[0] = run;
	codelets[op].cuda_flags[0] = STARPU_CUDA_ASYNC;
	codelets[op].where = STARPU_CUDA;
}
