/* A plan in the making: data, tasks, accesses, and the bookkeeping that turns the model's formulas
 * into modes and lifetimes. */
#include "build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

int
k3i_builder_init(struct k3_builder *b, const struct k3_model *model)
{
	const struct k3_params *ps = &model->params;

	memset(b, 0, sizeof(*b));
	b->model = model;
	b->config = &model->config;
	b->act = model->options.dtype;
	struct k3_arena *arena = k3i_arena_create();
	if (!arena)
		return K3_ENOMEM;
	b->plan = k3i_arena_alloc(arena, sizeof(*b->plan));
	b->cap_data = model->n_persist + 1024;
	b->cap_tasks = 1024;
	b->cap_access = 8192;
	if (!b->plan) {
		k3i_arena_destroy(arena);
		return K3_ENOMEM;
	}
	struct k3_plan *p = b->plan;
	p->arena = arena;
	p->model = model;
	p->data = malloc(b->cap_data * sizeof(*p->data));
	p->task = malloc(b->cap_tasks * sizeof(*p->task));
	p->access = malloc(b->cap_access * sizeof(*p->access));
	b->written = calloc(b->cap_data, 1);
	b->weight = k3i_arena_alloc(arena, ps->n * sizeof(*b->weight));
	b->grad = k3i_arena_alloc(arena, ps->n * sizeof(*b->grad));
	uint32_t *ids = k3i_arena_alloc(arena, 2 * (size_t)model->n_blocks * sizeof(*ids));
	if (!p->data || !p->task || !p->access || !b->written || !b->weight || !b->grad || !ids) {
		b->status = K3_ENOMEM;
		return K3_ENOMEM;
	}
	memcpy(p->data, model->persist, model->n_persist * sizeof(*p->data));
	p->n_data = model->n_persist;
	for (size_t i = 0; i < p->n_data; i++) {
		p->data[i].first_pos = 1;
		p->data[i].last_pos = 0;
	}
	for (size_t i = 0; i < ps->n; i++) {
		b->weight[i] =
			(struct k3_view){ids, ps->param[i].n_blocks, ps->param[i].block_rows};
		b->grad[i] = (struct k3_view){ids + model->n_blocks, ps->param[i].n_blocks,
					      ps->param[i].block_rows};
		for (size_t k = 0; k < ps->param[i].n_blocks; k++, ids++) {
			uint32_t block = model->param_block[i] + (uint32_t)k;
			ids[0] = k3i_source(model, block);
			ids[model->n_blocks] = block + model->n_blocks;
		}
	}
	return K3_OK;
}

uint32_t
k3i_source(const struct k3_model *model, uint32_t block)
{
	return model->copy[block] == K3_NO_DATUM ? block : (uint32_t)model->copy[block];
}

int
k3i_builder_finish(struct k3_builder *b, struct k3_plan **plan)
{
	struct k3_plan *p = b->plan;

	*plan = NULL;
	if (!p)
		return b->status != K3_OK ? b->status : K3_ENOMEM;
	p->n_pos = b->pos;
	if (b->status == K3_OK)
		b->status = k3i_assign_slots(b);
	free(b->written);
	if (b->status != K3_OK) {
		k3_plan_destroy(p);
		return b->status;
	}
	k3i_assign_priorities(p);
	for (size_t i = 0; i < p->n_tasks; i++)
		p->flops += p->task[i].flops;
	*plan = p;
	return K3_OK;
}

void
k3_plan_destroy(struct k3_plan *plan)
{
	if (!plan)
		return;
	free(plan->data);
	free(plan->task);
	free(plan->access);
	k3i_arena_destroy(plan->arena); /* holds the plan itself */
}

/* Doubles an array when it is full. */
static bool
grow(struct k3_builder *b, void **array, size_t *cap, size_t need, size_t elem_bytes)
{
	if (need <= *cap)
		return true;
	size_t cap2 = *cap * 2 > need ? *cap * 2 : need;
	void *grown = realloc(*array, cap2 * elem_bytes);
	if (!grown) {
		b->status = K3_ENOMEM;
		return false;
	}
	*array = grown;
	*cap = cap2;
	return true;
}

uint32_t
k3i_data(struct k3_builder *b, const char *what, enum k3_data_kind kind, enum k3_dtype dtype,
	 int layer, int tile, int index, size_t rows, size_t nominal_rows, size_t row_elems)
{
	struct k3_plan *p = b->plan;
	size_t old_cap = b->cap_data;

	if (b->status != K3_OK ||
	    !grow(b, (void **)&p->data, &b->cap_data, p->n_data + 1, sizeof(*p->data)))
		return 0;
	if (b->cap_data != old_cap) {
		uint8_t *written = realloc(b->written, b->cap_data);
		if (!written) {
			b->status = K3_ENOMEM;
			return 0;
		}
		b->written = written;
	}
	size_t elem = k3_dtype_bytes(dtype);
	p->data[p->n_data] = (struct k3_datum){
		.what = what,
		.kind = (uint8_t)kind,
		.dtype = (uint8_t)dtype,
		.layer = (int16_t)layer,
		.tile = tile,
		.index = index,
		.param = -1,
		.rows = rows,
		.row_elems = row_elems,
		.bytes = rows * row_elems * elem,
		.slot_bytes = nominal_rows * row_elems * elem,
		.slot = K3_NO_SLOT,
		.first_pos = 1,
		.last_pos = 0,
	};
	b->written[p->n_data] = 0;
	return (uint32_t)p->n_data++;
}

/* ".l12" at text[n]; the new length.  By hand, as printf took a fifth of the time of a plan.  No
 * blank: StarPU's traces hold names without quotes. */
static size_t
put_number(char *text, size_t n, char key, int value)
{
	char digit[12];
	size_t digits = 0;

	if (value < 0)
		return n;
	do {
		digit[digits++] = (char)('0' + value % 10);
		value /= 10;
	} while (value > 0);
	text[n++] = '.';
	text[n++] = key;
	while (digits > 0)
		text[n++] = digit[--digits];
	return n;
}

static const char *
task_name(struct k3_builder *b, enum k3_op op, int layer, int tile, int group)
{
	char text[96];
	const char *op_name = k3_op_name(op);
	size_t n = strlen(op_name);

	static const char again[] = ".again";

	K3_ASSERT(n + 3 * 13 + sizeof(again) < sizeof(text));
	memcpy(text, op_name, n);
	n = put_number(text, n, 'l', layer);
	n = put_number(text, n, 't', tile);
	n = put_number(text, n, 'g', group);
	if (b->pass == K3_PASS_RECOMPUTE) {
		memcpy(text + n, again, sizeof(again) - 1);
		n += sizeof(again) - 1;
	}
	char *name = k3i_arena_alloc(b->plan->arena, n + 1);
	if (!name) {
		b->status = K3_ENOMEM;
		return "";
	}
	memcpy(name, text, n);
	return name;
}

/* The next position; the plan fails when there are too many. */
static uint32_t
take_position(struct k3_builder *b)
{
	if (b->pos < K3_MAX_POSITIONS)
		return b->pos++;
	if (b->status == K3_OK) {
		k3_error("planner",
			 "plan: more than %d tasks: longer tiles or fewer tokens would help "
			 "(--tile-tokens, --tokens)%s",
			 K3_MAX_POSITIONS,
			 b->model->options.offers & K3_OFFER_MESH ? ", or more ranks (--mesh)"
								  : "");
		b->status = K3_ELIMIT;
	}
	return b->pos - 1;
}

void *
k3i_task(struct k3_builder *b, enum k3_op op, int layer, int tile, int group, size_t args_bytes)
{
	void *sink = b->args_sink;
	struct k3_plan *p = b->plan;

	K3_ASSERT(args_bytes <= sizeof(b->args_sink));
	b->wide = 0;
	b->widens = b->act != K3_F32 && !k3_op_takes_bf16(op);
	if (b->phantom) {
		take_position(b);
		return memset(sink, 0, args_bytes);
	}
	if (b->status != K3_OK ||
	    !grow(b, (void **)&p->task, &b->cap_tasks, p->n_tasks + 1, sizeof(*p->task)))
		return sink;
	void *args = args_bytes ? k3i_arena_alloc(p->arena, args_bytes) : NULL;
	if (args_bytes && !args) {
		b->status = K3_ENOMEM;
		return sink;
	}
	p->task[p->n_tasks] = (struct k3_task){
		.op = (uint16_t)op,
		.pass = b->pass,
		.layer = (int16_t)layer,
		.tile = tile,
		.group = group,
		.first_access = (uint32_t)p->n_access,
		.pos = take_position(b),
		.plan = p,
		.args = args,
		.comm = -1,
		.peer = -1,
		.name = task_name(b, op, layer, tile, group),
	};
	b->cur = &p->task[p->n_tasks++];
	return args ? args : sink;
}

double
k3i_moved_bytes(const struct k3_builder *b, uint32_t first, uint32_t n)
{
	const struct k3_task *t = b->cur;
	double bytes = 0;

	for (uint32_t i = first; t && i < t->n_access && i - first < n; i++) {
		const struct k3_access *a = &b->plan->access[t->first_access + i];
		bytes += (double)b->plan->data[a->datum].bytes * (a->mode == K3_RW ? 2 : 1);
	}
	return bytes;
}

/* Bytes of parameters, gradients, moments among what the current task moves. */
static double
param_bytes(const struct k3_builder *b)
{
	double bytes = 0;

	for (uint32_t i = 0; i < b->cur->n_access; i++) {
		uint32_t datum = b->plan->access[b->cur->first_access + i].datum;
		if (b->plan->data[datum].param >= 0)
			bytes += k3i_moved_bytes(b, i, 1);
	}
	return bytes;
}

/* The plan's scratch is enough for the current task, or for one that is left out. */
static void
count_wide(struct k3_builder *b, size_t bytes)
{
	if (b->status == K3_OK && bytes > b->plan->wide_bytes)
		b->plan->wide_bytes = bytes;
}

void
k3i_wide_most(struct k3_builder *b, uint32_t datum, size_t n, uint32_t other, size_t m)
{
	const struct k3_datum *d = b->plan->data;

	if (b->status == K3_OK && b->act != K3_F32)
		count_wide(b, n * k3_wide_bytes(&d[datum]) + m * k3_wide_bytes(&d[other]));
}

double
k3_task_cost_us(const struct k3_task *t, bool gpu)
{
	const struct k3_model *m = t->plan->model;
	enum k3_op op = (enum k3_op)t->op;

	if (!gpu)
		return k3_machine_cost_us(&m->machine, op, t->flops, t->bytes, t->param_bytes);
	if (op == K3_OP_BATCH_LOAD || op == K3_OP_STEP_LOAD || op == K3_OP_VIT_LOAD)
		return NAN;
	return k3_gpu_cost_us(&m->machine.gpu, op, m->options.dtype, t->flops, t->bytes);
}

void
k3i_task_end(struct k3_builder *b, double flops, double bytes)
{
	struct k3_task *t = b->cur;

	count_wide(b, b->wide);
	if (b->status == K3_OK && t) {
		if (t->args)
			((struct k3_args_head *)(uintptr_t)t->args)->n_buf = t->n_access;
		t->flops = flops;
		t->bytes = bytes > 0 ? bytes : k3i_moved_bytes(b, 0, t->n_access);
		/* rows of a table that are looked up are fewer than the table */
		t->param_bytes = fmin(param_bytes(b), t->bytes);
		t->wide_bytes = b->wide;
		t->cost_us = k3_task_cost_us(t, b->model->options.for_gpus);
		if (isnan(t->cost_us))
			t->cost_us = k3_task_cost_us(t, false);
	}
	b->cur = NULL;
}

void
k3i_skip(struct k3_builder *b)
{
	take_position(b);
}

/* The position that a touch belongs to: the current task's, or the one just skipped. */
static uint32_t
here(const struct k3_builder *b)
{
	return b->cur ? b->cur->pos : b->pos ? b->pos - 1 : 0;
}

void
k3i_touch(struct k3_builder *b, uint32_t datum)
{
	if (b->status != K3_OK)
		return;
	struct k3_datum *d = &b->plan->data[datum];
	uint32_t pos = here(b);
	if (d->first_pos > d->last_pos)
		d->first_pos = d->last_pos = pos;
	if (pos > d->last_pos)
		d->last_pos = pos;
}

/* Place of a datum's handle among those of the current task. */
static uint32_t
buffer_of(const struct k3_builder *b, uint32_t datum)
{
	const struct k3_datum *data = b->plan->data;
	const struct k3_access *a = &b->plan->access[b->cur->first_access];
	uint32_t leader = k3_datum_leader(data, datum);

	for (uint32_t i = 0; data[leader].whole_bytes && i < b->cur->n_access; i++)
		if (k3_datum_leader(data, a[i].datum) == leader)
			return a[i].buffer;
	return b->cur->n_buffers++;
}

uint32_t
k3i_use(struct k3_builder *b, uint32_t datum, enum k3_mode mode)
{
	struct k3_plan *p = b->plan;

	if (b->status == K3_OK && b->widens && p->data[datum].dtype == K3_BF16)
		b->wide += k3_wide_bytes(&p->data[datum]);
	if (b->phantom)
		k3i_touch(b, datum);
	if (b->status != K3_OK || !b->cur ||
	    !grow(b, (void **)&p->access, &b->cap_access, p->n_access + 1, sizeof(*p->access)))
		return 0;
	p->access[p->n_access++] =
		(struct k3_access){datum, mode & K3_RW, buffer_of(b, datum) & K3_MOST_BUFFERS};
	if (mode & K3_W)
		b->written[datum] = 1;
	k3i_touch(b, datum);
	return b->cur->n_access++;
}

int32_t
k3_plan_find(const struct k3_plan *plan, const char *what, int layer, int tile, int index)
{
	for (size_t i = 0; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		if (d->layer == layer && d->tile == tile && d->index == index &&
		    strcmp(d->what, what) == 0)
			return (int32_t)i;
	}
	return K3_NO_DATUM;
}

const char *
k3_datum_label(const struct k3_datum *d, char *text, size_t text_bytes)
{
	size_t n = (size_t)snprintf(text, text_bytes, "%s", d->what);
	const struct {
		const char *key;
		int value;
	} part[] = {{"l", d->layer}, {"t", d->tile}, {"p", d->param}, {"i", d->index}};

	for (size_t i = 0; i < 4; i++)
		if (part[i].value >= 0 && n < text_bytes)
			n += (size_t)snprintf(text + n, text_bytes - n, " %s%d", part[i].key,
					      part[i].value);
	return text;
}
