/* Reading is the library's; writing is by hand, since the library refuses to write what these tests need (I32, a key twice). */
#include "golden.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"

static const char *const keys[8] = { "case", "config", "hf_config", "eps", "image_grids", "float32_run_rms_deviation", "train",
	                             "weight_shapes" };

const char *
golden_path(const char *name)
{
	static char path[4096];
	const char *dir = getenv("K3_TEST_DATA");

	snprintf(path, sizeof(path), "%s/%s.safetensors", dir ? dir : "tests/data", name);
	return path;
}

const char *
golden_case(const char *name)
{
	char file[256];

	snprintf(file, sizeof(file), "golden/%s", name);
	return golden_path(file);
}

static struct golden_tensor *
add(struct golden *g)
{
	if (g->n == g->cap) {
		g->cap = g->cap ? 2 * g->cap : 512;
		g->tensor = realloc(g->tensor, g->cap * sizeof(*g->tensor));
		cr_assert_not_null(g->tensor);
	}
	struct golden_tensor *t = &g->tensor[g->n++];
	memset(t, 0, sizeof(*t));
	return t;
}

void
golden_load(struct golden *g, const char *name)
{
	struct k3_st *st = NULL;

	memset(g, 0, sizeof(*g));
	cr_assert_eq(k3_st_open(&st, golden_path(name)), K3_OK, "cannot open %s", name);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const struct k3_st_tensor *from = k3_st_at(st, i);
		struct golden_tensor *t = add(g);
		snprintf(t->name, sizeof(t->name), "%s", from->name);
		t->dtype = from->dtype;
		t->n_dims = from->n_dims;
		memcpy(t->dims, from->dims, sizeof(t->dims));
		t->bytes = from->n_elems * k3_dtype_bytes(from->dtype);
		t->data = malloc(t->bytes + 1);
		memcpy(t->data, from->data, t->bytes);
	}
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		const char *value = k3_st_metadata(st, keys[i]);
		g->metadata[i] = value ? strdup(value) : NULL;
	}
	k3_st_close(st);
}

static void
write_header(const struct golden *g, FILE *out)
{
	size_t at = 0;

	fprintf(out, "{\"__metadata__\":{\"format\":\"pt\"");
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		json_t *value = g->metadata[i] ? json_string(g->metadata[i]) : NULL;
		char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
		if (text)
			fprintf(out, ",\"%s\":%s", keys[i], text);
		free(text);
		json_decref(value);
	}
	fprintf(out, "}");
	for (size_t i = 0; i < g->n; i++) {
		const struct golden_tensor *t = &g->tensor[i];
		fprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, k3_dtype_name(t->dtype));
		for (uint32_t k = 0; k < t->n_dims; k++)
			fprintf(out, "%s%llu", k ? "," : "", (unsigned long long)t->dims[k]);
		fprintf(out, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
		at += t->bytes;
	}
	fprintf(out, "}");
}

void
golden_save(const struct golden *g, const char *path)
{
	char *header = NULL;
	size_t bytes = 0;
	FILE *text = open_memstream(&header, &bytes), *out = fopen(path, "wb");

	cr_assert(text && out, "cannot write %s", path);
	write_header(g, text);
	fclose(text);
	uint64_t length = bytes;
	fwrite(&length, sizeof(length), 1, out);
	fwrite(header, 1, bytes, out);
	for (size_t i = 0; i < g->n; i++)
		fwrite(g->tensor[i].data, 1, g->tensor[i].bytes, out);
	cr_assert_eq(fclose(out), 0);
	free(header);
}

void
golden_free(struct golden *g)
{
	for (size_t i = 0; i < g->n; i++)
		free(g->tensor[i].data);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		free(g->metadata[i]);
	free(g->tensor);
	memset(g, 0, sizeof(*g));
}

struct golden_tensor *
golden_find(const struct golden *g, const char *name)
{
	for (size_t i = 0; i < g->n; i++)
		if (strcmp(g->tensor[i].name, name) == 0)
			return &g->tensor[i];
	cr_assert_fail("no tensor %s", name);
	return NULL;
}

size_t
golden_drop(struct golden *g, const char *prefix)
{
	size_t kept = 0, n = g->n;

	for (size_t i = 0; i < n; i++) {
		if (strncmp(g->tensor[i].name, prefix, strlen(prefix)) == 0)
			free(g->tensor[i].data);
		else
			g->tensor[kept++] = g->tensor[i];
	}
	g->n = kept;
	return n - kept;
}

struct golden_tensor *
golden_copy(struct golden *g, const char *from, const char *to)
{
	struct golden_tensor source = *golden_find(g, from), *t = add(g);

	*t = source;
	snprintf(t->name, sizeof(t->name), "%s", to);
	t->data = malloc(t->bytes + 1);
	memcpy(t->data, source.data, t->bytes);
	return t;
}
