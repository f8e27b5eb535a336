/* The traps: data leave a GPU for main memory, and main memory for a disk alone (STARPU_DISK_SWAP),
 * never one NUMA node for another, so the smallest of them counts.  A worker holds all operands of
 * its task at once, and the program one datum that it reads.  On GPUs, and in main memory beside
 * them, StarPU takes small data in blocks from pieces that it does not give back while one of them
 * is in use, so a few bytes may need a whole piece. */
#include "room.h"

#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

extern char **environ;

static double
mib(uint64_t bytes)
{
	return (double)bytes / 1048576;
}

/* The variable that limits main memory, with its value; NULL: none does.  In StarPU's order. */
static const char *
limiting(void)
{
	static const char *const first[] = {"STARPU_LIMIT_CPU_NUMA_", "STARPU_LIMIT_CPU_MEM="};

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
		for (char **e = environ; *e; e++)
			if (strncmp(*e, first[i], strlen(first[i])) == 0)
				return *e;
	return NULL;
}

/* StarPU's suballocator (src/datawizard/malloc.h). */
static const uint64_t piece_bytes = 32 << 20, block_bytes = 16 << 10;

void
k3_amount_add(struct k3_amount *amount, uint64_t bytes, uint64_t n)
{
	amount->bytes += bytes * n;
	if (bytes > piece_bytes / 8)
		return;
	amount->small_bytes += bytes * n;
	amount->small_blocks += (bytes + block_bytes - 1) / block_bytes * n;
}

void
k3_need_add(struct k3_need *need, uint64_t bytes, uint64_t n)
{
	k3_amount_add(&need->all, bytes, n);
	need->datum_bytes = n > 0 && bytes > need->datum_bytes ? bytes : need->datum_bytes;
}

/* The pieces that small data need; what is left at the end of each is too short for the largest. */
static uint64_t
pieces_bytes(const struct k3_amount *a)
{
	uint64_t usable = (piece_bytes - piece_bytes / 8) / block_bytes;

	return (a->small_blocks + usable - 1) / usable * piece_bytes;
}

static uint64_t
with_pieces(const struct k3_amount *a)
{
	return a->bytes - a->small_bytes + pieces_bytes(a);
}

bool
k3_room_is_limited(void)
{
	return limiting() != NULL;
}

/* Memory and swap space of the machine: more than that can nowhere be. */
static uint64_t
machine_bytes(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	unsigned long long kib, sum = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemTotal: %llu", &kib) == 1 ||
		    sscanf(line, "SwapTotal: %llu", &kib) == 1)
			sum += kib;
	if (f)
		fclose(f);
	return sum ? (uint64_t)sum << 10 : UINT64_MAX;
}

/* What StarPU may take on the smallest node of a kind; UINT64_MAX: it does not count, or there is
 * no such node. */
static uint64_t
smallest(enum starpu_node_kind kind)
{
	uint64_t least = UINT64_MAX;

	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		starpu_ssize_t total = starpu_memory_get_total(node);
		if (starpu_node_get_kind(node) == kind && total > 0 && (uint64_t)total < least)
			least = (uint64_t)total;
	}
	return least;
}

static uint64_t
main_bytes(void)
{
	static uint64_t machine;

	if (k3_room_is_limited())
		return smallest(STARPU_CPU_RAM);
	if (!machine)
		machine = machine_bytes();
	return machine;
}

static bool
has_disk(void)
{
	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++)
		if (starpu_node_get_kind(node) == STARPU_DISK_RAM)
			return true;
	return false;
}

bool
k3_room_on_gpus(uint64_t bytes)
{
	return starpu_cuda_worker_get_count() > 0 && bytes <= smallest(STARPU_CUDA_RAM);
}

/* Of main memory at least: without a GPU nothing is pinned; with one that has room for all, what
 * begins there and what the program reads. */
static uint64_t
needed_in_main(const struct k3_need *need)
{
	if (starpu_cuda_worker_get_count() == 0)
		return need->all.bytes;
	if (!k3_room_on_gpus(with_pieces(&need->all)))
		return with_pieces(&need->all) + piece_bytes;
	return with_pieces(&need->main) + piece_bytes +
	       (need->datum_bytes > piece_bytes / 8 ? need->datum_bytes : 0);
}

bool
k3_room_is_ample(const struct k3_need *need)
{
	return with_pieces(&need->all) + need->datum_bytes + piece_bytes <= main_bytes() &&
	       with_pieces(&need->all) <= smallest(STARPU_CUDA_RAM);
}

/* Pieces may stay where they are, with one block each in use. */
static int
check_gpus(const struct k3_need *need)
{
	uint64_t least = need->task_bytes + pieces_bytes(&need->all);
	int ret = K3_OK;

	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
		starpu_ssize_t total = starpu_memory_get_total(node);
		if (starpu_node_get_kind(node) != STARPU_CUDA_RAM || total <= 0 ||
		    least <= (uint64_t)total)
			continue;
		k3_error("tasks",
			 "gpu%d: the operands of one task take %.1f MiB beside %.1f MiB of small "
			 "data, StarPU may take %.1f MiB there (STARPU_LIMIT_CUDA_MEM): a higher "
			 "limit, shorter tiles or a smaller --head-rows would help",
			 starpu_memory_node_get_devid(node), mib(need->task_bytes),
			 mib(pieces_bytes(&need->all)), mib((uint64_t)total));
		ret = K3_ELIMIT;
	}
	return ret;
}

/* What does not fit goes to a disk: the tasks at work must fit, and the disk take the rest. */
static int
check_disk(const struct k3_need *need, uint64_t room)
{
	uint64_t at_work = need->task_bytes * (starpu_cpu_worker_get_count() + 1),
		 disk = smallest(STARPU_DISK_RAM);

	if (at_work > room) {
		k3_error(
			"tasks",
			"main memory: StarPU may take %.1f MiB of it (%s), the tasks of %u "
			"workers need %.1f MiB at once: a higher limit or fewer workers would help",
			mib(room), limiting(), starpu_cpu_worker_get_count(), mib(at_work));
		return K3_ELIMIT;
	}
	if (disk != UINT64_MAX && need->all.bytes > disk) {
		k3_error("tasks",
			 "disk: StarPU may take %.1f MiB of it (STARPU_DISK_SWAP_SIZE), "
			 "%.1f MiB may have to go there",
			 mib(disk), mib(need->all.bytes));
		return K3_ELIMIT;
	}
	return K3_OK;
}

int
k3_room_check(const struct k3_need *need)
{
	bool on_gpus = k3_room_on_gpus(with_pieces(&need->all));
	uint64_t room = main_bytes(), held = needed_in_main(need);
	const char *limit = limiting();

	if (!on_gpus && check_gpus(need) != K3_OK)
		return K3_ELIMIT;
	if (held <= room)
		return K3_OK;
	if (limit && has_disk())
		return check_disk(need, room);
	if (!limit)
		k3_error("tasks",
			 "main memory: the machine has %.1f MiB with its swap space, %.1f MiB are "
			 "needed",
			 mib(room), mib(held));
	else if (!on_gpus && starpu_cuda_worker_get_count() > 0)
		k3_error("tasks",
			 "main memory: StarPU may take %.1f MiB of it (%s), but all %.1f MiB may "
			 "have to leave a GPU: a higher limit of the GPU (STARPU_LIMIT_CUDA_MEM) "
			 "or of main memory would help",
			 mib(room), limit, mib(held));
	else
		k3_error("tasks",
			 "main memory: StarPU may take %.1f MiB of it (%s), %.1f MiB are needed: a "
			 "higher limit or fewer tokens at once would help",
			 mib(room), limit, mib(held));
	return K3_ELIMIT;
}
