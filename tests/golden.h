/* Golden files in memory, so that a test can change one and run what comes out. */
#ifndef K3_TESTS_GOLDEN_H
#define K3_TESTS_GOLDEN_H
#include "../common/safetensors.h"

struct golden_tensor {
	char name[200];
	enum k3_dtype dtype;
	uint32_t n_dims;
	uint64_t dims[K3_ST_MAX_DIMS];
	void *data;
	size_t bytes;
};

struct golden {
	size_t n, cap;
	struct golden_tensor *tensor;
	char *metadata[8]; /* values of golden.c's keys, NULL: absent */
};

/** Path of a file of the test data ("golden/text_tiny"); valid until the next call. */
const char *golden_path(const char *name);
/** The same of a golden case ("text_tiny"). */
const char *golden_case(const char *name);
/** Reads one; fails the test when it can't. */
void golden_load(struct golden *g, const char *name);
void golden_save(const struct golden *g, const char *path);
void golden_free(struct golden *g);

/** Fails the test when there is no such tensor. */
struct golden_tensor *golden_find(const struct golden *g, const char *name);
/** Drops every tensor whose name begins so; the number dropped. */
size_t golden_drop(struct golden *g, const char *prefix);
/** A copy of a tensor under another name, or under its own: a duplicate key. */
struct golden_tensor *golden_copy(struct golden *g, const char *from, const char *to);

#endif
