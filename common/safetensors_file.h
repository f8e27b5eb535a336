/* One safetensors file, checked: what safetensors.c puts together to checkpoints. */
#ifndef K3_SAFETENSORS_FILE_H
#define K3_SAFETENSORS_FILE_H

#include <jansson.h>

#include "files.h"
#include "safetensors.h"

/* The reference implementation refuses longer headers, so we neither read nor write them. */
enum { K3I_ST_MAX_HEADER_BYTES = 100000000 };

struct k3i_st_file {
	char *path;
	struct k3i_map map;
	struct k3_st_tensor *tensors; /* in the order of their data */
	size_t n_tensors;
	char *names;                  /* all names, one after the other */
	json_t *metadata;             /* object of strings, or NULL */
};

/** Maps and checks. On failure file can be closed all the same. */
int k3i_st_file_open(struct k3i_st_file *file, const char *path);
void k3i_st_file_close(struct k3i_st_file *file);

/** Parses a JSON object; duplicate keys and syntax errors are logged with path. NULL on failure. */
json_t *k3i_json_parse(const char *path, const char *text, size_t bytes);

/** false when no dtype has this name. */
bool k3i_dtype_parse(enum k3_dtype *dtype, const char *name);

#endif
