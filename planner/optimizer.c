/* The end of a step: norm, clip, AdamW, router bias, fingerprint. */
#include "optimizer.h"

#include <stdlib.h>

#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "build.h"

void
k3i_optim_list(struct k3_builder *b, struct k3_list *list, const struct k3_block_group *g,
	       uint32_t kind, enum k3_mode mode)
{
	list->first = b->cur ? b->cur->n_access : 0;
	list->n = g->n;
	for (uint32_t i = 0; i < g->n; i++)
		k3i_use(b, kind * b->model->n_blocks + g->block[i], mode);
}

/* Blocks that are bf16 themselves. */
static const bool *
list_half(struct k3_builder *b, const struct k3_block_group *g)
{
	bool *half = k3i_arena_alloc(b->plan->arena, g->n * sizeof(*half));

	if (!half)
		b->status = K3_ENOMEM;
	for (uint32_t i = 0; half && i < g->n; i++)
		half[i] = b->model->persist[g->block[i]].dtype == K3_BF16;
	return half;
}

const int32_t *
k3i_optim_copies(struct k3_builder *b, struct k3_list *list, const struct k3_block_group *g)
{
	int32_t *place = k3i_arena_alloc(b->plan->arena, g->n * sizeof(*place));

	list->first = b->cur ? b->cur->n_access : 0;
	list->n = 0;
	if (!place) {
		b->status = K3_ENOMEM;
		return NULL;
	}
	for (uint32_t i = 0; i < g->n; i++) {
		int32_t copy = b->model->copy[g->block[i]];
		bool none = copy == K3_NO_DATUM || copy == (int32_t)g->block[i];
		place[i] = none ? -1 : (int32_t)list->n;
		if (none)
			continue;
		k3i_use(b, (uint32_t)copy, K3_W);
		list->n++;
	}
	return place;
}

size_t *
k3i_optim_sizes(struct k3_builder *b, const struct k3_block_group *g, double *total)
{
	size_t *n = k3i_arena_alloc(b->plan->arena, g->n * sizeof(*n));

	*total = 0;
	if (!n) {
		b->status = K3_ENOMEM;
		return NULL;
	}
	for (uint32_t i = 0; i < g->n; i++) {
		const struct k3_datum *d = &b->model->persist[g->block[i]];
		n[i] = d->rows * d->row_elems;
		*total += (double)(d->rows * d->row_elems);
	}
	return n;
}

static void
plan_hash(struct k3_builder *b, const struct k3_block_group *group, uint32_t n, uint32_t kind,
	  uint32_t word)
{
	for (uint32_t i = 0; i < n; i++) {
		struct k3_hash_args *a =
			k3i_task(b, K3_OP_HASH_DATA, -1, -1, (int)(word + i), sizeof(*a));
		double total;
		k3i_use(b, b->model->hash + word + i, K3_W);
		k3i_optim_list(b, &a->data, &group[i], kind, K3_R);
		size_t *n_bytes = k3i_optim_sizes(b, &group[i], &total);
		for (uint32_t k = 0; n_bytes && k < group[i].n; k++)
			n_bytes[k] =
				b->model->persist[kind * b->model->n_blocks + group[i].block[k]]
					.bytes;
		a->n_bytes = n_bytes;
		k3i_task_end(b, total, 0);
	}
}

static void
plan_norm(struct k3_builder *b, const struct k3_block_group *group, uint32_t n, uint32_t parity)
{
	const struct k3_model *m = b->model;

	for (uint32_t i = 0; i < n; i++) {
		struct k3_grad_norm_args *a =
			k3i_task(b, K3_OP_GRAD_NORM, -1, -1, (int)i, sizeof(*a));
		double total;
		k3i_use(b, m->norm_partial + i, K3_W);
		k3i_optim_list(b, &a->grads, &group[i], 1, K3_R);
		a->n_elems = k3i_optim_sizes(b, &group[i], &total);
		k3i_task_end(b, 2 * total, 0);
	}
	k3i_reduce_norm(b);
	struct k3_clip_args *a = k3i_task(b, K3_OP_CLIP_FACTOR, -1, -1, -1, sizeof(*a));
	a->max_norm = m->options.clip_norm;
	a->eps = m->options.clip_eps;
	k3i_use(b, m->step_out[parity], K3_W);
	k3i_use(b, m->loss_acc, K3_R);
	k3i_use(b, m->hyper, K3_R);
	a->partials.first = b->cur ? b->cur->n_access : 0;
	a->partials.n = n;
	for (uint32_t i = 0; i < n; i++)
		k3i_use(b, m->norm_partial + i, K3_R);
	k3i_task_end(b, n, 0);
}

/* Of the layers first .. end - 1 that have a router. */
static void
plan_bias(struct k3_builder *b, uint32_t first, uint32_t end, uint32_t parity)
{
	const struct k3_model *m = b->model;
	const struct k3_plan_options *o = &m->options;
	bool one = end - first == 1;
	struct k3_router_bias_args *a =
		k3i_task(b, K3_OP_ROUTER_BIAS_UPDATE, one ? (int)first : -1, -1, -1, sizeof(*a));

	a->rule = o->balance;
	a->n_experts = b->config->experts;
	a->k = b->config->top_k;
	a->bins = o->balance == K3_BALANCE_QUANTILE ? o->bins : 0;
	a->u = o->balance_u;
	k3i_use(b, m->step_out[parity], K3_R);
	for (int balance = 0; balance < 2; balance++) {
		struct k3_list *list = balance ? &a->balance : &a->bias;
		list->first = b->cur ? b->cur->n_access : 0;
		for (uint32_t l = first; l < end; l++) {
			if (m->balance[l] == K3_NO_DATUM)
				continue;
			k3i_use(b, (uint32_t)(balance ? m->balance[l] : m->bias[l]),
				balance ? K3_R : K3_RW);
			list->n++;
		}
	}
	k3i_task_end(b, a->bias.n * (double)b->config->experts * (double)(1 + a->bins), 0);
}

/* A layer has work for one multiprocessor, or for one core. */
static void
plan_biases(struct k3_builder *b, uint32_t parity)
{
	const struct k3_model *m = b->model;
	uint32_t layers = b->config->layers, n = m->options.for_gpus ? layers : 1;

	for (uint32_t l = 0; l < layers; l += n) {
		bool any = false;
		for (uint32_t k = l; k < l + n; k++)
			any = any || m->balance[k] != K3_NO_DATUM;
		if (any)
			plan_bias(b, l, l + n, parity);
	}
}

static void
plan_update(struct k3_builder *b, const struct k3_block_group *group, uint32_t n, uint32_t parity)
{
	const struct k3_model *m = b->model;
	const struct k3_plan_options *o = &m->options;

	for (uint32_t i = 0; i < n; i++) {
		struct k3_adamw_args *a = k3i_task(b, K3_OP_ADAMW_STEP, -1, -1, (int)i, sizeof(*a));
		double total;
		a->beta1 = o->adam_beta1;
		a->beta2 = o->adam_beta2;
		a->eps = o->adam_eps;
		a->weight_decay = o->weight_decay;
		k3i_use(b, m->step_out[parity], K3_R);
		k3i_use(b, m->hyper, K3_R);
		k3i_optim_list(b, &a->params, &group[i], 0, K3_RW);
		k3i_optim_list(b, &a->exp_avg, &group[i], 2, K3_RW);
		k3i_optim_list(b, &a->exp_avg_sq, &group[i], 3, K3_RW);
		k3i_optim_list(b, &a->grads, &group[i], 1, K3_R);
		a->copy = k3i_optim_copies(b, &a->copies, &group[i]);
		if (m->n_turns)
			k3i_use_sum(b, m->turn + i % m->n_turns);
		a->half = list_half(b, &group[i]);
		a->n_elems = k3i_optim_sizes(b, &group[i], &total);
		k3i_task_end(b, 15 * total, 0);
	}
}

struct k3_block_group *
k3i_optim_all(struct k3_builder *b, bool updates, uint32_t *n)
{
	*n = updates ? b->model->n_updates : b->model->n_norm_partial;
	struct k3_block_group *group = k3i_arena_alloc(b->plan->arena, (*n + 1) * sizeof(*group));
	if (!group) {
		b->status = K3_ENOMEM;
		*n = 0;
		return NULL;
	}
	(updates ? k3i_update_groups : k3i_norm_groups)(b->model, group, *n);
	return group;
}

/* The next step follows, which this plan does not know.  Its forward pass waits for the updates of
 * the layer that it has come to, so these go in that order; it is a chain, and a worker that has
 * another update to do while the next task of the chain is made ready stands still no more.  So
 * updates come after everything that is ready. */
static void
order_updates(struct k3_plan *plan)
{
	const struct k3_model *m = plan->model;
	const int32_t most = K3_MAX_PRIORITY / 4;

	for (size_t i = 0; i < plan->n_tasks; i++) {
		struct k3_task *t = &plan->task[i];
		if (t->op == K3_OP_ADAMW_STEP)
			t->priority =
				most - (int32_t)((int64_t)most * t->group / (m->n_updates + 1));
		else if (t->op == K3_OP_ROUTER_BIAS_UPDATE)
			t->priority = most - (int32_t)((int64_t)most * 2 / (m->n_updates + 1));
	}
}

int
k3_plan_optimizer(struct k3_plan **plan, const struct k3_model *model, uint32_t parity)
{
	struct k3_block_group *group;
	struct k3_builder b;
	uint32_t n;
	int ret;

	*plan = NULL;
	if (k3i_builder_init(&b, model) == K3_OK) {
		b.pass = K3_PASS_OPTIMIZER;
		k3i_reduce_step(&b);
		group = k3i_optim_all(&b, false, &n);
		plan_norm(&b, group, n, parity & 1);
		group = k3i_optim_all(&b, true, &n);
		plan_update(&b, group, n, parity & 1);
		plan_biases(&b, parity & 1);
		if (model->n_hash) {
			struct k3_hash_args *a =
				k3i_task(&b, K3_OP_HASH_DATA, -1, -1, 0, sizeof(*a));
			static const size_t loss_bytes[] = {sizeof(double)};
			k3i_use(&b, model->hash, K3_W);
			k3i_list_one(&b, &a->data, (int32_t)model->loss_acc, K3_R);
			a->n_bytes = loss_bytes;
			k3i_task_end(&b, 1, 0);
			group = k3i_optim_all(&b, false, &n);
			plan_hash(&b, group, n, 1, 1);
			plan_hash(&b, group, n, 0, 1 + n);
		}
	}
	ret = k3i_builder_finish(&b, plan);
	if (ret == K3_OK)
		order_updates(*plan);
	return ret;
}
