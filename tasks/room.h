/* What StarPU lets data take on its memory nodes, against what is needed.  Where data do not fit
 * and have nowhere to go StarPU waits for ever, so every program is refused before. */
#ifndef K3_TASKS_ROOM_H
#define K3_TASKS_ROOM_H
#include <stdbool.h>
#include <stdint.h>

/* Data that may be somewhere at once. */
struct k3_amount {
	uint64_t bytes;
	uint64_t
		small_bytes; /* of them, in data that StarPU cuts out of pieces when it pins memory */
	uint64_t small_blocks; /* that those take there */
};

struct k3_need {
	struct k3_amount all;  /* every datum of the run */
	struct k3_amount main; /* of them what a core or the program writes: they begin in main
				  memory, wherever the rest is */
	uint64_t task_bytes;   /* the data of one task at most */
	uint64_t datum_bytes;  /* one datum at most: the program may read any */
};

void k3_need_add(struct k3_need *need, uint64_t bytes, uint64_t n);
void k3_amount_add(struct k3_amount *amount, uint64_t bytes, uint64_t n);

/** Did the user limit what StarPU may take of main memory (STARPU_LIMIT_CPU_MEM,
 * STARPU_LIMIT_CPU_NUMA_MEM, STARPU_LIMIT_CPU_NUMA_<node>_MEM)? */
bool k3_room_is_limited(void);
/** Is there a GPU, and room for so much on each? */
bool k3_room_on_gpus(uint64_t bytes);
/** May so much be anywhere?  Cheap. */
bool k3_room_is_ample(const struct k3_need *need);
/**
 * StarPU has started.
 * @return K3_OK; K3_ELIMIT (logged with the variable, what is needed and what is there): a GPU may
 * not hold the operands of one task, or main memory not what must be there
 */
int k3_room_check(const struct k3_need *need);

#endif
