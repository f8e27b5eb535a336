/* One plan alone: values, lifetimes, slots, gradients.
 *
 * A plan does not say what ran before it, so that is read off its tasks: the initial values' plan
 * finds nothing written; a microbatch with step_load is the first of its step, whose gradients and
 * sums hold what the last step left; scalars that a plan makes anew (norm, result, fingerprint)
 * never count as written. */
#include "plan_check.h"

#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "build.h"
#include "mesh_comm.h"

/* What is known of a datum at some point of the walk. */
struct value {
	bool written;		   /* holds a value */
	bool unread;		   /* the last write was not read yet */
	bool touched;		   /* some task of this plan writes it */
	bool used;		   /* some task of this plan reads it */
	uint32_t writer;	   /* last task that wrote it */
	uint32_t seen, seen_write; /* last task + 1 that names it, that writes it */
};

struct walk {
	const struct k3_plan *plan;
	struct value *value; /* [n_data] */
	bool setup, microbatch, first, sharded;
};

static int
fault(const struct walk *w, uint32_t datum, uint32_t task, const char *what)
{
	const struct k3_task *t = &w->plan->task[task];
	char label[96];

	k3_error("planner", "plan: %s: %s, in task %u (%s)",
		 k3_datum_label(&w->plan->data[datum], label, sizeof(label)), what, task,
		 t->name ? t->name : k3_op_name((enum k3_op)t->op));
	return K3_EPLAN;
}

static bool
is_block(const struct k3_datum *d)
{
	return d->kind == K3_DATA_PARAM || d->kind == K3_DATA_COPY || d->kind == K3_DATA_GRAD;
}

/* Does a persistent datum hold a value before the plan begins? */
static bool
initialised(const struct walk *w, uint32_t i)
{
	const struct k3_model *m = w->plan->model;
	const struct k3_datum *d = &w->plan->data[i];

	if (w->setup)
		return false;
	if (d->kind != K3_DATA_BUFFER)
		return !(w->first && d->kind == K3_DATA_GRAD);
	if (i >= m->norm_partial || i == m->step_out[0] || i == m->step_out[1])
		return false;
	if (!w->first || i == m->hyper)
		return !w->first;
	if (i == m->loss_acc)
		return false;
	for (uint32_t l = 0; l < m->config.layers; l++)
		if (m->balance && m->balance[l] == (int32_t)i)
			return false;
	return true;
}

static int
check_access(struct walk *w, uint32_t task, const struct k3_access *a)
{
	const struct k3_plan *p = w->plan;
	const struct k3_datum *d;
	struct value *v;

	if (a->datum >= p->n_data) {
		k3_error("planner", "plan: datum %u of %zu, in task %u (%s)", a->datum, p->n_data,
			 task, p->task[task].name);
		return K3_EPLAN;
	}
	d = &p->data[a->datum];
	v = &w->value[a->datum];
	if (a->mode != K3_R && a->mode != K3_W && a->mode != K3_RW)
		return fault(w, a->datum, task, "has no access mode");
	if (v->seen == task + 1 && ((a->mode & K3_W) || v->seen_write == task + 1))
		return fault(w, a->datum, task, "is written and named twice");
	if ((a->mode & K3_R) && !v->written)
		return fault(w, a->datum, task, "is read before it is written");
	if (a->datum >= p->model->n_persist) {
		uint32_t pos = p->task[task].pos;
		if (d->slot < 0 || (size_t)d->slot >= p->n_slots)
			return fault(w, a->datum, task, "has no slot");
		if (pos < d->first_pos || pos > d->last_pos)
			return fault(w, a->datum, task, "is used outside its lifetime");
		if (a->mode == K3_W && v->unread && d->kind != K3_DATA_WORK)
			return fault(w, a->datum, task, "is overwritten before anything read it");
	} else if (w->microbatch && w->sharded && is_block(d) && p->task[task].comm < 0) {
		return fault(w, a->datum, task,
			     "is a shard, but its rows are used as if they were all");
	}
	if (a->mode == K3_W && v->touched && d->kind == K3_DATA_GRAD)
		return fault(w, a->datum, task, "is overwritten: a later contribution must add");
	return K3_OK;
}

/* What every rank receives, needed or not: collectives do not depend on documents and images,
 * nor do the masks of other ranks' rows.  The tower is gathered whole for its backward pass. */
static bool
may_be_unread(const struct walk *w, const struct k3_task *t, const struct k3_datum *d)
{
	const struct k3_batch_load_args *load = t->args;
	const struct k3_vit_load_args *vit = t->args;

	if (t->op == K3_OP_GATHER_PARAMS)
		return t->pass == K3_PASS_BACKWARD &&
		       w->plan->model->params.param[d->param].unit == K3_UNIT_VISION;
	if (t->op == K3_OP_BATCH_LOAD)
		return load && load->layout_only;
	if (t->op == K3_OP_VIT_LOAD)
		return vit && vit->layout_only;
	return t->op == K3_OP_KDA_STATE_GATHER || t->op == K3_OP_GATHER_KV ||
	       t->op == K3_OP_GATHER_FEATURES;
}

static int
walk_tasks(struct walk *w)
{
	const struct k3_plan *p = w->plan;

	for (uint32_t i = 0; i < p->n_tasks; i++) {
		const struct k3_task *t = &p->task[i];
		if (i > 0 && t->pos <= p->task[i - 1].pos) {
			k3_error("planner",
				 "plan: task %u (%s): position %u does not come after %u", i,
				 t->name, t->pos, p->task[i - 1].pos);
			return K3_EPLAN;
		}
		for (uint32_t k = 0; k < t->n_access; k++) {
			const struct k3_access *a = &p->access[t->first_access + k];
			int ret = check_access(w, i, a);
			if (ret != K3_OK)
				return ret;
			struct value *v = &w->value[a->datum];
			v->seen = i + 1;
			if (a->mode & K3_R) {
				v->unread = false;
				v->used = true;
			}
			if (!(a->mode & K3_W))
				continue;
			v->written = v->touched = true;
			/* what is left in the buffer of a sum made in place is no result */
			v->unread = !(t->comm >= 0 && a->mode == K3_RW) &&
				    !may_be_unread(w, t, &p->data[a->datum]);
			v->writer = i;
			v->seen_write = i + 1;
		}
	}
	return K3_OK;
}

static int
check_dead_writes(const struct walk *w)
{
	const struct k3_plan *p = w->plan;

	for (size_t i = p->model->n_persist; i < p->n_data; i++) {
		const struct k3_datum *d = &p->data[i];
		if (w->value[i].unread && !d->keep && d->kind != K3_DATA_WORK)
			return fault(w, (uint32_t)i, w->value[i].writer,
				     "is written and nothing reads it");
	}
	return K3_OK;
}

struct tenant {
	int32_t slot;
	uint32_t first_pos, datum;
};

static int
compare(const void *a, const void *b)
{
	const struct tenant *x = a, *y = b;

	if (x->slot != y->slot)
		return x->slot < y->slot ? -1 : 1;
	return x->first_pos < y->first_pos ? -1 : x->first_pos > y->first_pos;
}

static int
check_slots(const struct walk *w)
{
	const struct k3_plan *p = w->plan;
	struct tenant *t = malloc((p->n_data + 1) * sizeof(*t));
	size_t n = 0;
	int ret = K3_OK;

	if (!t)
		return K3_ENOMEM;
	for (size_t i = p->model->n_persist; i < p->n_data; i++)
		if (p->data[i].slot >= 0)
			t[n++] =
				(struct tenant){p->data[i].slot, p->data[i].first_pos, (uint32_t)i};
	qsort(t, n, sizeof(*t), compare);
	for (size_t i = 0; i < n && ret == K3_OK; i++) {
		const struct k3_datum *d = &p->data[t[i].datum];
		char one[96], two[96];
		if ((size_t)d->slot >= p->n_slots || d->bytes > p->slot[d->slot].bytes) {
			k3_error("planner", "plan: %s: %zu bytes do not fit into slot %d",
				 k3_datum_label(d, one, sizeof(one)), d->bytes, d->slot);
			ret = K3_EPLAN;
		} else if (i + 1 < n && t[i + 1].slot == d->slot &&
			   t[i + 1].first_pos <= d->last_pos) {
			k3_error("planner", "plan: %s and %s share slot %d at position %u",
				 k3_datum_label(d, one, sizeof(one)),
				 k3_datum_label(&p->data[t[i + 1].datum], two, sizeof(two)),
				 d->slot, t[i + 1].first_pos);
			ret = K3_EPLAN;
		}
	}
	free(t);
	return ret;
}

/* Does a task read a row block, or its copy? */
static bool
is_read(const struct walk *w, uint32_t block)
{
	return w->value[k3i_source(w->plan->model, block)].used;
}

/* Every parameter of the walk is read; when there is a backward pass, every row block has a
 * gradient. */
static int
check_params(const struct walk *w)
{
	const struct k3_model *m = w->plan->model;
	const struct value *grad = w->value + m->n_blocks;
	bool backward = false, vision = false, text = false;

	for (uint32_t i = 0; i < m->n_blocks; i++) {
		const struct k3_param *p = &m->params.param[m->persist[i].param];
		backward = backward || grad[i].touched;
		vision = vision || (p->unit == K3_UNIT_VISION && is_read(w, i));
		text = text || (p->unit == K3_UNIT_HEAD && is_read(w, i));
	}
	for (uint32_t i = 0; i < m->n_blocks; i++) {
		const struct k3_param *p = &m->params.param[m->persist[i].param];
		if (p->unit == K3_UNIT_VISION && !vision)
			continue;
		/* a plan of the tower alone */
		if (p->unit != K3_UNIT_VISION && p->unit != K3_UNIT_EMBED && vision && !text)
			continue;
		if (!is_read(w, i) || (backward && !grad[i].touched)) {
			k3_error("planner", "plan: %s, block %d: %s", p->name, m->persist[i].index,
				 is_read(w, i) ? "no task gives it a gradient"
					       : "no task reads it");
			return K3_EPLAN;
		}
	}
	return K3_OK;
}

int
k3_plan_check(const struct k3_plan *plan)
{
	struct walk w = {.plan = plan};
	int ret = K3_OK;

	w.sharded = k3_mesh_comm(&plan->model->options.mesh, K3_GROUP_SHARD) >= 0;
	for (size_t i = 0; i < plan->n_tasks; i++) {
		w.setup = w.setup || plan->task[i].pass == K3_PASS_SETUP;
		w.microbatch = w.microbatch || plan->task[i].op == K3_OP_BATCH_LOAD;
		w.first = w.first || plan->task[i].op == K3_OP_STEP_LOAD;
	}
	w.value = calloc(plan->n_data + 1, sizeof(*w.value));
	if (!w.value)
		return K3_ENOMEM;
	for (uint32_t i = 0; i < plan->model->n_persist; i++)
		w.value[i].written = initialised(&w, i);
	K3_TRY(walk_tasks(&w));
	K3_TRY(check_dead_writes(&w));
	K3_TRY(check_slots(&w));
	if (w.microbatch)
		K3_TRY(check_params(&w));
out:
	free(w.value);
	return ret;
}
