/* From a list of texts with images to .k3t files.
 *
 * The traps: placeholders and images that differ by one would shift every later image to another
 * text, so both are counted in each sample before anything of it is written.  A parsed line takes
 * dozens of times its bytes (empty lists side by side), so lines have a limit.  Images take long, so
 * the whole list is checked before the first of them.
 */
#define _GNU_SOURCE /* memmem */
#include "k3t_images.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "image.h"
#include "k3t_split.h"
#include "log.h"
#include "status.h"

#define MARK "<image>"
#define MARK_BYTES (sizeof(MARK) - 1)

enum { MOST_LINE_BYTES = 16 << 20, MOST_NAME_BYTES = 4095, MOST_FAULTS = 10 };

/* The list, and the line that is read. */
struct list {
	const char *path, *out;
	char *folder;
	struct k3i_map map;
	size_t next;	  /* byte of the map where the next line begins */
	const char *line; /* in the map, without a zero at its end */
	uint64_t number;  /* of the line, from 1 */
};

struct sample {
	json_t *root;
	const char *text;
	size_t text_bytes;
	json_t *images; /* NULL: none */
};

void
k3_k3t_images_options_init(struct k3_k3t_images_options *o)
{
	*o = (struct k3_k3t_images_options){.vocab = K3_K3T_BYTE_VOCAB,
					    .limit_patches = 65536,
					    .side_patches = K3_K3T_MAX_SIDE,
					    .holdout = 0.1};
}

static int
list_open(struct list *list, const char *path, const char *out)
{
	char *copy = strdup(path);
	int ret;

	*list = (struct list){.path = path, .out = out};
	list->folder = copy ? strdup(dirname(copy)) : NULL;
	free(copy);
	K3_TRY(list->folder ? K3_OK : K3_ENOMEM);
	K3_TRY(k3i_k3t_input_check(out, path));
	ret = k3i_map_open(&list->map, path);
out:
	return ret;
}

static void
list_close(struct list *list)
{
	k3i_map_close(&list->map);
	free(list->folder);
}

static int
line_refuse(const struct list *list, const char *what)
{
	k3_error("common", "%s:%" PRIu64 ": %s", list->path, list->number, what);
	return K3_EFORMAT;
}

/* The next line with its line feed; *n is 0 at the end. */
static int
line_read(struct list *list, size_t *n)
{
	size_t rest = list->map.bytes - list->next;

	*n = 0;
	if (rest == 0)
		return K3_OK;
	const char *line = (const char *)list->map.data + list->next,
		   *end = memchr(line, '\n', rest);
	*n = end ? (size_t)(end - line) + 1 : rest;
	list->line = line;
	list->next += *n;
	list->number++;
	if (*n <= MOST_LINE_BYTES)
		return K3_OK;
	k3_error("common", "%s:%" PRIu64 ": the line has %zu bytes, allowed are %d", list->path,
		 list->number, *n, MOST_LINE_BYTES);
	return K3_ELIMIT;
}

/* strspn would look for a zero, and a map has none. */
static bool
is_blank(const char *line, size_t n)
{
	size_t i = 0;

	while (i < n && strchr(" \t\r\n", line[i]) && line[i])
		i++;
	return i == n;
}

static size_t
marks_count(const struct sample *s)
{
	const char *at = s->text, *end = s->text + s->text_bytes;
	size_t n = 0;

	while ((at = memmem(at, (size_t)(end - at), MARK, MARK_BYTES))) {
		at += MARK_BYTES;
		n++;
	}
	return n;
}

static int
images_check(const struct list *list, const struct sample *s)
{
	size_t n = json_array_size(s->images), marks = marks_count(s);

	if (s->images && !json_is_array(s->images))
		return line_refuse(list, "\"images\" must be a list of file names");
	for (size_t i = 0; i < n; i++) {
		const json_t *name = json_array_get(s->images, i);
		size_t bytes = json_string_length(name);
		/* a name ends at a zero, what comes after would be ignored */
		if (bytes == 0 || bytes > MOST_NAME_BYTES ||
		    strlen(json_string_value(name)) != bytes) {
			k3_error("common",
				 "%s:%" PRIu64 ": entry %zu of \"images\" must be a file name of 1 "
				 "to %d bytes",
				 list->path, list->number, i + 1, MOST_NAME_BYTES);
			return K3_EFORMAT;
		}
	}
	if (marks != n) {
		k3_error("common",
			 "%s:%" PRIu64 ": the text of sample %" PRIu64 " has %zu times " MARK
			 ", but \"images\" has %zu entries",
			 list->path, list->number, list->number, marks, n);
		return K3_EFORMAT;
	}
	return K3_OK;
}

static int
keys_check(const struct list *list, json_t *root)
{
	const char *key;
	json_t *value;

	json_object_foreach(root, key, value)
	{
		if (strcmp(key, "text") == 0 || strcmp(key, "images") == 0)
			continue;
		k3_error("common",
			 "%s:%" PRIu64 ": key \"%s\", allowed are \"text\" and \"images\"",
			 list->path, list->number, key);
		return K3_EFORMAT;
	}
	return K3_OK;
}

/* Parses the line; root must be released in any case. */
static int
sample_parse(const struct list *list, size_t n, struct sample *s)
{
	json_error_t error;
	int ret = K3_EFORMAT;

	*s = (struct sample){0};
	if (is_blank(list->line, n))
		return line_refuse(list, "the line is empty, allowed: one JSON object a line");
	s->root = json_loadb(list->line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
	if (!s->root) {
		k3_error("common", "%s:%" PRIu64 ": column %d: %s", list->path, list->number,
			 error.column, error.text);
		return K3_EFORMAT;
	}
	if (!json_is_object(s->root))
		return line_refuse(list, "must be an object {\"text\": ..., \"images\": [...]}");
	K3_TRY(keys_check(list, s->root));
	const json_t *text = json_object_get(s->root, "text");
	if (!json_is_string(text))
		return line_refuse(list, "\"text\" must be there and a string");
	s->text = json_string_value(text);
	s->text_bytes = json_string_length(text);
	s->images = json_object_get(s->root, "images");
	if (s->text_bytes == 0)
		return line_refuse(list, "\"text\" is empty, so the sample has no token");
	ret = images_check(list, s);
out:
	return ret;
}

/* Path of an image, malloc'ed; NULL when memory is out. */
static char *
image_path(const struct list *list, const struct sample *s, size_t i)
{
	const char *name = json_string_value(json_array_get(s->images, i));

	return *name == '/' ? strdup(name) : k3i_path_join(list->folder, name);
}

/* Is it there, and no output? */
static int
image_check(const struct list *list, const struct sample *s, size_t i)
{
	char *path = image_path(list, s, i);
	int ret = path ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	K3_TRY(k3i_k3t_input_check(list->out, path));
	if (access(path, R_OK) != 0) {
		k3_error("common", "%s:%" PRIu64 ": image %zu, %s: %s", list->path, list->number,
			 i + 1, path, strerror(errno));
		ret = K3_EIO;
	}
out:
	free(path);
	return ret;
}

static int
image_put(const struct list *list, const struct sample *s, size_t i, struct k3_k3t_writer *w,
	  const struct k3_image_rule *rule, struct k3_k3t_images_count *count)
{
	char *path = image_path(list, s, i);
	struct k3_image image = {0};
	int ret = path ? K3_OK : K3_ENOMEM;

	K3_TRY(ret);
	ret = k3_image_read(&image, path, rule);
	if (ret != K3_OK)
		k3_info("common", "%s:%" PRIu64 ": that was image %zu of %zu of the sample",
			list->path, list->number, i + 1, json_array_size(s->images));
	K3_TRY(ret);
	K3_TRY(k3_k3t_writer_put_item(w, &image.grid, image.bytes));
	count->images++;
	count->patches += k3_grid_patches(&image.grid);
	count->tokens += k3_grid_merged(&image.grid, rule->merge_h, rule->merge_w);
out:
	k3_image_destroy(&image);
	free(path);
	return ret;
}

static int
sample_put(const struct list *list, const struct sample *s, struct k3_k3t_writer *w,
	   const struct k3_image_rule *rule, struct k3_k3t_images_count *count)
{
	const char *at = s->text, *end = s->text + s->text_bytes;
	int ret;

	for (size_t i = 0; i < json_array_size(s->images); i++) {
		const char *mark = memmem(at, (size_t)(end - at), MARK, MARK_BYTES);
		K3_TRY(k3i_k3t_put_bytes(w, at, (uint64_t)(mark - at)));
		count->tokens += (uint64_t)(mark - at);
		K3_TRY(image_put(list, s, i, w, rule, count));
		at = mark + MARK_BYTES;
	}
	K3_TRY(k3i_k3t_put_bytes(w, at, (uint64_t)(end - at)));
	count->tokens += (uint64_t)(end - at);
	count->samples++;
	ret = k3_k3t_writer_end_doc(w, NULL);
out:
	return ret;
}

/* With 0.1 the last of every ten; the first sample is never held out. */
static bool
is_held_out(uint64_t i, double holdout)
{
	return floor((double)(i + 1) * holdout) > floor((double)i * holdout);
}

/* Before the first image is read, which takes long: all lines, and that their images are there. The
 * first faults are told, and the list is at its begin again. */
static int
list_check(struct list *list, double holdout)
{
	struct sample s;
	size_t n, faults = 0, held = 0;
	int ret, first = K3_OK;

	for (;;) {
		K3_TRY(line_read(list, &n));
		if (n == 0 || faults >= MOST_FAULTS)
			break;
		ret = sample_parse(list, n, &s);
		for (size_t i = 0; ret == K3_OK && i < json_array_size(s.images); i++)
			ret = image_check(list, &s, i);
		json_decref(s.root);
		held += is_held_out(list->number - 1, holdout);
		faults += ret != K3_OK;
		first = first == K3_OK ? ret : first;
	}
	K3_TRY(first);
	if (list->number == 0) {
		k3_error("common", "%s: no sample, allowed: at least one line", list->path);
		K3_TRY(K3_EFORMAT);
	}
	if (holdout > 0 && held == 0) {
		char least[32] = "";
		if (list->number > 1)
			snprintf(least, sizeof(least), ", or at least %g",
				 1.0 / (double)list->number);
		k3_error("common",
			 "%s: of %" PRIu64 " samples none is held out with --holdout %g, allowed: "
			 "0%s",
			 list->path, list->number, holdout, least);
		K3_TRY(K3_EFORMAT);
	}
	list->next = 0;
	list->number = 0;
out:
	return ret;
}

static int
samples_put(struct list *list, const struct k3i_k3t_split *split,
	    const struct k3_k3t_images_options *o, const struct k3_image_rule *rule,
	    struct k3_k3t_images_count *count)
{
	struct sample s = {0};
	size_t n;
	int ret;

	for (;;) {
		K3_TRY(line_read(list, &n));
		if (n == 0)
			break;
		K3_TRY(sample_parse(list, n, &s));
		bool held = split->val && is_held_out(list->number - 1, o->holdout);
		K3_TRY(sample_put(list, &s, held ? split->val : split->train, rule, &count[held]));
		json_decref(s.root);
		s.root = NULL;
	}
out:
	json_decref(s.root);
	return ret;
}

int
k3_k3t_import_images(const char *path, const char *out, const struct k3_k3t_images_options *o,
		     struct k3_k3t_images_count *count)
{
	const struct k3_image_rule rule = {.patch = K3_K3T_PATCH,
					   .merge_h = K3_K3T_MERGE,
					   .merge_w = K3_K3T_MERGE,
					   .limit_patches = o->limit_patches,
					   .side_patches = o->side_patches};
	struct k3i_k3t_split split = {0};
	struct list list = {0};
	int ret;

	memset(count, 0, 2 * sizeof(*count));
	K3_TRY(list_open(&list, path, out));
	K3_TRY(list_check(&list, o->holdout));
	K3_TRY(k3i_k3t_split_create(&split, out, o->vocab, o->holdout));
	K3_TRY(samples_put(&list, &split, o, &rule, count));
	ret = k3i_k3t_split_publish(&split);
out:
	k3i_k3t_split_destroy(&split);
	list_close(&list);
	return ret;
}
