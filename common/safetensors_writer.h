/* State of a checkpoint that is being written, shared by layout (safetensors_write.c) and data
 * (safetensors_put.c).
 */
#ifndef K3_SAFETENSORS_WRITER_H
#define K3_SAFETENSORS_WRITER_H

#include <jansson.h>

#include "safetensors.h"

/* Elements first .. end-1 have been written. */
struct k3i_st_span {
	uint64_t first, end;
};

struct k3i_st_entry {
	char *name;
	enum k3_dtype dtype;
	uint32_t n_dims;
	uint64_t dims[K3_ST_MAX_DIMS];
	uint64_t n_elems;
	size_t shard;
	uint64_t at;                /* byte of the first element in the shard's file */
	struct k3i_st_span *spans;  /* ascending, neither overlapping nor touching */
	size_t n_spans, spans_room;
};

struct k3i_st_shard {
	size_t first, end;          /* its entries, neighbours in the order of declaration */
	char *path, *partial;       /* final name, and the name until the file is complete */
	int fd;                     /* -1 when closed */
};

struct k3_st_writer {
	char *dir, *base;
	uint64_t shard_bytes;
	json_t *metadata, *numbers; /* numbers: tensor name -> place in entries */
	struct k3i_st_entry *entries;
	size_t n_entries, entries_room;
	struct k3i_st_shard *shards;
	size_t n_shards;
	bool begun;
};

#endif
