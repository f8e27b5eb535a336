/* Writing checkpoints: declaration and layout.
 *
 * The idea: the layout is known before the first byte of data, so every file gets its header and
 * its space at once, and a full disk shows before hours of work.  Files carry the ending .partial
 * until they are complete: a killed run leaves nothing that looks like a checkpoint.  The trap:
 * the format asks for aligned data, so inside a shard wide elements come first.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "log.h"
#include "safetensors_file.h"
#include "safetensors_writer.h"
#include "status.h"

static const uint64_t default_shard_bytes = UINT64_C(5) << 30;
enum { MAX_SHARDS = 99999 };

int
k3_st_writer_create(struct k3_st_writer **out, const char *dir, const char *base,
                    uint64_t shard_bytes)
{
	struct stat info;
	struct k3_st_writer *w = NULL;

	*out = NULL;
	if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode)) {
		k3_error("common", "%s: must be a folder that exists", dir);
		return K3_EIO;
	}
	if (base[0] == '\0' || strchr(base, '/')) {
		k3_error("common", "%s: \"%s\" is no name for a checkpoint file", dir, base);
		return K3_EINVAL;
	}
	w = calloc(1, sizeof(*w));
	if (!w)
		return K3_ENOMEM;
	w->dir = strdup(dir);
	w->base = strdup(base);
	w->shard_bytes = shard_bytes ? shard_bytes : default_shard_bytes;
	w->metadata = json_object();
	w->numbers = json_object();
	if (!w->dir || !w->base || !w->metadata || !w->numbers) {
		k3_st_writer_destroy(w);
		return K3_ENOMEM;
	}
	*out = w;
	return K3_OK;
}

static int
late_check(const struct k3_st_writer *w, const char *what)
{
	if (!w->begun)
		return K3_OK;
	k3_error("common", "%s/%s: %s comes too late, the headers have been written", w->dir,
	         w->base, what);
	return K3_EINVAL;
}

int
k3_st_writer_metadata(struct k3_st_writer *w, const char *key, const char *value)
{
	int ret = late_check(w, key);

	if (ret == K3_OK && json_object_set_new(w->metadata, key, json_string(value)) != 0) {
		k3_error("common", "%s/%s: metadata %s must be UTF-8 text", w->dir, w->base, key);
		ret = K3_EINVAL;
	}
	return ret;
}

static int
declaration_check(const struct k3_st_writer *w, const char *name, enum k3_dtype dtype,
                  uint32_t n_dims)
{
	const char *fault = NULL;

	if (name[0] == '\0' || strcmp(name, "__metadata__") == 0)
		fault = "is no name for a tensor";
	else if (json_object_get(w->numbers, name))
		fault = "was declared twice";
	else if (dtype != K3_F32 && dtype != K3_BF16 && dtype != K3_F64)
		fault = "has a dtype other than F32, BF16 and F64";
	else if (n_dims > K3_ST_MAX_DIMS)
		fault = "has more than 8 dimensions";
	if (!fault)
		return late_check(w, name);
	k3_error("common", "%s/%s: tensor \"%s\" %s", w->dir, w->base, name, fault);
	return K3_EINVAL;
}

int
k3_st_writer_declare(struct k3_st_writer *w, const char *name, enum k3_dtype dtype, uint32_t n_dims,
                     const uint64_t *dims)
{
	int ret = declaration_check(w, name, dtype, n_dims);
	uint64_t bytes = k3_dtype_bytes(dtype);

	if (ret != K3_OK)
		return ret;
	if (w->n_entries == w->entries_room) {
		size_t room = 2 * w->entries_room + 16;
		struct k3i_st_entry *grown = realloc(w->entries, room * sizeof(*grown));
		if (!grown)
			return K3_ENOMEM;
		w->entries = grown;
		w->entries_room = room;
	}
	struct k3i_st_entry *e = &w->entries[w->n_entries];
	*e = (struct k3i_st_entry){ .dtype = dtype, .n_dims = n_dims, .n_elems = 1 };
	for (uint32_t i = 0; i < n_dims; i++) {
		e->dims[i] = dims[i];
		if (dims[i] > INT64_MAX || __builtin_mul_overflow(bytes, dims[i], &bytes)
		    || bytes > INT64_MAX / 2) {
			k3_error("common", "%s/%s: tensor %s: its bytes overflow 64 bits", w->dir,
			         w->base, name);
			return K3_EINVAL;
		}
		e->n_elems *= dims[i];
	}
	if (json_object_set_new(w->numbers, name, json_integer((json_int_t)w->n_entries)) != 0) {
		k3_error("common", "%s/%s: the name of tensor %s must be UTF-8", w->dir, w->base,
		         name);
		return K3_EINVAL;
	}
	e->name = strdup(name);
	if (!e->name) {
		json_object_del(w->numbers, name);
		return K3_ENOMEM;
	}
	w->n_entries++;
	return K3_OK;
}

/* Cuts the entries into shards, in the order of declaration; a tensor is never cut. */
static int
shards_lay_out(struct k3_st_writer *w)
{
	uint64_t used = 0;

	w->shards = calloc(w->n_entries + 1, sizeof(*w->shards));
	if (!w->shards)
		return K3_ENOMEM;
	w->shards[0].fd = -1;
	w->n_shards = 1;
	for (size_t i = 0; i < w->n_entries; i++) {
		struct k3i_st_entry *e = &w->entries[i];
		uint64_t bytes = e->n_elems * k3_dtype_bytes(e->dtype);
		struct k3i_st_shard *s = &w->shards[w->n_shards - 1];
		if (i > s->first && (used > w->shard_bytes || bytes > w->shard_bytes - used)) {
			s[1] = (struct k3i_st_shard){ .first = i, .fd = -1 };
			s++;
			w->n_shards++;
			used = 0;
		}
		e->shard = w->n_shards - 1;
		s->end = i + 1;
		used += bytes;
	}
	if (w->n_shards > MAX_SHARDS) {
		k3_error("common",
		         "%s/%s: %zu shards, at most %d are allowed; raise the size of a shard",
		         w->dir, w->base, w->n_shards, MAX_SHARDS);
		return K3_ELIMIT;
	}
	return K3_OK;
}

static int
shard_name(struct k3_st_writer *w, size_t i)
{
	struct k3i_st_shard *s = &w->shards[i];
	size_t room = strlen(w->dir) + strlen(w->base) + 64;

	s->path = malloc(room);
	if (!s->path)
		return K3_ENOMEM;
	if (w->n_shards == 1)
		snprintf(s->path, room, "%s/%s.safetensors", w->dir, w->base);
	else
		snprintf(s->path, room, "%s/%s-%05zu-of-%05zu.safetensors", w->dir, w->base, i + 1,
		         w->n_shards);
	s->partial = k3i_path_partial(s->path);
	return s->partial ? K3_OK : K3_ENOMEM;
}

static json_t *
entry_json(const struct k3i_st_entry *e, uint64_t begin, uint64_t end)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < e->n_dims; i++)
		json_array_append_new(shape, json_integer((json_int_t)e->dims[i]));
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", k3_dtype_name(e->dtype), "shape", shape,
	                 "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The header of a shard, NULL when memory is out; sets entries' positions relative to the data. */
static char *
shard_header(struct k3_st_writer *w, const struct k3i_st_shard *s, uint64_t *data_bytes)
{
	json_t *root = json_object();
	uint64_t at = 0;
	bool failed = false;

	if (json_object_size(w->metadata) > 0)
		failed = json_object_set(root, "__metadata__", w->metadata) != 0;
	for (size_t bytes = 8; bytes >= 1; bytes /= 2)
		for (size_t i = s->first; i < s->end; i++) {
			struct k3i_st_entry *e = &w->entries[i];
			if (k3_dtype_bytes(e->dtype) != bytes)
				continue;
			e->at = at;
			at += e->n_elems * bytes;
			failed |= json_object_set_new(root, e->name, entry_json(e, e->at, at)) != 0;
		}
	*data_bytes = at;
	char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
	json_decref(root);
	return text;
}

/* Takes the disk space now; a file system that cannot promise space gets the length alone. */
static int
space_reserve(const struct k3i_st_shard *s, uint64_t bytes)
{
	int error = posix_fallocate(s->fd, 0, (off_t)bytes);

	if (error == EOPNOTSUPP || error == EINVAL)
		error = ftruncate(s->fd, (off_t)bytes) == 0 ? 0 : errno;
	if (error == 0)
		return K3_OK;
	k3_error("common", "%s: cannot reserve %" PRIu64 " bytes: %s", s->partial, bytes,
	         strerror(error));
	return K3_EIO;
}

static int
shard_begin(struct k3_st_writer *w, struct k3i_st_shard *s)
{
	static const char spaces[] = "       ";
	uint64_t data_bytes;
	char *text = shard_header(w, s, &data_bytes);
	int ret = K3_ENOMEM;

	if (!text)
		goto out;
	size_t text_bytes = strlen(text);
	uint64_t header_bytes = (text_bytes + 7) / 8 * 8;
	if (header_bytes > K3I_ST_MAX_HEADER_BYTES) {
		k3_error("common", "%s: a header of %" PRIu64 " bytes, at most %d is allowed; use "
		         "smaller shards", s->path, header_bytes, K3I_ST_MAX_HEADER_BYTES);
		ret = K3_ELIMIT;
		goto out;
	}
	for (size_t i = s->first; i < s->end; i++)
		w->entries[i].at += 8 + header_bytes;
	s->fd = k3i_file_create(s->partial);
	if (s->fd < 0) {
		ret = K3_EIO;
		goto out;
	}
	K3_TRY(space_reserve(s, 8 + header_bytes + data_bytes));
	K3_TRY(k3i_write_at(s->fd, s->partial, &header_bytes, 8, 0));
	K3_TRY(k3i_write_at(s->fd, s->partial, text, text_bytes, 8));
	ret = k3i_write_at(s->fd, s->partial, spaces, header_bytes - text_bytes, 8 + text_bytes);
out:
	free(text);
	return ret;
}

int
k3_st_writer_begin(struct k3_st_writer *w)
{
	int ret;

	K3_TRY(late_check(w, "a second beginning"));
	w->begun = true;
	K3_TRY(shards_lay_out(w));
	for (size_t i = 0; i < w->n_shards; i++) {
		K3_TRY(shard_name(w, i));
		K3_TRY(shard_begin(w, &w->shards[i]));
	}
out:
	return ret;
}

void
k3_st_writer_destroy(struct k3_st_writer *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->n_shards; i++) {
		struct k3i_st_shard *s = &w->shards[i];
		if (s->fd >= 0) {
			close(s->fd);
			unlink(s->partial);
		}
		free(s->path);
		free(s->partial);
	}
	for (size_t i = 0; i < w->n_entries; i++) {
		free(w->entries[i].name);
		free(w->entries[i].spans);
	}
	free(w->shards);
	free(w->entries);
	json_decref(w->metadata);
	json_decref(w->numbers);
	free(w->dir);
	free(w->base);
	free(w);
}
