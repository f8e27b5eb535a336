/* Plans for GPUs: what a device tells of itself, costs, the cut, and what a task needs at once. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/choose.h"
#include "plan_case.h"
#include "scratch.h"

#define TEST(name) Test(gpu_plan, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

TEST(rates_follow_from_what_the_device_tells)
{
	struct k3_gpu gpu, half;

	/* 132 multiprocessors x 1980 MHz x 4096 and 256 operations a clock; 2 x 3201 MHz x 768 B */
	k3_gpu_describe(&gpu, "H200", 9, 132, 1980, 3201, 6144);
	cr_expect_str_eq(gpu.name, "H200");
	cr_expect_float_eq(gpu.bf16_flops_per_us, 1070530560, 1);
	cr_expect_float_eq(gpu.f32_flops_per_us, 66908160, 1);
	cr_expect_float_eq(gpu.bytes_per_us, 4916736, 1);
	k3_gpu_describe(&half, "x", 9, 66, 1980, 3201, 3072);
	cr_expect_float_eq(half.bf16_flops_per_us * 2, gpu.bf16_flops_per_us, 1);
	cr_expect_float_eq(half.bytes_per_us * 2, gpu.bytes_per_us, 1);
	k3_gpu_describe(&half, "A100", 8, 108, 1410, 1593, 5120);
	cr_expect_float_eq(half.bf16_flops_per_us, 311869440, 1);
	cr_expect_float_eq(half.f32_flops_per_us, 19491840, 1);
}

TEST(every_operation_costs_something_and_no_less_on_half_the_device)
{
	struct k3_gpu gpu, half;

	k3_gpu_init(&gpu);
	k3_gpu_describe(&half, "", 9, 66, 1980, 3201, 3072);
	for (int op = 0; op < K3_N_OPS; op++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			enum k3_dtype type = bf16 ? K3_BF16 : K3_F32;
			double idle = k3_gpu_cost_us(&gpu, (enum k3_op)op, type, 0, 0),
			       work = k3_gpu_cost_us(&gpu, (enum k3_op)op, type, 1e12, 1e10),
			       slow = k3_gpu_cost_us(&half, (enum k3_op)op, type, 1e12, 1e10);
			cr_expect_gt(idle, gpu.task_us, "%s", k3_op_name((enum k3_op)op));
			cr_expect_gt(work, idle, "%s: work is free", k3_op_name((enum k3_op)op));
			cr_expect_float_eq(slow - idle, 2 * (work - idle), 1e-6 * work, "%s",
					   k3_op_name((enum k3_op)op));
		}
	cr_expect_lt(k3_gpu_cost_us(&gpu, K3_OP_DENSE_FFN_FWD, K3_BF16, 1e12, 0),
		     k3_gpu_cost_us(&gpu, K3_OP_DENSE_FFN_FWD, K3_F32, 1e12, 0));
}

/* Costs of the plan are the GPU's where it has a kernel; a scheduler can compare both. */
TEST(tasks_cost_what_they_take_where_they_run)
{
	struct k3_plan_options o;
	size_t on_cpu = 0;

	k3_plan_options_init(&o);
	o.for_gpus = true;
	struct k3_model *m = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(m, "200", true);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		double cpu = k3_task_cost_us(t, false), gpu = k3_task_cost_us(t, true);
		cr_expect_eq(cpu, k3_machine_cost_us(&m->machine, (enum k3_op)t->op, t->flops,
						     t->bytes, t->param_bytes));
		on_cpu += isnan(gpu);
		cr_expect_eq(t->cost_us, isnan(gpu) ? cpu : gpu, "%s", t->name);
	}
	cr_expect_eq(on_cpu, 2, "loading of batch and step, not %zu tasks", on_cpu);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}

TEST(the_head_is_cut_for_the_device_and_evenly)
{
	struct k3_config c;
	struct k3_plan_options o;
	size_t n_ce = 0, rows = 0, least = SIZE_MAX, most = 0;

	cr_assert_eq(k3_config_preset(&c, "debug24"), K3_OK);
	k3_plan_options_init(&o);
	uint32_t cpu = k3_plan_head_rows(&o, &c);
	cr_expect_eq(cpu, ((size_t)64 << 20) / (4 * 163840));
	o.for_gpus = true;
	cr_expect_eq(k3_plan_head_rows(&o, &c), ((size_t)1 << 30) / (4 * 163840));
	o.dtype = K3_BF16;
	cr_expect_eq(k3_plan_head_rows(&o, &c), ((size_t)1 << 30) / (2 * 163840));
	o.head_rows = 100; /* 250 rows in parts of at most 100: three, of whole 64 where they fit */
	struct k3_model *m = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(m, "250", true);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_lm_head_args *a = plan->task[i].args;
		if (plan->task[i].op != K3_OP_LM_HEAD_CE)
			continue;
		cr_expect_eq(a->r0, rows);
		rows += a->rows;
		least = a->rows < least ? a->rows : least;
		most = a->rows > most ? a->rows : most;
		n_ce++;
	}
	cr_expect_eq(rows, 250);
	cr_expect_eq(n_ce, 3);
	cr_expect(most == 84 && least == 82, "%zu to %zu rows", least, most);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}

/* One device takes tasks one after the other, so nothing is gained by cutting. */
TEST(one_gpu_takes_the_fewest_tasks)
{
	struct k3_plan_options o;
	struct k3_choice choice;
	struct k3_config c;

	cr_assert_eq(k3_config_preset(&c, "debug24"), K3_OK);
	c.vision.present = false;
	k3_plan_options_init(&o);
	o.for_gpus = true;
	o.dtype = K3_BF16;
	cr_assert_eq(k3_choose(&choice, &c, &o, 8192), K3_OK, "%s", scratch_log());
	cr_expect_eq(choice.tile_tokens, 0);
	cr_expect_eq(choice.kda_groups, 1);
	cr_expect_eq(choice.mla_groups, 1);
	cr_expect_eq(choice.expert_groups, 1);
	cr_expect_geq(choice.estimate.mean_task_us, 50);
}

/* Blocks of all parameters are taken once, by fewer tasks. */
TEST(the_optimizer_has_fewer_and_longer_tasks)
{
	size_t n_tasks[2], n_params[2] = {0, 0};

	for (int gpu = 0; gpu < 2; gpu++) {
		struct k3_plan_options o;
		struct k3_plan *plan;
		k3_plan_options_init(&o);
		o.for_gpus = gpu;
		o.block_bytes = 4096;
		struct k3_model *m = case_model("cp=1", 0, &o);
		cr_assert_eq(k3_plan_optimizer(&plan, m, 0), K3_OK);
		cr_expect_eq(k3_plan_check(plan), K3_OK);
		n_tasks[gpu] = plan->n_tasks;
		for (size_t i = 0; i < plan->n_tasks; i++) {
			const struct k3_adamw_args *a = plan->task[i].args;
			if (plan->task[i].op == K3_OP_ADAMW_STEP)
				n_params[gpu] += a->params.n;
		}
		cr_expect_eq(n_params[gpu], m->n_blocks);
		k3_plan_destroy(plan);
		k3_model_destroy(m);
	}
	cr_expect_lt(2 * n_tasks[1], n_tasks[0], "%zu and %zu", n_tasks[1], n_tasks[0]);
}

/* Updates as the next step reads, below its forward pass; on a GPU each lets one more begin. */
TEST(updates_go_in_the_order_of_the_next_step)
{
	for (int gpu = 0; gpu < 2; gpu++) {
		struct k3_plan_options o;
		struct k3_plan *plan;
		k3_plan_options_init(&o);
		o.for_gpus = gpu;
		o.block_bytes = 4096;
		struct k3_model *m = case_model("cp=1", 0, &o);
		uint8_t *seen = calloc(m->n_blocks, 1);
		int priority = K3_MAX_PRIORITY, layer = -1;
		uint32_t turns = 0, n = 0;
		cr_assert_eq(k3_plan_optimizer(&plan, m, 0), K3_OK);
		for (size_t i = 0; i < plan->n_tasks; i++) {
			const struct k3_task *t = &plan->task[i];
			const struct k3_adamw_args *a = t->args;
			const struct k3_access *at = &plan->access[t->first_access];
			if (t->op != K3_OP_ADAMW_STEP)
				continue;
			cr_expect(t->priority <= priority && t->priority > 0 &&
					  t->priority <= K3_MAX_PRIORITY / 4,
				  "%s: %d", t->name, t->priority);
			priority = t->priority;
			for (uint32_t k = 0; k < a->params.n; k++) {
				const struct k3_datum *d =
					&plan->data[at[a->params.first + k].datum];
				seen[at[a->params.first + k].datum]++;
				if (d->layer < 0)
					continue;
				cr_expect_geq(d->layer, layer, "%s", t->name);
				layer = d->layer;
			}
			bool turn = strcmp(plan->data[at[t->n_access - 1].datum].what, "turn") == 0;
			cr_expect_eq(turn, gpu, "%s", t->name);
			if (turn)
				cr_expect_eq(at[t->n_access - 1].mode,
					     n < m->n_turns ? K3_W : K3_RW);
			turns += turn;
			n++;
		}
		cr_expect_eq(n, m->n_updates);
		cr_expect_eq(turns, gpu ? n : 0);
		cr_expect_eq(layer, (int)m->config.layers - 1);
		for (uint32_t i = 0; i < m->n_blocks; i++)
			cr_expect_eq(seen[i], 1, "block %u", i);
		free(seen);
		k3_plan_destroy(plan);
		k3_model_destroy(m);
	}
}

/* A core has work with the experts of one layer, a GPU's multiprocessors with those of all. */
TEST(a_gpu_updates_the_biases_of_all_layers_at_once)
{
	for (int gpu = 0; gpu < 2; gpu++) {
		struct k3_plan_options o;
		struct k3_plan *plan;
		size_t n = 0, layers = 0;
		k3_plan_options_init(&o);
		o.for_gpus = gpu;
		struct k3_model *m = case_model("cp=1", 0, &o);
		cr_assert_eq(k3_plan_optimizer(&plan, m, 0), K3_OK);
		for (uint32_t l = 0; l < m->config.layers; l++)
			layers += m->bias[l] != K3_NO_DATUM;
		for (size_t i = 0; i < plan->n_tasks; i++) {
			const struct k3_task *t = &plan->task[i];
			const struct k3_router_bias_args *a = t->args;
			const struct k3_access *at = &plan->access[t->first_access];
			if (t->op != K3_OP_ROUTER_BIAS_UPDATE)
				continue;
			n++;
			cr_expect_eq(a->bias.n, gpu ? layers : 1);
			cr_expect_eq(a->balance.n, a->bias.n);
			for (uint32_t k = 0; k < a->bias.n; k++) {
				const struct k3_access *bias = &at[a->bias.first + k],
						       *balance = &at[a->balance.first + k];
				int layer = plan->data[bias->datum].layer;
				cr_assert(layer >= 0 && layer < (int)m->config.layers);
				cr_expect_eq(m->bias[layer], (int32_t)bias->datum);
				cr_expect_eq(m->balance[layer], (int32_t)balance->datum);
				cr_expect(bias->mode == K3_RW && balance->mode == K3_R);
			}
		}
		cr_expect_eq(n, gpu ? 1 : layers);
		k3_plan_destroy(plan);
		k3_model_destroy(m);
	}
}

TEST(the_least_memory_is_that_of_the_largest_task)
{
	struct k3_model *m = case_model("cp=1", 0, NULL);
	struct k3_plan *plan = case_plan(m, "200", true);
	struct k3_memory memory;
	uint64_t want = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		uint64_t bytes = 0;
		for (uint32_t k = 0; k < plan->task[i].n_access; k++) {
			const struct k3_access *a = &plan->access[plan->task[i].first_access + k];
			const struct k3_datum *d =
				&plan->data[k3_datum_leader(plan->data, a->datum)];
			bool again = false;
			for (uint32_t j = 0; j < k; j++)
				again = again || a[(int)j - (int)k].buffer == a->buffer;
			bytes += again		? 0
				 : d->slot >= 0 ? plan->slot[d->slot].bytes
						: k3_datum_place_bytes(d);
		}
		want = bytes > want ? bytes : want;
	}
	k3_memory_init(&memory, m);
	cr_assert_eq(k3_memory_add(&memory, plan), K3_OK);
	cr_expect_eq(memory.task_bytes, want);
	cr_expect(want > 0 && want < k3_memory_bound(&memory));
	k3_memory_fini(&memory);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}
