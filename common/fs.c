/* Small files and folders.
 *
 * The trap is in the removal: what lies behind a symbolic link is somebody else's, and a path that
 * ends in "." or ".." names more than the caller made.
 */
#include "fs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "log.h"
#include "status.h"

static int
fail(const char *what, const char *path)
{
	k3_error("common", "cannot %s %s: %s", what, path, strerror(errno));
	return K3_EIO;
}

int
k3_fs_read(const char *path, size_t most_bytes, char **text, size_t *bytes)
{
	struct k3i_map map;
	int ret;

	*text = NULL;
	*bytes = 0;
	K3_TRY(k3i_map_open(&map, path));
	if (map.bytes > most_bytes) {
		k3_error("common", "%s has %zu bytes; at most %zu are read", path, map.bytes,
		         most_bytes);
		K3_TRY(K3_ELIMIT);
	}
	*text = malloc(map.bytes + 1);
	K3_TRY(*text ? K3_OK : K3_ENOMEM);
	if (map.bytes > 0)
		memcpy(*text, map.data, map.bytes);
	(*text)[map.bytes] = 0;
	*bytes = map.bytes;
out:
	k3i_map_close(&map);
	return ret;
}

bool
k3_fs_is_same(const char *a, const char *b)
{
	struct stat one, other;

	return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
	       one.st_ino == other.st_ino;
}

int
k3_fs_sync_folder(const char *path)
{
	return k3i_folder_sync(path);
}

/* Folder part of a path, malloc'ed. */
static char *
folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return strdup(".");
	return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

int
k3_fs_write_atomic(const char *path, const void *data, size_t bytes)
{
	char *partial = k3i_path_partial(path), *folder = folder_of(path);
	int fd = -1, ret = partial && folder ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	fd = k3i_file_create(partial);
	if (fd < 0)
		K3_TRY(K3_EIO);
	K3_TRY(k3i_write_at(fd, partial, data, bytes, 0));
	K3_TRY(k3i_file_publish(fd, partial, path));
	K3_TRY(k3i_folder_sync(folder));
out:
	if (fd >= 0)
		close(fd);
	if (ret != K3_OK && partial)
		unlink(partial);
	free(partial);
	free(folder);
	return ret;
}

int
k3_fs_mkdirs(const char *path)
{
	char *copy = strdup(path);
	struct stat st;
	int ret = copy ? K3_OK : K3_ENOMEM;

	for (char *p = copy; ret == K3_OK && p && *p; p++) {
		if (p[1] != '/' && p[1] != 0)
			continue;
		char keep = p[1];
		p[1] = 0;
		if (mkdir(copy, 0777) != 0 && errno != EEXIST)
			ret = fail("make folder", copy);
		p[1] = keep;
	}
	if (ret == K3_OK && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))) {
		errno = ENOTDIR;
		ret = fail("use folder", path);
	}
	free(copy);
	return ret;
}

int
k3_fs_check_target(const char *path)
{
	char *folder = folder_of(path);
	struct stat st;
	int ret = folder ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	K3_TRY(k3_fs_mkdirs(folder));
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		k3_error("common", "cannot write %s: it is no regular file", path);
		K3_TRY(K3_EIO);
	}
	if (access(folder, W_OK | X_OK) != 0)
		ret = fail("write in folder", folder);
out:
	free(folder);
	return ret;
}

static int
tree_remove(const char *path)
{
	struct stat st;
	DIR *d;
	int ret = K3_OK;

	if (lstat(path, &st) != 0)
		return errno == ENOENT ? K3_OK : fail("look at", path);
	if (!S_ISDIR(st.st_mode))
		return unlink(path) == 0 ? K3_OK : fail("remove", path);
	d = opendir(path);
	if (!d)
		return fail("open folder", path);
	for (struct dirent *e = readdir(d); e && ret == K3_OK; e = readdir(d)) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		char *below = k3i_path_join(path, e->d_name);
		ret = below ? tree_remove(below) : K3_ENOMEM;
		free(below);
	}
	closedir(d);
	if (ret == K3_OK && rmdir(path) != 0)
		ret = fail("remove folder", path);
	return ret;
}

int
k3_fs_remove_tree(const char *path)
{
	const char *last = strrchr(path, '/');

	last = last ? last + 1 : path;
	if (!*last || strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
		k3_error("common", "\"%s\" is not removed; its last part must be a name", path);
		return K3_EINVAL;
	}
	return tree_remove(path);
}
