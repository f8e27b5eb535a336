/* What the program reads and writes of the store itself.  The traps: StarPU aborts where data that
 * nobody wrote are acquired, and knows only of a whole handle whether it was written: the other data
 * of a handle count as written then. */
#include <stdlib.h>
#include <string.h>

#include "../codelets/vec/vec.h"
#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "store.h"

/* Something that the host may look at. */
struct look {
	starpu_data_handle_t handle;
	size_t at, bytes; /* where in the handle */
};

static int
look_up(struct k3_store *store, const struct k3_plan *plan, uint32_t datum, struct look *look)
{
	char label[128];

	if (datum < k3_store_model(store)->n_persist) {
		const struct k3_datum *d = &k3_store_model(store)->persist[datum];
		*look = (struct look){k3_store_handle(store, plan, datum), d->at, d->bytes};
		return K3_OK;
	}
	const struct k3_datum *d = &plan->data[datum];
	if (!d->keep || d->slot < 0) {
		k3_error("tasks",
			 "%s is not kept by its plan: its slot holds something else by now",
			 k3_datum_label(d, label, sizeof(label)));
		return K3_EINVAL;
	}
	*look = (struct look){k3_store_handle(store, plan, datum), 0, d->bytes};
	return K3_OK;
}

static bool
valid_somewhere(starpu_data_handle_t handle)
{
	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		int allocated = 0, valid = 0, requested = 0;
		starpu_data_query_status(handle, (int)node, &allocated, &valid, &requested);
		if (valid)
			return true;
	}
	return false;
}

/* StarPU aborts when data that nobody wrote is acquired, so that is found out before.  The first
 * write may still be in flight.  A drain would wait for later steps too, and the first line of a run
 * would count them: small data of the run, which nobody invalidates, are known by their submission.
 */
static bool
has_value(const struct k3_store *store, starpu_data_handle_t handle, uint32_t datum)
{
	if (k3_store_is_begun(store, datum) &&
	    k3_store_model(store)->persist[datum].kind == K3_DATA_BUFFER)
		return true;
	if (!valid_somewhere(handle))
		k3_runtime_drain(k3_store_runtime(store));
	return valid_somewhere(handle);
}

int
k3_store_datum_read(struct k3_store *store, const struct k3_plan *plan, uint32_t datum, void *out)
{
	struct look look;
	int ret;

	K3_TRY(look_up(store, plan, datum, &look));
	if (look.bytes == 0)
		return K3_OK;
	if (!has_value(store, look.handle, datum)) {
		char label[128];
		const struct k3_datum *d = plan ? plan->data : k3_store_model(store)->persist;
		k3_error("tasks", "%s was never written",
			 k3_datum_label(&d[datum], label, sizeof(label)));
		K3_TRY(K3_EINVAL);
	}
	if (starpu_data_acquire(look.handle, STARPU_R) != 0)
		K3_TRY(K3_EINVAL);
	memcpy(out, (const char *)starpu_vector_get_local_ptr(look.handle) + look.at, look.bytes);
	starpu_data_release(look.handle);
out:
	return ret;
}

int
k3_store_datum_write(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
		     const void *in)
{
	struct look look;
	int ret;

	K3_TRY(look_up(store, plan, datum, &look));
	if (look.bytes == 0)
		return K3_OK;
	K3_TRY(k3_store_reserve(store, plan, datum, 1));
	bool whole = k3_store_mode(store, datum, K3_W) == K3_W;
	if (starpu_data_acquire(look.handle, whole ? STARPU_W : STARPU_RW) != 0)
		K3_TRY(K3_EINVAL);
	memcpy((char *)starpu_vector_get_local_ptr(look.handle) + look.at, in, look.bytes);
	starpu_data_release(look.handle);
out:
	return ret;
}

int
k3_store_floats_read(struct k3_store *store, const struct k3_plan *plan, uint32_t datum, float *out)
{
	const struct k3_datum *d =
		plan ? &plan->data[datum] : &k3_store_model(store)->persist[datum];
	size_t n = d->rows * d->row_elems;

	if (d->dtype == K3_F32)
		return k3_store_datum_read(store, plan, datum, out);
	K3_ASSERT(d->dtype == K3_BF16);
	uint16_t *half = malloc(d->bytes + 1);
	int ret = half ? k3_store_datum_read(store, plan, datum, half) : K3_ENOMEM;
	if (ret == K3_OK)
		k3_vec()->from_bf16(out, half, n);
	free(half);
	return ret;
}

int
k3_store_floats_write(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
		      const float *in)
{
	const struct k3_datum *d =
		plan ? &plan->data[datum] : &k3_store_model(store)->persist[datum];

	if (d->dtype == K3_F32)
		return k3_store_datum_write(store, plan, datum, in);
	K3_ASSERT(d->dtype == K3_BF16);
	uint16_t *half = malloc(d->bytes + 1);
	if (!half)
		return K3_ENOMEM;
	k3_vec()->to_bf16(half, in, d->rows * d->row_elems);
	int ret = k3_store_datum_write(store, plan, datum, half);
	free(half);
	return ret;
}

int
k3_store_fingerprint(struct k3_store *store, uint64_t *print)
{
	const struct k3_model *m = k3_store_model(store);
	uint64_t word;
	int ret = K3_OK;

	*print = K3_FNV_START;
	for (uint32_t i = 0; i < m->n_hash; i++) {
		K3_TRY(k3_store_datum_read(store, NULL, m->hash + i, &word));
		*print = k3_fnv1a(*print, &word, sizeof(word));
	}
out:
	return ret;
}
