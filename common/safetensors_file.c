/* One safetensors file: 8 bytes header length, JSON header, data.
 *
 * The idea: nothing is allocated in a size that the file claims; the mapping is already there and
 * the header length must fit into it.  The trap: a header length of 640 looks like the start of a
 * pickle, so the guesses about what a file might be are made only after its length was refused.
 */
#include "safetensors_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "status.h"

static const char metadata_key[] = "__metadata__";

/* The key whose closing quote is the last byte of text. */
static const char *
last_key(const char *text, size_t end, int *key_bytes)
{
	size_t begin = end > 0 ? end - 1 : 0;

	while (begin > 0 && !(text[begin - 1] == '"' && (begin < 2 || text[begin - 2] != '\\')))
		begin--;
	*key_bytes = (int)(end > begin ? end - 1 - begin : 0);
	return text + begin;
}

json_t *
k3i_json_parse(const char *path, const char *text, size_t bytes)
{
	json_error_t error;
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);

	if (!root && json_error_code(&error) == json_error_duplicate_key) {
		int key_bytes;
		const char *key = last_key(text, (size_t)error.position, &key_bytes);
		k3_error("common", "%s: duplicate key %.*s", path, key_bytes, key);
	} else if (!root) {
		k3_error("common", "%s: JSON, line %d, byte %d: %s", path, error.line,
		         error.position, error.text);
	} else if (!json_is_object(root)) {
		k3_error("common", "%s: the JSON text must be an object", path);
		json_decref(root);
		root = NULL;
	}
	return root;
}

/* What a file might be whose header length is impossible. */
static const char *
guess(const struct k3i_map *map)
{
	static const char lfs[] = "version https://git-lfs";

	if (map->bytes > sizeof(lfs) && memcmp(map->data, lfs, sizeof(lfs) - 1) == 0)
		return "; this is a Git LFS pointer, fetch the file itself with git lfs pull";
	if (memcmp(map->data, "PK\003\004", 4) == 0)
		return "; this is a zip archive, perhaps a PyTorch checkpoint";
	if (map->data[0] == 0x80 && map->data[1] >= 2 && map->data[1] <= 5)
		return "; this is a Python pickle, perhaps a PyTorch checkpoint";
	return "";
}

static int
header_length_check(const char *path, const struct k3i_map *map, size_t *header_bytes)
{
	uint64_t n;

	if (map->bytes == 0) {
		k3_error("common", "%s: the file is empty", path);
		return K3_EFORMAT;
	}
	if (map->bytes < sizeof(n)) {
		k3_error("common", "%s: the file has %zu bytes, the header length alone takes 8",
		         path, map->bytes);
		return K3_EFORMAT;
	}
	memcpy(&n, map->data, sizeof(n));
	if (n > K3I_ST_MAX_HEADER_BYTES) {
		k3_error("common", "%s: header length %" PRIu64 ", at most %d is allowed%s", path,
		         n, K3I_ST_MAX_HEADER_BYTES, guess(map));
		return K3_EFORMAT;
	}
	if (n > map->bytes - sizeof(n)) {
		k3_error("common", "%s: header length %" PRIu64 ", but only %zu bytes follow; "
		         "the file was cut short%s", path, n, map->bytes - sizeof(n), guess(map));
		return K3_EFORMAT;
	}
	if (n == 0 || map->data[sizeof(n)] != '{') {
		k3_error("common", "%s: the header must begin with {%s", path, guess(map));
		return K3_EFORMAT;
	}
	*header_bytes = (size_t)n;
	return K3_OK;
}

static int
metadata_check(const char *path, json_t *metadata)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata)) {
		k3_error("common", "%s: %s must be an object", path, metadata_key);
		return K3_EFORMAT;
	}
	json_object_foreach(metadata, key, value)
		if (!json_is_string(value)) {
			k3_error("common", "%s: %s: the value of %s must be a string", path,
			         metadata_key, key);
			return K3_EFORMAT;
		}
	return K3_OK;
}

static int
shape_parse(const char *path, struct k3_st_tensor *t, const json_t *shape)
{
	size_t n_dims = json_array_size(shape);

	if (!json_is_array(shape) || n_dims > K3_ST_MAX_DIMS) {
		k3_error("common", "%s: tensor %s: shape must be an array of at most %d numbers",
		         path, t->name, K3_ST_MAX_DIMS);
		return K3_EFORMAT;
	}
	t->n_dims = (uint32_t)n_dims;
	t->n_elems = 1;
	for (size_t i = 0; i < n_dims; i++) {
		json_t *dim = json_array_get(shape, i);
		if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
			k3_error("common", "%s: tensor %s: dimension %zu of shape must be a whole "
			         "number, not negative", path, t->name, i);
			return K3_EFORMAT;
		}
		t->dims[i] = (uint64_t)json_integer_value(dim);
		if (__builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems)) {
			k3_error("common", "%s: tensor %s: the product of shape overflows 64 bits",
			         path, t->name);
			return K3_EFORMAT;
		}
	}
	return K3_OK;
}

/* Sets t->data after the range was checked against the shape and the data of the file. */
static int
range_parse(const char *path, struct k3_st_tensor *t, const json_t *offsets,
            const unsigned char *data, uint64_t data_bytes)
{
	json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
	uint64_t need;

	if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(begin)
	    || !json_is_integer(end) || json_integer_value(begin) < 0) {
		k3_error("common", "%s: tensor %s: data_offsets must be two whole numbers, not "
		         "negative", path, t->name);
		return K3_EFORMAT;
	}
	json_int_t from = json_integer_value(begin), to = json_integer_value(end);
	if (to < from) {
		k3_error("common",
		         "%s: tensor %s: data_offsets end at %lld, before their begin %lld", path,
		         t->name, (long long)to, (long long)from);
		return K3_EFORMAT;
	}
	if (__builtin_mul_overflow(t->n_elems, k3_dtype_bytes(t->dtype), &need)
	    || need != (uint64_t)(to - from)) {
		k3_error("common",
		         "%s: tensor %s: data_offsets span %lld bytes, but %" PRIu64
		         " elements of %s need %zu bytes each",
		         path, t->name, (long long)(to - from), t->n_elems, k3_dtype_name(t->dtype),
		         k3_dtype_bytes(t->dtype));
		return K3_EFORMAT;
	}
	if ((uint64_t)to > data_bytes) {
		k3_error("common",
		         "%s: tensor %s: data_offsets end at byte %lld, but the file holds "
		         "%" PRIu64 " bytes of data; it may have been cut short",
		         path, t->name, (long long)to, data_bytes);
		return K3_EFORMAT;
	}
	t->data = data + from;
	return K3_OK;
}

static int
tensor_parse(const char *path, struct k3_st_tensor *t, const json_t *entry,
             const unsigned char *data, uint64_t data_bytes)
{
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	int ret = K3_EFORMAT;

	if (t->name[0] == '\0') {
		k3_error("common", "%s: a tensor has an empty name", path);
		goto out;
	}
	if (!json_is_object(entry) || !dtype) {
		k3_error("common", "%s: tensor %s: must be an object with dtype, shape and "
		         "data_offsets", path, t->name);
		goto out;
	}
	if (!k3i_dtype_parse(&t->dtype, dtype)) {
		k3_error("common", "%s: tensor %s: unknown dtype %s", path, t->name, dtype);
		goto out;
	}
	K3_TRY(shape_parse(path, t, json_object_get(entry, "shape")));
	K3_TRY(range_parse(path, t, json_object_get(entry, "data_offsets"), data, data_bytes));
out:
	return ret;
}

/* Order of the data; an empty tensor comes before the one that begins at the same byte. */
static int
by_data(const void *a, const void *b)
{
	const struct k3_st_tensor *s = a, *t = b;

	if (s->data != t->data)
		return (const char *)s->data < (const char *)t->data ? -1 : 1;
	if ((s->n_elems == 0) != (t->n_elems == 0))
		return s->n_elems == 0 ? -1 : 1;
	return strcmp(s->name, t->name);
}

/* The data must follow each other without overlap or hole and fill the file. */
static int
coverage_check(const struct k3i_st_file *f, const unsigned char *data, uint64_t data_bytes)
{
	uint64_t covered = 0;

	for (size_t i = 0; i < f->n_tensors; i++) {
		const struct k3_st_tensor *t = &f->tensors[i];
		uint64_t begin = (uint64_t)((const unsigned char *)t->data - data);

		if (begin != covered) {
			k3_error("common",
			         "%s: tensor %s begins at byte %" PRIu64 " of the data, %s "
			         "%s which ends at %" PRIu64,
			         f->path, t->name, begin,
			         begin < covered ? "overlaps" : "a hole after",
			         i ? f->tensors[i - 1].name : "the header", covered);
			return K3_EFORMAT;
		}
		covered += t->n_elems * k3_dtype_bytes(t->dtype);
	}
	if (covered != data_bytes) {
		k3_error("common",
		         "%s: the tensors end at byte %" PRIu64 " of the data, but the file "
		         "holds %" PRIu64,
		         f->path, covered, data_bytes);
		return K3_EFORMAT;
	}
	return K3_OK;
}

static int
tensors_parse(struct k3i_st_file *f, json_t *root, size_t header_bytes)
{
	const unsigned char *data = f->map.data + 8 + header_bytes;
	uint64_t data_bytes = f->map.bytes - 8 - header_bytes;
	size_t name_bytes = 0;
	const char *key;
	json_t *entry;
	int ret = K3_OK;

	json_object_foreach(root, key, entry)
		name_bytes += strlen(key) + 1;
	f->tensors = calloc(json_object_size(root) + 1, sizeof(*f->tensors));
	f->names = malloc(name_bytes + 1);
	if (!f->tensors || !f->names)
		return K3_ENOMEM;
	char *name = f->names;
	json_object_foreach(root, key, entry) {
		if (strcmp(key, metadata_key) == 0) {
			K3_TRY(metadata_check(f->path, entry));
			f->metadata = json_incref(entry);
			continue;
		}
		struct k3_st_tensor *t = &f->tensors[f->n_tensors];
		t->name = strcpy(name, key);
		name += strlen(key) + 1;
		K3_TRY(tensor_parse(f->path, t, entry, data, data_bytes));
		f->n_tensors++;
	}
	qsort(f->tensors, f->n_tensors, sizeof(*f->tensors), by_data);
	ret = coverage_check(f, data, data_bytes);
out:
	return ret;
}

int
k3i_st_file_open(struct k3i_st_file *f, const char *path)
{
	json_t *root = NULL;
	size_t header_bytes;
	int ret = K3_ENOMEM;

	*f = (struct k3i_st_file){ .path = strdup(path) };
	if (!f->path)
		goto out;
	K3_TRY(k3i_map_open(&f->map, path));
	K3_TRY(header_length_check(path, &f->map, &header_bytes));
	root = k3i_json_parse(path, (const char *)f->map.data + 8, header_bytes);
	ret = root ? tensors_parse(f, root, header_bytes) : K3_EFORMAT;
out:
	json_decref(root);
	if (ret == K3_ENOMEM)
		k3_error("common", "%s: out of memory for the header", path);
	return ret;
}

void
k3i_st_file_close(struct k3i_st_file *f)
{
	json_decref(f->metadata);
	k3i_map_close(&f->map);
	free(f->tensors);
	free(f->names);
	free(f->path);
	*f = (struct k3i_st_file){ 0 };
}
