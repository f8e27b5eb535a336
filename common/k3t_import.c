/* From text files and token dumps to .k3t files.
 *
 * The trap: the output may lie in the folder that is read, so the list of files is complete before
 * the first output file is created.
 */
#include "k3t_import.h"

#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "k3t_split.h"
#include "log.h"
#include "status.h"

struct path_list {
	char **paths;
	size_t n, room;
};

static int
list_add(struct path_list *list, const char *path)
{
	if (list->n == list->room) {
		size_t room = 2 * list->room + 16;
		char **grown = realloc(list->paths, room * sizeof(*grown));
		if (!grown)
			return K3_ENOMEM;
		list->paths = grown;
		list->room = room;
	}
	list->paths[list->n] = strdup(path);
	if (!list->paths[list->n])
		return K3_ENOMEM;
	list->n++;
	return K3_OK;
}

static void
list_free(struct path_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		free(list->paths[i]);
	free(list->paths);
}

static int
by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int
entry_add(struct path_list *list, const FTSENT *entry)
{
	switch (entry->fts_info) {
	case FTS_F:
		return list_add(list, entry->fts_path);
	case FTS_D:
	case FTS_DP:
		return K3_OK;
	case FTS_SL:
	case FTS_SLNONE:
		k3_log(entry->fts_level == 0 ? K3_LOG_WARN : K3_LOG_DEBUG, "common",
		       "%s: skipped, a symbolic link", entry->fts_path);
		return K3_OK;
	case FTS_DEFAULT:
		k3_warn("common", "%s: skipped, not a regular file", entry->fts_path);
		return K3_OK;
	default:
		k3_error("common", "%s: %s", entry->fts_path, strerror(entry->fts_errno));
		return K3_EIO;
	}
}

/* All regular files at and below path, in sorted order. */
static int
files_collect(struct path_list *list, const char *path)
{
	char *copy = strdup(path);
	char *const roots[] = {copy, NULL};
	FTS *tree = copy ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name) : NULL;
	int ret = K3_OK;

	if (!tree) {
		k3_error("common", "%s: %s", path, strerror(errno));
		ret = K3_EIO;
		goto out;
	}
	for (;;) {
		errno = 0;
		const FTSENT *entry = fts_read(tree);
		if (!entry && errno != 0) {
			k3_error("common", "%s: %s", path, strerror(errno));
			ret = K3_EIO;
		}
		if (!entry)
			break;
		K3_TRY(entry_add(list, entry));
	}
out:
	if (tree)
		fts_close(tree);
	free(copy);
	return ret;
}

static int
doc_put(struct k3_k3t_writer *w, const unsigned char *data, uint64_t n)
{
	int ret = k3i_k3t_put_bytes(w, data, n);

	return ret == K3_OK ? k3_k3t_writer_end_doc(w, NULL) : ret;
}

/* One file: its beginning to train, its end to val. */
static int
file_import(const struct k3i_k3t_split *split, const char *path, double holdout)
{
	struct k3i_map map;
	int ret;

	K3_TRY(k3i_map_open(&map, path));
	if (map.bytes == 0)
		k3_warn("common", "%s: skipped, the file is empty", path);
	uint64_t held = split->val ? (uint64_t)((double)map.bytes * holdout) : 0;
	K3_TRY(doc_put(split->train, map.data, map.bytes - held));
	if (held > 0)
		K3_TRY(doc_put(split->val, map.data + map.bytes - held, held));
out:
	k3i_map_close(&map);
	return ret;
}

char *
k3_k3t_val_path(const char *out)
{
	size_t n = strlen(out);

	if (n < 5 || strcmp(out + n - 4, ".k3t") != 0 || out[n - 5] == '/') {
		k3_error("common", "output %s: the name must end in .k3t", out);
		return NULL;
	}
	char *path = malloc(n + sizeof(".val"));
	if (path)
		strcpy(strcpy(path, out) + n - 4, ".val.k3t");
	return path;
}

int
k3_k3t_import_bytes(const char *const *paths, size_t n_paths, const char *out, uint32_t vocab,
		    double holdout)
{
	struct path_list list = {0};
	struct k3i_k3t_split split = {0};
	int ret = K3_OK;

	for (size_t i = 0; i < n_paths; i++)
		K3_TRY(files_collect(&list, paths[i]));
	for (size_t i = 0; i < list.n; i++)
		K3_TRY(k3i_k3t_input_check(out, list.paths[i]));
	K3_TRY(k3i_k3t_split_create(&split, out, vocab, holdout));
	for (size_t i = 0; i < list.n; i++)
		K3_TRY(file_import(&split, list.paths[i], holdout));
	ret = k3i_k3t_split_publish(&split);
out:
	k3i_k3t_split_destroy(&split);
	list_free(&list);
	return ret;
}

static uint32_t
raw_token(const struct k3i_map *map, uint32_t token_bytes, uint64_t i)
{
	uint16_t half;
	uint32_t word;

	if (token_bytes == 2) {
		memcpy(&half, map->data + 2 * i, sizeof(half));
		return half;
	}
	memcpy(&word, map->data + 4 * i, sizeof(word));
	return word;
}

/* Tokens first .. end-1 of the dump as one document. */
static int
raw_doc_put(struct k3_k3t_writer *w, const struct k3i_map *map, uint32_t token_bytes,
	    uint64_t first, uint64_t end)
{
	int ret = K3_OK;

	for (uint64_t i = first; i < end && ret == K3_OK; i++) {
		uint32_t token = raw_token(map, token_bytes, i);
		ret = k3_k3t_writer_put(w, &token, NULL, 1);
	}
	return ret;
}

static int
raw_put(struct k3_k3t_writer *w, const struct k3i_map *map, const char *path, uint32_t token_bytes,
	const struct k3_k3t_ids *ids)
{
	uint64_t n = map->bytes / token_bytes, first = 0, n_empty = 0;
	int ret = K3_OK;

	for (uint64_t i = 0; i < n; i++)
		if (raw_token(map, token_bytes, i) >= ids->vocab) {
			k3_error("common",
				 "%s: token %" PRIu64 " is %" PRIu32 ", allowed are 0 to %" PRIu32,
				 path, i, raw_token(map, token_bytes, i), ids->vocab - 1);
			return K3_EFORMAT;
		}
	for (uint64_t i = 0; i <= n && first < n; i++) {
		bool kept;
		if (i < n && raw_token(map, token_bytes, i) != ids->eos)
			continue;
		/* NO_ID is above every id, so without bos nothing is dropped */
		first += first < i && raw_token(map, token_bytes, first) == ids->bos;
		K3_TRY(raw_doc_put(w, map, token_bytes, first, i));
		K3_TRY(k3_k3t_writer_end_doc(w, &kept));
		n_empty += !kept;
		first = i + 1;
	}
	if (n_empty)
		k3_warn("common", "%s: skipped %" PRIu64 " documents without tokens", path,
			n_empty);
out:
	return ret;
}

int
k3_k3t_import_raw(const char *path, uint32_t token_bytes, const char *out,
		  const struct k3_k3t_ids *ids)
{
	struct k3_k3t_writer *w = NULL;
	struct k3i_map map = {0};
	int ret;

	K3_TRY(k3i_k3t_input_check(out, path));
	K3_TRY(k3i_map_open(&map, path));
	if (map.bytes % token_bytes != 0) {
		k3_error("common", "%s: %zu bytes, allowed: a multiple of %" PRIu32, path,
			 map.bytes, token_bytes);
		ret = K3_EFORMAT;
		goto out;
	}
	K3_TRY(k3_k3t_writer_create(&w, out, ids));
	K3_TRY(raw_put(w, &map, path, token_bytes, ids));
	K3_TRY(k3_k3t_writer_finish(w));
	ret = k3_k3t_writer_publish(w);
out:
	k3_k3t_writer_destroy(w);
	k3i_map_close(&map);
	return ret;
}
