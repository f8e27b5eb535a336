/* Handles: one per persistent datum of a model, one per slot; the same slot serves all plans of a
 * run. */
#ifndef K3_TASKS_STORE_H
#define K3_TASKS_STORE_H
#include <starpu.h>

#include "../planner/plan.h"
#include "runtime.h"

struct k3_store;

/** model and runtime must outlive the store. Handles are registered, nothing is allocated before it
 * is written. */
int k3_store_create(struct k3_store **store, struct k3_runtime *runtime,
		    const struct k3_model *model);
/** Drains, then frees all data. NULL is legal. */
void k3_store_destroy(struct k3_store *store);

const struct k3_model *k3_store_model(const struct k3_store *store);
struct k3_runtime *k3_store_runtime(const struct k3_store *store);

/**
 * Makes sure that all slots of a plan have handles, and that its data have room beside all that the
 * store was used for before.
 * @return K3_OK, K3_ENOMEM, K3_ELIMIT (room.h; logged)
 */
int k3_store_prepare(struct k3_store *store, const struct k3_plan *plan);
/** The same for data that the program is about to write; plan may be NULL for persistent ones. */
int k3_store_reserve(struct k3_store *store, const struct k3_plan *plan, uint32_t first,
		     uint32_t n);
/** Handle of a plan's datum; the plan was prepared. */
starpu_data_handle_t k3_store_handle(const struct k3_store *store, const struct k3_plan *plan,
				     uint32_t datum);

/** How a handle is used by what uses a datum of it so: a write keeps the other data that the handle
 * holds by now.  A first write is taken to happen: when its submission fails, the store is only to be
 * destroyed. */
enum k3_mode k3_store_mode(struct k3_store *store, uint32_t datum, enum k3_mode mode);

/** Was a write of a persistent datum's handle submitted?  It may be in flight. */
bool k3_store_is_begun(const struct k3_store *store, uint32_t datum);

/**
 * Copies a datum out (in): waits for the tasks submitted so far that write (use) it.
 * plan may be NULL for persistent data; short-lived data must be kept by their plan.
 * @return K3_OK, K3_EINVAL (not kept, or never written; logged), K3_ELIMIT (no room; logged)
 */
int k3_store_datum_read(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
			void *out);
int k3_store_datum_write(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
			 const void *in);

/** The same for a datum of F32 or BF16, as floats [rows * row_elems]. */
int k3_store_floats_read(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
			 float *out);
int k3_store_floats_write(struct k3_store *store, const struct k3_plan *plan, uint32_t datum,
			  const float *in);

/**
 * Of a model with the option `fingerprint`: hash over the words that the tasks of a step left.
 * Only after a drain, as the next step writes the same words.
 * @return K3_OK, K3_ELIMIT (logged)
 */
int k3_store_fingerprint(struct k3_store *store, uint64_t *print);

/** What is in slots is over: nothing reads it again, and no memory node need keep it. */
void k3_store_forget_slots(struct k3_store *store);

struct k3_held {
	uint64_t n, bytes;
};
/** Handles that have memory on a memory node now, and how much. */
struct k3_held k3_store_held(const struct k3_store *store, unsigned node);
/** Bytes in main memory that handles hold now. */
uint64_t k3_store_bytes_held(const struct k3_store *store);

#endif
