/* The trap: under a limit that is too small for everything, copies come and go, so what is held at
 * a moment says nothing about allocations; then only the limit is told. */
#include "gpu_memory.h"

#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "room.h"

static double
mib(uint64_t bytes)
{
	return (double)bytes / 1048576;
}

static bool
is_gpu(unsigned node)
{
	return starpu_node_get_kind(node) == STARPU_CUDA_RAM;
}

int
k3_gpu_memory_check(struct k3_gpu_memory *gpu, const struct k3_memory *memory)
{
	uint64_t scratch = memory->gpu_scratch_bytes + k3_device_fixed_bytes();
	struct k3_need need = {.task_bytes = memory->task_bytes};
	int ret;

	for (size_t i = 0; i < memory->model->n_persist; i++)
		k3_need_add(&need, k3_datum_place_bytes(&memory->model->persist[i]), 1);
	for (size_t i = 0; i < memory->n_classes; i++)
		k3_need_add(&need, memory->cls[i].bytes, memory->cls[i].n);
	*gpu = (struct k3_gpu_memory){.promised_bytes = need.all.bytes, .fits = true};
	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		starpu_ssize_t total = starpu_memory_get_total(node);
		if (!is_gpu(node))
			continue;
		k3_info("tasks",
			"gpu%d: plan: at most %.1f MiB in handles, %.1f MiB of scratch a worker; "
			"StarPU may take %.1f MiB",
			starpu_memory_node_get_devid(node), mib(gpu->promised_bytes), mib(scratch),
			mib((uint64_t)(total < 0 ? 0 : total)));
		if (k3_lane_bytes())
			k3_info("tasks", "gpu%d: beside that, communicators took %.1f MiB",
				starpu_memory_node_get_devid(node), mib(k3_lane_bytes()));
		gpu->fits = gpu->fits && (total <= 0 || need.all.bytes <= (uint64_t)total);
	}
	K3_TRY(k3_room_check(&need));
	if (!gpu->fits)
		k3_warn("tasks", "not all of that fits on a GPU: StarPU moves data to main memory "
				 "and back");
out:
	return ret;
}

void
k3_gpu_memory_microbatches_done(const struct k3_gpu_memory *gpu, struct k3_store *store)
{
	if (!gpu->fits)
		k3_store_forget_slots(store);
}

/* Vectors are many and small: what they take is not worth asking for it. */
enum { LEAST_BYTES = 1 << 20 };

/* Main memory gets a copy while the GPU works on the next step: what is there twice need not be
 * written back when its place is wanted. */
static void
let_rest(starpu_data_handle_t handle)
{
	starpu_data_wont_use(handle);
	starpu_data_idle_prefetch_on_node(handle, STARPU_MAIN_RAM, 1);
}

void
k3_gpu_memory_step_done(const struct k3_gpu_memory *gpu, struct k3_store *store)
{
	const struct k3_model *m = k3_store_model(store);

	/* parameters, gradients, moments */
	for (uint32_t i = 0; i < 4 * m->n_blocks && !gpu->fits; i++) {
		const struct k3_datum *d = &m->persist[i];
		if (k3_datum_place_bytes(d) < LEAST_BYTES)
			continue;
		if (d->kind == K3_DATA_GRAD)
			starpu_data_invalidate_submit(k3_store_handle(store, NULL, i));
		else if (d->kind != K3_DATA_PARAM || m->copy[i] != K3_NO_DATUM)
			let_rest(k3_store_handle(store, NULL, i));
	}
}

/* Copies on all GPUs, and the times that scratch was made. */
static uint64_t
allocations(const struct k3_store *store)
{
	uint64_t n = k3_device_scratch_made();

	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++)
		if (is_gpu(node))
			n += k3_store_held(store, node).n;
	return n;
}

void
k3_gpu_memory_settle(struct k3_gpu_memory *gpu, const struct k3_store *store)
{
	gpu->settled = allocations(store);
}

void
k3_gpu_memory_report(const struct k3_gpu_memory *gpu, const struct k3_store *store)
{
	uint64_t now = allocations(store);

	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		if (!is_gpu(node))
			continue;
		struct k3_held held = k3_store_held(store, node);
		k3_info("tasks", "gpu%d: %.1f MiB held by %llu handles, of %.1f MiB promised",
			starpu_memory_node_get_devid(node), mib(held.bytes),
			(unsigned long long)held.n, mib(gpu->promised_bytes));
		if (held.bytes > gpu->promised_bytes)
			k3_warn("tasks", "gpu%d: that is more than the plan promised",
				starpu_memory_node_get_devid(node));
	}
	if (gpu->fits && gpu->settled && now > gpu->settled)
		k3_warn("tasks",
			"%llu device allocations after the second step: each stops the GPU "
			"(documents of new shapes, or held-out data between steps)",
			(unsigned long long)(now - gpu->settled));
}
