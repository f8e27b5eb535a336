/* Files of all our formats: input is mapped for reading and checked in place, output is written
 * under another name, made durable and renamed when it is complete.
 */
#ifndef K3_FILES_H
#define K3_FILES_H

#include <stddef.h>
#include <stdint.h>

struct k3i_map {
	const unsigned char *data; /* NULL when the file is empty */
	size_t bytes;
};

/** Maps a regular file. @return K3_OK or K3_EIO, logged with path and reason. */
int k3i_map_open(struct k3i_map *map, const char *path);
/** A map that is all zero is legal. */
void k3i_map_close(struct k3i_map *map);

/** dir/name, malloc'ed; NULL when memory is out. */
char *k3i_path_join(const char *dir, const char *name);
/** path.partial, malloc'ed; NULL when memory is out. */
char *k3i_path_partial(const char *path);

/** Creates or empties a file for writing. @return the descriptor, or -1 after a message. */
int k3i_file_create(const char *path);
/** Writes all bytes at a position; a failure is logged with path. */
int k3i_write_at(int fd, const char *path, const void *data, size_t bytes, uint64_t at);
/** Syncs a complete file and gives it its name; fd stays open. */
int k3i_file_publish(int fd, const char *partial, const char *path);
/** Makes renames and removals in the folder durable. */
int k3i_folder_sync(const char *dir);

#endif
