/* Small files and folders. Every failure is logged with path and reason; it is K3_EIO unless said
 * otherwise. */
#ifndef K3_FS_H
#define K3_FS_H
#include <stdbool.h>
#include <stddef.h>

/** Whole file as malloc'ed text with a 0 behind it; larger than most_bytes: K3_ELIMIT. */
int k3_fs_read(const char *path, size_t most_bytes, char **text, size_t *bytes);
/** Do both paths lead to one file that is there?  Logs nothing. */
bool k3_fs_is_same(const char *a, const char *b);
/** Temporary name in the same folder, fsync, rename, fsync of the folder. */
int k3_fs_write_atomic(const char *path, const void *data, size_t bytes);
/** Could k3_fs_write_atomic write there?  Makes the folder when it is not there. */
int k3_fs_check_target(const char *path);
/** Like mkdir -p. */
int k3_fs_mkdirs(const char *path);
/** Makes names in a folder durable. */
int k3_fs_sync_folder(const char *path);
/**
 * Removes a file, or a folder with all that is in it; absent is fine. Symbolic links are
 * removed, not followed. A path that ends in "/", "." or ".." is refused with K3_EINVAL.
 */
int k3_fs_remove_tree(const char *path);

#endif
