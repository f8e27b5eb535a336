/* Handles by index: persistent data as in the model, slots as in slot_pools.h.  The trap: a vector
 * handle counts its elements in 32 bits, so an element is a whole row or, in slots and where data
 * share a handle, a run of bytes. */
#include "store.h"

#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "codelets.h"
#include "room.h"
#include "slot_pools.h"

/* What a datum was used for so far. */
enum { USED = 1, USED_IN_MAIN = 2 /* a core or the program writes it */ };

struct k3_store {
	struct k3_runtime *runtime;
	const struct k3_model *model;
	starpu_data_handle_t *persist; /* NULL: the rank has no rows of it, or another holds it */
	bool *begun;		       /* [n_persist] a part of its handle was written */
	uint8_t *used;		       /* [n_persist] of its handle */
	struct k3i_pools slots;
	struct k3_need need; /* of all that was prepared; task_bytes are the last plan's */
};

/* Parameters alone that no memory of the machine holds: a large model has millions of handles, and
 * making them to be refused afterwards takes minutes. */
static int
check_parameters(const struct k3_model *model)
{
	struct k3_need need = {0};

	if (k3_room_is_limited() || starpu_cuda_worker_get_count() > 0)
		return K3_OK;
	for (uint32_t i = 0; i < model->n_blocks; i++)
		k3_need_add(&need, model->persist[i].bytes, 1);
	return k3_room_check(&need);
}

int
k3_store_create(struct k3_store **store, struct k3_runtime *runtime, const struct k3_model *model)
{
	struct k3_store *s = calloc(1, sizeof(*s));
	int ret = K3_OK;

	*store = NULL;
	if (!s)
		return K3_ENOMEM;
	s->runtime = runtime;
	s->model = model;
	K3_TRY(check_parameters(model));
	s->persist = calloc(model->n_persist, sizeof(*s->persist));
	s->begun = calloc(model->n_persist, sizeof(*s->begun));
	s->used = calloc(model->n_persist, sizeof(*s->used));
	if (!s->persist || !s->begun || !s->used)
		K3_TRY(K3_ENOMEM);
	for (size_t i = 0; i < model->n_persist; i++) {
		const struct k3_datum *d = &model->persist[i];
		if (d->rows > UINT32_MAX) {
			k3_error("tasks", "%s: %zu rows, at most %u are possible", d->what, d->rows,
				 UINT32_MAX);
			K3_TRY(K3_ESHAPE);
		}
		if (d->whole_bytes)
			k3i_register_bytes(&s->persist[i], d->whole_bytes);
		else if (k3_datum_place_bytes(d))
			starpu_vector_data_register(&s->persist[i], -1, 0, (uint32_t)d->rows,
						    d->bytes / d->rows);
	}
	*store = s;
out:
	if (ret != K3_OK)
		k3_store_destroy(s);
	return ret;
}

void
k3_store_destroy(struct k3_store *store)
{
	if (!store)
		return;
	k3_runtime_drain(store->runtime);
	for (size_t i = 0; store->persist && i < store->model->n_persist; i++)
		if (store->persist[i])
			starpu_data_unregister_no_coherency(store->persist[i]);
	k3i_pools_fini(&store->slots);
	free(store->persist);
	free(store->begun);
	free(store->used);
	free(store);
}

const struct k3_model *
k3_store_model(const struct k3_store *store)
{
	return store->model;
}

struct k3_runtime *
k3_store_runtime(const struct k3_store *store)
{
	return store->runtime;
}

/* Adds a datum's handle to what is needed, once. */
static void
use(struct k3_store *store, const struct k3_plan *plan, uint32_t datum, bool in_main)
{
	if (datum < store->model->n_persist) {
		const struct k3_datum *persist = store->model->persist;
		uint32_t leader = k3_datum_leader(persist, datum);
		uint64_t bytes = k3_datum_place_bytes(&persist[leader]);
		uint8_t *used = &store->used[leader];
		if (!(*used & USED))
			k3_need_add(&store->need, bytes, 1);
		if (in_main && !(*used & USED_IN_MAIN))
			k3_amount_add(&store->need.main, bytes, 1);
		*used |= in_main ? USED | USED_IN_MAIN : USED;
	} else if (in_main && plan->data[datum].slot >= 0) {
		const struct k3_slot *slot = &plan->slot[plan->data[datum].slot];
		struct k3i_pool *p = k3i_pool_of(&store->slots, slot->bytes);
		if (!p->in_main[slot->ordinal])
			k3_amount_add(&store->need.main, slot->bytes, 1);
		p->in_main[slot->ordinal] = true;
	}
}

static int
check_room(struct k3_store *store, const struct k3_plan *plan)
{
	if (k3_room_is_ample(&store->need))
		return K3_OK;
	store->need.task_bytes = plan ? k3_plan_task_bytes(plan) : 0;
	return k3_room_check(&store->need);
}

int
k3_store_prepare(struct k3_store *store, const struct k3_plan *plan)
{
	bool gpus = starpu_cuda_worker_get_count() > 0;
	int ret;

	K3_TRY(k3i_pools_grow(&store->slots, plan, &store->need));
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		const struct k3_access *a = &plan->access[t->first_access];
		const struct starpu_codelet *cl = gpus ? k3_codelet(t->op) : NULL;
		bool in_main = cl && !(cl->where & STARPU_CUDA);
		for (uint32_t k = 0; k < t->n_access; k++)
			use(store, plan, a[k].datum, in_main);
	}
	K3_TRY(check_room(store, plan));
out:
	return ret;
}

int
k3_store_reserve(struct k3_store *store, const struct k3_plan *plan, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		use(store, plan, first + i, true);
	return check_room(store, plan);
}

starpu_data_handle_t
k3_store_handle(const struct k3_store *store, const struct k3_plan *plan, uint32_t datum)
{
	if (datum < store->model->n_persist)
		return store->persist[k3_datum_leader(store->model->persist, datum)];
	const struct k3_slot *slot = &plan->slot[plan->data[datum].slot];
	return k3i_pool_of(&store->slots, slot->bytes)->handle[slot->ordinal];
}

enum k3_mode
k3_store_mode(struct k3_store *store, uint32_t datum, enum k3_mode mode)
{
	const struct k3_datum *persist = store->model->persist;

	if (datum >= store->model->n_persist || mode != K3_W)
		return mode;
	uint32_t leader = k3_datum_leader(persist, datum);
	if (store->begun[leader] && persist[leader].whole_bytes)
		return K3_RW;
	store->begun[leader] = true;
	return K3_W;
}

bool
k3_store_is_begun(const struct k3_store *store, uint32_t datum)
{
	const struct k3_datum *persist = store->model->persist;

	return datum < store->model->n_persist && store->begun[k3_datum_leader(persist, datum)];
}

void
k3_store_forget_slots(struct k3_store *store)
{
	for (size_t p = 0; p < store->slots.n; p++)
		for (uint32_t i = 0; i < store->slots.pool[p].n; i++)
			starpu_data_invalidate_submit(store->slots.pool[p].handle[i]);
}

/* Adds what a handle holds, nothing before its first use there. */
static void
add_held(struct k3_held *held, starpu_data_handle_t handle, unsigned node)
{
	int allocated = 0, valid = 0, requested = 0;

	if (!handle)
		return;
	starpu_data_query_status(handle, (int)node, &allocated, &valid, &requested);
	if (!allocated)
		return;
	held->n++;
	held->bytes += starpu_data_get_size(handle);
}

struct k3_held
k3_store_held(const struct k3_store *store, unsigned node)
{
	struct k3_held held = {0};

	for (size_t i = 0; i < store->model->n_persist; i++)
		add_held(&held, store->persist[i], node);
	for (size_t p = 0; p < store->slots.n; p++)
		for (uint32_t i = 0; i < store->slots.pool[p].n; i++)
			add_held(&held, store->slots.pool[p].handle[i], node);
	return held;
}

uint64_t
k3_store_bytes_held(const struct k3_store *store)
{
	return k3_store_held(store, STARPU_MAIN_RAM).bytes;
}
