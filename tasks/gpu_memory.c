/* The trap: under a limit that is too small for everything, copies come and go, so what is held at
 * a moment says nothing about allocations; then only the limit is told. */
#include "gpu_memory.h"

#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"

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

/* What StarPU may take of main memory; 0: it does not count (runtime.c). */
static uint64_t
main_memory(void)
{
	uint64_t bytes = 0;

	if (!getenv("STARPU_LIMIT_CPU_MEM"))
		return 0;
	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		starpu_ssize_t total = starpu_memory_get_total(node);
		if (starpu_node_get_kind(node) == STARPU_CPU_RAM && total > 0)
			bytes += (uint64_t)total;
	}
	return bytes;
}

/* Data that leave a GPU keep their place in main memory when they come back, and without a GPU all
 * are there: all need room. */
static int
check_main_memory(const struct k3_gpu_memory *gpu)
{
	uint64_t room = main_memory();
	bool cores_alone = starpu_cuda_worker_get_count() == 0;

	if ((gpu->fits && !cores_alone) || !room || gpu->promised_bytes <= room)
		return K3_OK;
	if (cores_alone) {
		k3_error("tasks",
			 "main memory: StarPU may take %.1f MiB of it (STARPU_LIMIT_CPU_MEM), the "
			 "plan needs %.1f MiB: a higher limit or --memory would help",
			 mib(room), mib(gpu->promised_bytes));
		return K3_ELIMIT;
	}
	k3_error(
		"tasks",
		"main memory: StarPU may take %.1f MiB of it, but all %.1f MiB may have to leave a "
		"GPU: a higher limit of the GPU (STARPU_LIMIT_CUDA_MEM) or --memory would help",
		mib(room), mib(gpu->promised_bytes));
	return K3_ELIMIT;
}

int
k3_gpu_memory_check(struct k3_gpu_memory *gpu, const struct k3_memory *memory)
{
	uint64_t scratch = memory->gpu_scratch_bytes + k3_device_fixed_bytes();
	int ret = K3_OK;

	*gpu = (struct k3_gpu_memory){.promised_bytes = k3_memory_bound(memory) -
							k3_memory_wide_bytes(memory),
				      .fits = true};
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
		if (total < 0 || gpu->promised_bytes <= (uint64_t)total)
			continue;
		gpu->fits = false;
		if (memory->task_bytes > (uint64_t)total) {
			k3_error("tasks",
				 "gpu%d: the operands of one task take %.1f MiB, StarPU may take "
				 "%.1f MiB there (STARPU_LIMIT_CUDA_MEM): shorter tiles or a "
				 "smaller --head-rows would help",
				 starpu_memory_node_get_devid(node), mib(memory->task_bytes),
				 mib((uint64_t)total));
			ret = K3_ELIMIT;
			continue;
		}
		k3_warn("tasks",
			"gpu%d: not all of that fits: StarPU moves data to main memory and back",
			starpu_memory_node_get_devid(node));
	}
	return ret == K3_OK ? check_main_memory(gpu) : ret;
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
