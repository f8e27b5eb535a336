/* Patches of a .k3t file that is being written.
 *
 * Texts and patches come mixed, but patches lie at the end of the file, and there may be more of
 * them than memory holds.  So they go to a second file, which loses its name as soon as it is open:
 * whoever dies leaves nothing behind.
 */
#include "k3t_patches.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "k3t_format.h"
#include "log.h"
#include "status.h"

void
k3i_k3t_patches_init(struct k3i_k3t_patches *p)
{
	*p = (struct k3i_k3t_patches){.shape = {K3_K3T_PATCH, K3_K3T_MERGE, K3_K3T_MERGE},
				      .fd = -1};
}

void
k3i_k3t_patches_fini(struct k3i_k3t_patches *p)
{
	if (p->fd >= 0)
		close(p->fd);
	free(p->items);
	k3i_k3t_patches_init(p);
}

static int
nameless_open(struct k3i_k3t_patches *p, const char *path)
{
	static const char ending[] = ".patches.partial";
	char *name = malloc(strlen(path) + sizeof(ending));

	if (!name)
		return K3_ENOMEM;
	strcat(strcpy(name, path), ending);
	p->fd = k3i_file_create(name);
	if (p->fd >= 0)
		unlink(name);
	free(name);
	return p->fd < 0 ? K3_EIO : K3_OK;
}

static int
table_reserve(struct k3i_k3t_patches *p)
{
	if (p->n_items < p->room)
		return K3_OK;
	size_t room = 2 * p->room + 16;
	struct k3_k3t_item *grown = realloc(p->items, room * sizeof(*grown));
	if (!grown)
		return K3_ENOMEM;
	p->items = grown;
	p->room = room;
	return K3_OK;
}

int
k3i_k3t_patches_add(struct k3i_k3t_patches *p, const char *path, uint64_t first_token,
		    const struct k3_grid *grid, const uint8_t *bytes)
{
	uint64_t n = k3_k3t_item_bytes(&p->shape, grid);
	int ret;

	if (p->fd < 0)
		K3_TRY(nameless_open(p, path));
	K3_TRY(table_reserve(p));
	/* the bytes between two items are a hole of the file, which reads as zeros */
	uint64_t at = k3i_k3t_align(p->bytes);
	K3_TRY(k3i_write_at(p->fd, path, bytes, n, at));
	p->items[p->n_items++] = (struct k3_k3t_item){first_token, at, *grid, 0};
	p->n_patches += k3_grid_patches(grid);
	p->bytes = at + n;
out:
	return ret;
}

int
k3i_k3t_patches_read(const struct k3i_k3t_patches *p, const char *path, uint64_t at,
		     unsigned char *out, size_t n)
{
	while (n > 0) {
		ssize_t done = pread(p->fd, out, n, (off_t)at);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			k3_error("common", "%s: cannot read the patches again: %s", path,
				 done < 0 ? strerror(errno) : "they were cut short");
			return K3_EIO;
		}
		out += done;
		at += (uint64_t)done;
		n -= (size_t)done;
	}
	return K3_OK;
}
