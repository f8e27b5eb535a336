/* Writing checkpoints: data and the end.
 *
 * Every element must be given exactly once: a checkpoint in which some experts were never written
 * would load without a word.  The trap of the end: a reader prefers an index to a single file, so
 * what an earlier save in the other form left is removed, after the new form is complete.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "fs.h"
#include "log.h"
#include "safetensors_writer.h"
#include "status.h"

enum { PIECE_ELEMS = 4096, MAX_LISTED = 20 };

/* Adds first .. end-1 to what has been written. */
static int
span_add(const struct k3_st_writer *w, struct k3i_st_entry *e, uint64_t first, uint64_t end)
{
	size_t at = e->n_spans;

	while (at > 0 && e->spans[at - 1].first >= end)
		at--;
	/* spans[at-1] begins before end; the one at `at`, if any, begins at end or later */
	if (at > 0 && e->spans[at - 1].end > first) {
		k3_error("common", "%s/%s: tensor %s: element %" PRIu64 " was given twice", w->dir,
		         w->base, e->name,
		         e->spans[at - 1].first > first ? e->spans[at - 1].first : first);
		return K3_EEXIST;
	}
	bool left = at > 0 && e->spans[at - 1].end == first;
	bool right = at < e->n_spans && e->spans[at].first == end;
	if (left && right) {
		e->spans[at - 1].end = e->spans[at].end;
		memmove(&e->spans[at], &e->spans[at + 1],
		        (e->n_spans - at - 1) * sizeof(*e->spans));
		e->n_spans--;
	} else if (left) {
		e->spans[at - 1].end = end;
	} else if (right) {
		e->spans[at].first = first;
	} else {
		if (e->n_spans == e->spans_room) {
			size_t room = 2 * e->spans_room + 1;
			struct k3i_st_span *grown = realloc(e->spans, room * sizeof(*grown));
			if (!grown)
				return K3_ENOMEM;
			e->spans = grown;
			e->spans_room = room;
		}
		memmove(&e->spans[at + 1], &e->spans[at], (e->n_spans - at) * sizeof(*e->spans));
		e->spans[at] = (struct k3i_st_span){ first, end };
		e->n_spans++;
	}
	return K3_OK;
}

/* To the nearest, ties to the even one; a NaN stays one. */
static uint16_t
bf16_from(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void
piece_convert(enum k3_dtype dtype, const float *data, size_t n, void *out)
{
	uint16_t *half = out;
	double *wide = out;

	if (dtype == K3_F32)
		memcpy(out, data, n * sizeof(*data));
	else if (dtype == K3_BF16)
		for (size_t i = 0; i < n; i++)
			half[i] = bf16_from(data[i]);
	else
		for (size_t i = 0; i < n; i++)
			wide[i] = (double)data[i];
}

int
k3_st_writer_put_f32(struct k3_st_writer *w, const char *name, uint64_t first, uint64_t n,
                     const float *data)
{
	double piece[PIECE_ELEMS];
	const json_t *number = json_object_get(w->numbers, name);

	if (!number) {
		k3_error("common", "%s/%s: tensor %s was not declared", w->dir, w->base, name);
		return K3_ENOENT;
	}
	struct k3i_st_entry *e = &w->entries[json_integer_value(number)];
	const struct k3i_st_shard *s = w->begun ? &w->shards[e->shard] : NULL;
	if (!s || s->fd < 0) {
		k3_error("common", "%s/%s: tensor %s: no file is open for its data", w->dir,
		         w->base, name);
		return K3_EINVAL;
	}
	if (first > e->n_elems || n > e->n_elems - first) {
		k3_error("common",
		         "%s/%s: tensor %s: elements %" PRIu64 " and the next %" PRIu64
		         " were given, it has %" PRIu64,
		         w->dir, w->base, name, first, n, e->n_elems);
		return K3_EINVAL;
	}
	int ret = n > 0 ? span_add(w, e, first, first + n) : K3_OK;
	size_t bytes = k3_dtype_bytes(e->dtype);
	for (uint64_t done = 0; done < n && ret == K3_OK; done += PIECE_ELEMS) {
		size_t part = n - done < PIECE_ELEMS ? (size_t)(n - done) : PIECE_ELEMS;
		piece_convert(e->dtype, data + done, part, piece);
		ret = k3i_write_at(s->fd, s->partial, piece, part * bytes,
		                   e->at + (first + done) * bytes);
	}
	return ret;
}

static int
completeness_check(const struct k3_st_writer *w)
{
	size_t missing = 0;

	for (size_t i = 0; i < w->n_entries; i++) {
		const struct k3i_st_entry *e = &w->entries[i];
		uint64_t written = 0;
		for (size_t j = 0; j < e->n_spans; j++)
			written += e->spans[j].end - e->spans[j].first;
		if (written == e->n_elems)
			continue;
		if (missing++ < MAX_LISTED)
			k3_error("common", "%s/%s: tensor %s: %" PRIu64 " of %" PRIu64
			         " elements were never given", w->dir, w->base, e->name,
			         e->n_elems - written, e->n_elems);
	}
	if (missing > MAX_LISTED)
		k3_error("common", "%s/%s: and %zu more tensors", w->dir, w->base,
		         missing - MAX_LISTED);
	return missing ? K3_EINVAL : K3_OK;
}

/* The index text, malloc'ed; NULL when memory is out. */
static char *
index_text(const struct k3_st_writer *w)
{
	json_t *map = json_object();
	uint64_t total = 0;
	bool failed = false;

	for (size_t i = 0; i < w->n_entries; i++) {
		const struct k3i_st_entry *e = &w->entries[i];
		const char *path = w->shards[e->shard].path;
		total += e->n_elems * k3_dtype_bytes(e->dtype);
		failed |=
			json_object_set_new(map, e->name, json_string(strrchr(path, '/') + 1)) != 0;
	}
	json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total,
	                         "weight_map", map);
	char *text = failed || !root ? NULL : json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	return text;
}

static int
index_write(const struct k3_st_writer *w, const char *path)
{
	char *text = index_text(w);
	int ret = text ? k3_fs_write_atomic(path, text, strlen(text)) : K3_ENOMEM;

	free(text);
	return ret;
}

/* Removes what an earlier save in the other form left. */
static int
stale_remove(const char *path)
{
	if (unlink(path) == 0 || errno == ENOENT)
		return K3_OK;
	k3_error("common", "%s: cannot remove the earlier checkpoint: %s", path, strerror(errno));
	return K3_EIO;
}

int
k3_st_writer_finish(struct k3_st_writer *w)
{
	size_t room = strlen(w->dir) + strlen(w->base) + 64;
	char *index = malloc(room), *single = malloc(room);
	int ret = K3_ENOMEM;

	if (!index || !single)
		goto out;
	snprintf(index, room, "%s/%s.safetensors.index.json", w->dir, w->base);
	snprintf(single, room, "%s/%s.safetensors", w->dir, w->base);
	if (!w->begun) {
		k3_error("common", "%s: nothing was begun", single);
		ret = K3_EINVAL;
		goto out;
	}
	K3_TRY(completeness_check(w));
	for (size_t i = 0; i < w->n_shards; i++) {
		struct k3i_st_shard *s = &w->shards[i];
		K3_TRY(k3i_file_publish(s->fd, s->partial, s->path));
		ret = close(s->fd) == 0 ? K3_OK : K3_EIO;
		s->fd = -1;
		if (ret != K3_OK) {
			k3_error("common", "%s: %s", s->path, strerror(errno));
			goto out;
		}
	}
	if (w->n_shards > 1)
		K3_TRY(index_write(w, index));
	K3_TRY(stale_remove(w->n_shards > 1 ? single : index));
	ret = k3i_folder_sync(w->dir);
out:
	free(index);
	free(single);
	return ret;
}
