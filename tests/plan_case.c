#include "plan_case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/status.h"
#include "../planner/mesh.h"

void
hand_init(struct hand *h)
{
	memset(h, 0, sizeof(*h));
	h->model.hyper = h->model.loss_acc = h->model.step_out[0] = h->model.step_out[1] =
		h->model.norm_partial = UINT32_MAX;
	h->plan.model = &h->model;
	h->plan.data = h->data;
	h->plan.task = h->task;
	h->plan.access = h->access;
	h->plan.slot = h->slot;
	h->plan.comm = h->comm;
}

uint32_t
hand_data(struct hand *h, const char *what, int32_t slot, uint32_t first, uint32_t last)
{
	h->data[h->plan.n_data] = (struct k3_datum){.what = what,
						    .kind = K3_DATA_ACT,
						    .layer = -1,
						    .tile = -1,
						    .index = -1,
						    .param = -1,
						    .rows = 1,
						    .row_elems = 64,
						    .bytes = 256,
						    .slot_bytes = 256,
						    .slot = slot,
						    .first_pos = first,
						    .last_pos = last};
	while (h->plan.n_slots <= (size_t)slot)
		h->slot[h->plan.n_slots++].bytes = 256;
	return (uint32_t)h->plan.n_data++;
}

void
hand_task(struct hand *h, const char *name, const char *accesses, double cost_us)
{
	struct k3_task *t = &h->task[h->plan.n_tasks];
	unsigned datum;
	char mode[3];
	int used;

	*t = (struct k3_task){.op = K3_OP_EMBED_FWD,
			      .layer = -1,
			      .tile = -1,
			      .group = -1,
			      .first_access = (uint32_t)h->plan.n_access,
			      .pos = (uint32_t)h->plan.n_tasks,
			      .name = name,
			      .cost_us = cost_us,
			      .comm = -1,
			      .peer = -1};
	for (; sscanf(accesses, " %u:%2[RW-]%n", &datum, mode, &used) == 2; accesses += used) {
		uint8_t bits =
			(uint8_t)((strchr(mode, 'R') ? K3_R : 0) | (strchr(mode, 'W') ? K3_W : 0));
		h->access[h->plan.n_access++] =
			(struct k3_access){datum, bits, t->n_buffers++ & K3_MOST_BUFFERS};
		t->n_access++;
	}
	h->plan.n_pos = (uint32_t)++h->plan.n_tasks;
}

int32_t
hand_group(struct hand *h, uint32_t n, const uint32_t *members)
{
	size_t i = h->plan.n_comms++;

	memcpy(h->member[i], members, n * sizeof(*members));
	h->comm[i] = (struct k3_comm){.n_members = n, .member = h->member[i]};
	snprintf(h->comm[i].name, sizeof(h->comm[i].name), "group%zu", i);
	return (int32_t)i;
}

void
hand_comm(struct hand *h, enum k3_op op, int32_t comm, int32_t peer, uint64_t count)
{
	hand_task(h, k3_op_name(op), "", 1);
	struct k3_task *t = &h->task[h->plan.n_tasks - 1];
	t->op = (uint16_t)op;
	t->comm = comm;
	t->peer = peer;
	t->count = count;
	t->comm_dtype = K3_F32;
}

struct k3_model *
case_model(const char *mesh, uint32_t rank, const struct k3_plan_options *options)
{
	struct k3_plan_options o;
	struct k3_config config;
	struct k3_model *model;

	k3_plan_options_init(&o);
	if (options)
		o = *options;
	bool forced = o.mesh.forced;
	cr_assert_eq(k3_mesh_parse(&o.mesh, mesh), K3_OK);
	o.mesh.rank = rank;
	o.mesh.forced = forced;
	cr_assert_eq(k3_config_preset(&config, "tiny"), K3_OK);
	cr_assert_eq(k3_model_create(&model, &config, &o), K3_OK);
	return model;
}

int32_t *
case_documents(const char *documents, size_t *n_tokens)
{
	int32_t *ids = NULL, id = 0;
	int length, used;

	*n_tokens = 0;
	for (; sscanf(documents, " %d%n", &length, &used) == 1; documents += used) {
		size_t n = (size_t)abs(length);
		ids = realloc(ids, (*n_tokens + n) * sizeof(*ids));
		cr_assert_not_null(ids);
		id += length > 0;
		for (size_t i = 0; i < n; i++)
			ids[(*n_tokens)++] = length > 0 ? id : 0;
	}
	return ids;
}

struct k3_plan *
case_plan(const struct k3_model *model, const char *documents, bool first)
{
	struct k3_microbatch what = {.backward = true, .first = first, .count = true};
	struct k3_layout layout = {0};
	struct k3_plan *plan;
	int32_t *ids = case_documents(documents, &layout.n_tokens);

	layout.doc_ids = ids;
	cr_assert_eq(k3_plan_microbatch(&plan, model, &layout, &what), K3_OK);
	free(ids);
	return plan;
}

size_t
case_count(const struct k3_plan *plan, enum k3_op op)
{
	size_t n = 0;

	for (size_t i = 0; i < plan->n_tasks; i++)
		n += plan->task[i].op == op;
	return n;
}

void
case_prove(const char *mesh, const struct k3_plan_options *options, const char *const *documents,
	   int microbatches)
{
	struct k3_mesh m;
	cr_assert_eq(k3_mesh_parse(&m, mesh), K3_OK);
	struct k3_order *order = k3_order_create(k3_mesh_ranks(&m), false);

	cr_assert_not_null(order);
	for (uint32_t rank = 0; rank < k3_mesh_ranks(&m); rank++) {
		struct k3_model *model = case_model(mesh, rank, options);
		for (int i = 0; i <= microbatches; i++) {
			struct k3_plan *plan;
			if (i < microbatches)
				plan = case_plan(model, documents[rank / m.cp], i == 0);
			else
				cr_assert_eq(k3_plan_optimizer(&plan, model, 0), K3_OK);
			cr_expect_eq(k3_plan_check(plan), K3_OK, "rank %u, plan %d", rank, i);
			cr_expect_eq(k3_order_add(order, plan, rank), K3_OK, "rank %u, plan %d",
				     rank, i);
			k3_plan_destroy(plan);
		}
		k3_model_destroy(model);
	}
	cr_expect_eq(k3_order_check(order), K3_OK);
	k3_order_destroy(order);
}

static FILE *caught;
static int saved;

void
capture_begin(void)
{
	caught = tmpfile();
	cr_assert_not_null(caught);
	fflush(stderr);
	saved = dup(STDERR_FILENO);
	dup2(fileno(caught), STDERR_FILENO);
}

char *
capture_end(void)
{
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);
	long n = lseek(fileno(caught), 0, SEEK_END);
	char *text = calloc((size_t)n + 1, 1);
	cr_assert_not_null(text);
	cr_assert_eq(pread(fileno(caught), text, (size_t)n, 0), n);
	fclose(caught);
	return text;
}

void
expect_message(char *text, const char *part)
{
	cr_expect(strstr(text, part), "expected \"%s\" in \"%s\"", part, text);
	free(text);
}
