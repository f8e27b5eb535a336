/* Checkpoints: one safetensors file, or the shards that an index names.
 *
 * The trap: the index comes from outside, and a shard name such as ../x or /etc/passwd would open
 * files that nobody meant.  A shard name is a plain file name, or the checkpoint is refused.
 */
#include "safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "log.h"
#include "safetensors_file.h"
#include "status.h"

struct k3_st {
	struct k3i_st_file *files;
	size_t n_files;
	const struct k3_st_tensor **at;      /* in file order */
	const struct k3_st_tensor **by_name; /* sorted */
	size_t n_tensors;
};

static int
name_compare(const void *a, const void *b)
{
	const struct k3_st_tensor *const *s = a, *const *t = b;

	return strcmp((*s)->name, (*t)->name);
}

/* Makes the list of all tensors; a name in two shards is refused. */
static int
tensors_collect(struct k3_st *st, const char *path)
{
	size_t n = 0;

	for (size_t i = 0; i < st->n_files; i++)
		n += st->files[i].n_tensors;
	st->at = malloc((n + 1) * sizeof(*st->at));
	st->by_name = malloc((n + 1) * sizeof(*st->by_name));
	if (!st->at || !st->by_name)
		return K3_ENOMEM;
	for (size_t i = 0; i < st->n_files; i++)
		for (size_t j = 0; j < st->files[i].n_tensors; j++)
			st->at[st->n_tensors++] = &st->files[i].tensors[j];
	memcpy(st->by_name, st->at, n * sizeof(*st->at));
	qsort(st->by_name, n, sizeof(*st->by_name), name_compare);
	for (size_t i = 1; i < n; i++)
		if (strcmp(st->by_name[i - 1]->name, st->by_name[i]->name) == 0) {
			k3_error("common", "%s: tensor %s is in two shards", path,
			         st->by_name[i]->name);
			return K3_EFORMAT;
		}
	return K3_OK;
}

static int
single_open(struct k3_st *st, const char *path)
{
	st->files = calloc(1, sizeof(*st->files));
	if (!st->files)
		return K3_ENOMEM;
	st->n_files = 1;
	return k3i_st_file_open(&st->files[0], path);
}

static int
shard_name_check(const char *index_path, const char *key, const json_t *shard)
{
	const char *name = json_string_value(shard);

	if (name && name[0] != '\0' && !strpbrk(name, "/\\") && strcmp(name, "..") != 0
	    && strcmp(name, ".") != 0)
		return K3_OK;
	k3_error("common",
	         "%s: weight_map: %s: the shard \"%s\" must be a file name without a folder",
	         index_path, key, name ? name : "(not a string)");
	return K3_EFORMAT;
}

/* Opens every shard once, in the order in which the index first names them; numbers gets
 * shard name -> its place in st->files. */
static int
shards_open(struct k3_st *st, const char *dir, const char *index_path, json_t *weight_map,
            json_t *numbers)
{
	const char *key;
	json_t *shard;
	int ret = K3_OK;

	json_object_foreach(weight_map, key, shard) {
		K3_TRY(shard_name_check(index_path, key, shard));
		const char *name = json_string_value(shard);
		if (!json_object_get(numbers, name) &&
		    json_object_set_new(numbers, name,
		                        json_integer((json_int_t)json_object_size(numbers))) != 0)
			return K3_ENOMEM;
	}
	st->files = calloc(json_object_size(numbers) + 1, sizeof(*st->files));
	if (!st->files)
		return K3_ENOMEM;
	json_object_foreach(numbers, key, shard) {
		char *path = k3i_path_join(dir, key);
		if (!path)
			return K3_ENOMEM;
		ret = k3i_st_file_open(&st->files[st->n_files++], path);
		free(path);
		if (ret != K3_OK)
			goto out;
	}
out:
	return ret;
}

/* Index and shards must name the same tensors in the same places. */
static int
index_compare(const struct k3_st *st, const char *index_path, json_t *weight_map, json_t *numbers)
{
	const char *key;
	json_t *shard;

	for (size_t i = 0; i < st->n_tensors; i++)
		if (!json_object_get(weight_map, st->at[i]->name)) {
			k3_error("common", "%s: tensor %s is in a shard, but not in weight_map",
			         index_path, st->at[i]->name);
			return K3_EFORMAT;
		}
	json_object_foreach(weight_map, key, shard) {
		const char *name = json_string_value(shard);
		const struct k3i_st_file *f =
			&st->files[json_integer_value(json_object_get(numbers, name))];
		const struct k3_st_tensor *t = k3_st_find(st, key);
		if (!t || t < f->tensors || t >= f->tensors + f->n_tensors) {
			k3_error("common", "%s: weight_map: tensor %s is not in %s", index_path,
			         key, name);
			return K3_EFORMAT;
		}
	}
	return K3_OK;
}

static int
sharded_open(struct k3_st *st, const char *dir, const char *index_path)
{
	struct k3i_map map;
	json_t *root = NULL, *numbers = json_object();
	int ret = k3i_map_open(&map, index_path);

	if (ret != K3_OK)
		goto out;
	ret = K3_EFORMAT;
	root = k3i_json_parse(index_path, map.data ? (const char *)map.data : "", map.bytes);
	if (!root)
		goto out;
	json_t *weight_map = json_object_get(root, "weight_map");
	if (!json_is_object(weight_map) || json_object_size(weight_map) == 0) {
		k3_error("common",
		         "%s: weight_map must be an object that names a shard for each tensor",
		         index_path);
		goto out;
	}
	K3_TRY(shards_open(st, dir, index_path, weight_map, numbers));
	K3_TRY(tensors_collect(st, index_path));
	ret = index_compare(st, index_path, weight_map, numbers);
out:
	json_decref(root);
	json_decref(numbers);
	k3i_map_close(&map);
	return ret;
}

static int
folder_open(struct k3_st *st, const char *dir)
{
	char *index_path = k3i_path_join(dir, "model.safetensors.index.json");
	char *single = k3i_path_join(dir, "model.safetensors");
	int ret = K3_ENOMEM;

	if (!index_path || !single)
		goto out;
	if (access(index_path, F_OK) == 0) {
		ret = sharded_open(st, dir, index_path);
	} else if (access(single, F_OK) == 0) {
		K3_TRY(single_open(st, single));
		ret = tensors_collect(st, single);
	} else {
		k3_error("common", "%s: holds neither model.safetensors.index.json nor "
		         "model.safetensors", dir);
		ret = K3_EIO;
	}
out:
	free(index_path);
	free(single);
	return ret;
}

static bool
is_index(const char *path)
{
	static const char ending[] = ".index.json";
	size_t n = strlen(path);

	return n >= sizeof(ending) && strcmp(path + n - (sizeof(ending) - 1), ending) == 0;
}

/* The shards lie beside their index. */
static int
index_open(struct k3_st *st, const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) : strdup(".");
	int ret = dir ? sharded_open(st, dir, path) : K3_ENOMEM;

	free(dir);
	return ret;
}

int
k3_st_open(struct k3_st **out, const char *path)
{
	struct k3_st *st = calloc(1, sizeof(*st));
	struct stat info;
	int ret = K3_ENOMEM;

	*out = NULL;
	if (!st)
		goto out;
	if (stat(path, &info) != 0) {
		k3_error("common", "%s: %s", path, strerror(errno));
		ret = K3_EIO;
		goto out;
	}
	if (S_ISDIR(info.st_mode)) {
		K3_TRY(folder_open(st, path));
	} else if (is_index(path)) {
		K3_TRY(index_open(st, path));
	} else {
		K3_TRY(single_open(st, path));
		K3_TRY(tensors_collect(st, path));
	}
	*out = st;
	st = NULL;
	ret = K3_OK;
out:
	if (ret == K3_ENOMEM)
		k3_error("common", "%s: out of memory", path);
	k3_st_close(st);
	return ret;
}

void
k3_st_close(struct k3_st *st)
{
	if (!st)
		return;
	for (size_t i = 0; i < st->n_files; i++)
		k3i_st_file_close(&st->files[i]);
	free(st->files);
	free(st->at);
	free(st->by_name);
	free(st);
}

size_t
k3_st_count(const struct k3_st *st)
{
	return st->n_tensors;
}

const struct k3_st_tensor *
k3_st_at(const struct k3_st *st, size_t i)
{
	return i < st->n_tensors ? st->at[i] : NULL;
}

const struct k3_st_tensor *
k3_st_find(const struct k3_st *st, const char *name)
{
	const struct k3_st_tensor wanted = { .name = name }, *key = &wanted;
	const struct k3_st_tensor *const *found =
		bsearch(&key, st->by_name, st->n_tensors, sizeof(*st->by_name), name_compare);

	return found ? *found : NULL;
}

const char *
k3_st_metadata(const struct k3_st *st, const char *key)
{
	return json_string_value(json_object_get(st->n_files ? st->files[0].metadata : NULL, key));
}
