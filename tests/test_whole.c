/* Persistent data that share a handle: where they lie, which do, what a task names, and what its
 * order becomes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../planner/critical_path.h"
#include "../planner/plan_graph.h"
#include "plan_case.h"
#include "scratch.h"

#define TEST(name) Test(whole, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

static struct k3_plan_options
options(enum k3_dtype dtype, enum k3_dtype optimizer, bool gpu)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.dtype = dtype;
	o.optimizer_dtype = optimizer;
	o.for_gpus = gpu;
	o.block_bytes = 4096;
	return o;
}

static int
by_place(const void *a, const void *b)
{
	const struct k3_datum *x = *(const struct k3_datum *const *)a,
			      *y = *(const struct k3_datum *const *)b;

	if (x->at != y->at)
		return x->at > y->at ? 1 : -1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* shards may be empty */
}

/* Parts of one handle, by their places; their number. */
static size_t
parts_of(const struct k3_model *m, uint32_t leader, const struct k3_datum **part)
{
	size_t n = 0;

	for (uint32_t i = 0; i < m->n_persist; i++)
		if (k3_datum_leader(m->persist, i) == leader)
			part[n++] = &m->persist[i];
	qsort(part, n, sizeof(*part), by_place);
	return n;
}

/* Of every handle: parts are aligned, apart and inside; all handles are the model's bytes. */
static void
expect_places(const struct k3_model *m)
{
	const struct k3_datum **part = malloc(m->n_persist * sizeof(*part));
	uint64_t bytes = 0;
	size_t shared = 0;

	for (uint32_t i = 0; i < m->n_persist; i++) {
		const struct k3_datum *d = &m->persist[i];
		if (d->whole) {
			cr_expect_eq(m->persist[d->whole - 1].whole, 0, "datum %u", i);
			cr_expect_eq(k3_datum_place_bytes(d), 0);
			continue;
		}
		size_t n = parts_of(m, i, part);
		bytes += k3_datum_place_bytes(d);
		shared += n > 1;
		cr_expect_eq(d->at, 0);
		/* a shard may have no rows of any of them */
		cr_expect(n > 1 ? d->whole_bytes || !part[n - 1]->at : !d->whole_bytes, "datum %u",
			  i);
		for (size_t k = 0; k < n; k++) {
			size_t end = k + 1 < n ? part[k + 1]->at : k3_datum_place_bytes(d);
			cr_expect_eq(part[k]->at % 256, 0, "part %zu of datum %u", k, i);
			cr_expect(part[k]->at + part[k]->bytes <= end &&
					  (n == 1 || end < part[k]->at + part[k]->bytes + 256),
				  "part %zu of datum %u", k, i);
		}
	}
	cr_expect_eq(bytes, m->persist_bytes);
	cr_expect_gt(shared, 5);
	free(part);
}

TEST(parts_lie_apart_and_handles_are_all_the_memory)
{
	static const struct {
		enum k3_dtype dtype, optimizer;
	} types[] = {{K3_F32, K3_F32}, {K3_BF16, K3_F32}, {K3_BF16, K3_BF16}};

	for (size_t i = 0; i < 3; i++)
		for (int gpu = 0; gpu < 2; gpu++)
			for (uint32_t rank = 0; rank < 3; rank++) {
				struct k3_plan_options o =
					options(types[i].dtype, types[i].optimizer, gpu);
				struct k3_model *m =
					case_model(rank ? "dp_shard=2" : "cp=1", rank / 2, &o);
				expect_places(m);
				k3_model_destroy(m);
			}
}

static bool
is_moment(const struct k3_datum *d)
{
	return d->kind == K3_DATA_EXP_AVG || d->kind == K3_DATA_EXP_AVG_SQ;
}

/* Tasks that write different parts wait for each other, and an evaluation has no moments. */
TEST(gradients_are_alone_and_moments_share_with_moments)
{
	struct k3_plan_options o = options(K3_BF16, K3_F32, true);
	struct k3_model *m = case_model("cp=1", 0, &o);
	size_t moments = 0, masters = 0, vectors = 0;

	for (uint32_t i = 0; i < m->n_persist; i++) {
		const struct k3_datum *d = &m->persist[i];
		const struct k3_datum *first = &m->persist[k3_datum_leader(m->persist, i)];
		if (first == d)
			continue;
		cr_assert(is_moment(d) || d->kind == K3_DATA_PARAM, "%s", d->what);
		cr_expect_eq(is_moment(d), is_moment(first));
		moments += is_moment(d);
		if (is_moment(d))
			continue;
		bool matrix = k3_param_is_matrix(&m->params.param[d->param]);
		cr_expect_eq(matrix, k3_param_is_matrix(&m->params.param[first->param]));
		cr_expect(matrix || d->layer == first->layer, "vectors of %d and %d", d->layer,
			  first->layer);
		masters += matrix;
		vectors += !matrix;
	}
	cr_expect_gt(moments, m->n_blocks);
	cr_expect_gt(masters, 20);
	cr_expect_gt(vectors, 20);
	k3_model_destroy(m);
}

/* Without copies tasks read matrices themselves: one that waits for a block would wait for all. */
TEST(matrices_that_tasks_read_have_handles_of_their_own)
{
	for (int half = 0; half < 2; half++) {
		struct k3_plan_options o =
			options(half ? K3_BF16 : K3_F32, half ? K3_BF16 : K3_F32, true);
		struct k3_model *m = case_model("cp=1", 0, &o);
		for (uint32_t i = 0; i < m->n_blocks; i++)
			if (k3_param_is_matrix(&m->params.param[m->persist[i].param]))
				cr_expect(!m->persist[i].whole && !m->persist[i].whole_bytes,
					  "block %u", i);
		k3_model_destroy(m);
	}
}

/* The same handle has one place among a task's, others have others, and none is left out. */
static size_t
expect_buffers(const struct k3_plan *plan)
{
	size_t shared = 0;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		const struct k3_access *a = &plan->access[t->first_access];
		uint32_t next = 0;
		for (uint32_t k = 0; k < t->n_access; k++) {
			uint32_t leader = k3_datum_leader(plan->data, a[k].datum);
			cr_expect_leq(a[k].buffer, next, "%s", t->name);
			next += a[k].buffer == next;
			for (uint32_t j = 0; j < k; j++)
				if (plan->data[leader].whole_bytes)
					cr_expect_eq(k3_datum_leader(plan->data, a[j].datum) ==
							     leader,
						     a[j].buffer == a[k].buffer, "%s: %u and %u",
						     t->name, j, k);
		}
		cr_expect_eq(next, t->n_buffers, "%s", t->name);
		shared += t->n_access - t->n_buffers;
	}
	return shared;
}

TEST(a_task_names_a_handle_once)
{
	struct k3_plan_options o = options(K3_BF16, K3_F32, true);
	struct k3_model *m = case_model("cp=1", 0, &o);
	struct k3_plan *plan = case_plan(m, "100 92", true);

	cr_expect_gt(expect_buffers(plan), 20);
	k3_plan_destroy(plan);
	cr_assert_eq(k3_plan_init(&plan, m, 1, false), K3_OK);
	expect_buffers(plan);
	k3_plan_destroy(plan);
	cr_assert_eq(k3_plan_optimizer(&plan, m, 0), K3_OK);
	cr_expect_gt(expect_buffers(plan), 2 * m->n_blocks);
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_adamw_args *a = plan->task[i].args;
		if (plan->task[i].op != K3_OP_ADAMW_STEP)
			continue;
		/* gradients, copies; verdict, scalars, moments, masters, vectors of one or
		 * two layers, turn */
		cr_expect_leq(plan->task[i].n_buffers, a->grads.n + a->copies.n + 7, "%s",
			      plan->task[i].name);
	}
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}

TEST(writers_of_two_parts_are_ordered)
{
	struct k3_plan_options o = options(K3_BF16, K3_F32, true);
	struct k3_model *m = case_model("cp=1", 0, &o);
	uint32_t last = K3_NO_TASK, leader = k3_datum_leader(m->persist, 2 * m->n_blocks);
	struct k3i_graph graph;
	struct k3_plan *plan;
	size_t writers = 0;

	cr_assert_gt(m->persist[leader].whole_bytes, 0);
	cr_assert_eq(k3_plan_init(&plan, m, 1, false), K3_OK);
	cr_assert_eq(k3i_graph_init(&graph, plan), K3_OK);
	for (uint32_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		bool writes = false, waits = false;
		k3i_graph_next(&graph, i);
		for (uint32_t k = 0; k < t->n_access; k++)
			writes = writes ||
				 k3_datum_leader(plan->data,
						 plan->access[t->first_access + k].datum) == leader;
		for (size_t k = 0; k < graph.n_pred; k++)
			waits = waits || graph.pred[k].from == last;
		if (!writes)
			continue;
		cr_expect(writers++ == 0 || waits, "%s", t->name);
		last = i;
	}
	cr_expect_gt(writers, 1);
	k3i_graph_fini(&graph);
	k3_plan_destroy(plan);
	k3_model_destroy(m);
}
