/* Input files are mapped, output files become visible when they are complete.
 *
 * The trap of reading: opening a FIFO would block and a folder opens without an error, so
 * O_NONBLOCK and fstat come before the mapping.  The trap of writing: a rename may reach the disk
 * before the data do, so the data are synced first.
 */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "status.h"

int
k3i_map_open(struct k3i_map *map, const char *path)
{
	struct stat st;
	int ret = K3_EIO;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	*map = (struct k3i_map){0};
	if (fd < 0 || fstat(fd, &st) != 0) {
		k3_error("common", "%s: %s", path, strerror(errno));
		goto out;
	}
	if (!S_ISREG(st.st_mode)) {
		k3_error("common", "%s: not a regular file", path);
		goto out;
	}
	if (st.st_size > 0) {
		void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (data == MAP_FAILED) {
			k3_error("common", "%s: cannot map %lld bytes: %s", path,
				 (long long)st.st_size, strerror(errno));
			goto out;
		}
		map->data = data;
		map->bytes = (size_t)st.st_size;
	}
	ret = K3_OK;
out:
	if (fd >= 0)
		close(fd);
	return ret;
}

void
k3i_map_close(struct k3i_map *map)
{
	if (map->data)
		munmap((void *)map->data, map->bytes);
	*map = (struct k3i_map){0};
}

char *
k3i_path_join(const char *dir, const char *name)
{
	size_t bytes = strlen(dir) + strlen(name) + 2;
	char *path = malloc(bytes);

	if (path)
		snprintf(path, bytes, "%s/%s", dir, name);
	return path;
}

char *
k3i_path_partial(const char *path)
{
	static const char ending[] = ".partial";
	char *partial = malloc(strlen(path) + sizeof(ending));

	if (partial)
		strcat(strcpy(partial, path), ending);
	return partial;
}

int
k3i_file_create(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

	if (fd < 0)
		k3_error("common", "%s: cannot create: %s", path, strerror(errno));
	return fd;
}

int
k3i_write_at(int fd, const char *path, const void *data, size_t bytes, uint64_t at)
{
	const char *from = data;

	while (bytes > 0) {
		ssize_t done = pwrite(fd, from, bytes, (off_t)at);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			k3_error("common", "%s: cannot write: %s", path,
				 done < 0 ? strerror(errno) : "no space");
			return K3_EIO;
		}
		from += done;
		at += (uint64_t)done;
		bytes -= (size_t)done;
	}
	return K3_OK;
}

int
k3i_file_publish(int fd, const char *partial, const char *path)
{
	struct stat st;

	/* the name of a device or a folder would be lost with what it stands for */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		k3_error("common", "%s: exists and is no regular file", path);
		return K3_EIO;
	}
	if (fsync(fd) == 0 && rename(partial, path) == 0)
		return K3_OK;
	k3_error("common", "%s: %s", path, strerror(errno));
	return K3_EIO;
}

int
k3i_folder_sync(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret = K3_OK;

	/* EINVAL: the file system has nothing to sync for a folder */
	if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) {
		k3_error("common", "%s: cannot sync the folder: %s", dir, strerror(errno));
		ret = K3_EIO;
	}
	if (fd >= 0)
		close(fd);
	return ret;
}
