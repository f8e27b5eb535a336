/* Where a writer of .k3t files keeps its items until their place is known (inside common/). */
#ifndef K3_K3T_PATCHES_H
#define K3_K3T_PATCHES_H

#include "k3t.h"

struct k3i_k3t_patches {
	struct k3_k3t_patches shape;
	int fd;		/* of a file without a name; -1 before the first item */
	uint64_t bytes; /* of that file */
	uint64_t n_patches;
	struct k3_k3t_item
		*items; /* first_byte counts from the beginning of the file without a name */
	size_t n_items, room;
};

void k3i_k3t_patches_init(struct k3i_k3t_patches *p);
void k3i_k3t_patches_fini(struct k3i_k3t_patches *p);
/** Keeps a checked item. path is that of the .k3t file, beside which the patches are kept. */
int k3i_k3t_patches_add(struct k3i_k3t_patches *p, const char *path, uint64_t first_token,
			const struct k3_grid *grid, const uint8_t *bytes);
/** Reads bytes at .. at + n - 1 of what was kept. */
int k3i_k3t_patches_read(const struct k3i_k3t_patches *p, const char *path, uint64_t at,
			 unsigned char *out, size_t n);

#endif
