/* safetensors files and sharded checkpoints (folder with model.safetensors.index.json),
 * memory-mapped.
 *
 * Everything in a header is checked before it is believed: sizes, offsets, overlaps, holes,
 * duplicate keys, dtypes, shard names that leave the folder.  Each fault is logged with file, key,
 * value and what is allowed.
 */
#ifndef K3_SAFETENSORS_H
#define K3_SAFETENSORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum k3_dtype {
	K3_F32,
	K3_F64,
	K3_BF16,
	K3_F16,
	K3_I32,
	K3_I64,
	K3_U8,
	K3_I8,
	K3_I16,
	K3_U16,
	K3_U32,
	K3_U64,
	K3_BOOL
};
enum { K3_ST_MAX_DIMS = 8 };

/** Bytes of one element. */
size_t k3_dtype_bytes(enum k3_dtype dtype);
/** Name in the format ("F32", "BF16", ...). */
const char *k3_dtype_name(enum k3_dtype dtype);

struct k3_st_tensor {
	const char *name;
	enum k3_dtype dtype;
	uint32_t n_dims;
	uint64_t dims[K3_ST_MAX_DIMS];
	uint64_t n_elems;
	const void *data; /* inside the mapping; unaligned access is possible */
};

struct k3_st; /* an open file or sharded checkpoint */

/**
 * Opens one file, an index (NAME.index.json) with the shards beside it, or a folder:
 * model.safetensors.index.json with its shards, else a single model.safetensors.
 * @return K3_OK, K3_EIO, K3_EFORMAT, K3_ENOMEM
 */
int k3_st_open(struct k3_st **st, const char *path);
void k3_st_close(struct k3_st *st); /* NULL is legal */

size_t k3_st_count(const struct k3_st *st);
/** In the order of the data in the file (shards in index order). NULL past the end. */
const struct k3_st_tensor *k3_st_at(const struct k3_st *st, size_t i);
/** NULL if there is none. */
const struct k3_st_tensor *k3_st_find(const struct k3_st *st, const char *name);
/** Value of a __metadata__ key of the (first) file, NULL if absent. */
const char *k3_st_metadata(const struct k3_st *st, const char *key);

/** Elements first .. first+n-1 converted to float (F32 BF16 F16 F64) / double / int32 (I32 I64 U8,
 * range checked). */
int k3_st_read_f32(const struct k3_st_tensor *t, uint64_t first, uint64_t n, float *out);
int k3_st_read_f64(const struct k3_st_tensor *t, uint64_t first, uint64_t n, double *out);
int k3_st_read_i32(const struct k3_st_tensor *t, uint64_t first, uint64_t n, int32_t *out);

/* Writing: declare all tensors, begin, give their data in any order in pieces, finish, destroy.
 * Each element is given exactly once; files carry the ending .partial until finish renames them.
 * One writer belongs to one thread.
 */
struct k3_st_writer;

/**
 * Starts a checkpoint of one or more shards in folder dir (must exist): base.safetensors, or
 * base-00001-of-0000N.safetensors with base.safetensors.index.json when the bytes exceed
 * shard_bytes (0: 5 GiB).
 */
int k3_st_writer_create(struct k3_st_writer **w, const char *dir, const char *base,
			uint64_t shard_bytes);
int k3_st_writer_metadata(struct k3_st_writer *w, const char *key, const char *value);
/** F32, BF16 or F64; a name declared twice, another dtype or too many bytes give K3_EINVAL. */
int k3_st_writer_declare(struct k3_st_writer *w, const char *name, enum k3_dtype dtype,
			 uint32_t n_dims, const uint64_t *dims);
/** After the last declaration: lays out the shards, writes the headers, reserves the space (ENOSPC
 * shows here). */
int k3_st_writer_begin(struct k3_st_writer *w);
/** Elements first .. first+n-1 of a declared tensor, converted from float to the tensor's dtype
 * (F32, BF16 nearest even, F64).
 * @return K3_OK, K3_ENOENT (name), K3_EINVAL (range), K3_EEXIST (given before), K3_EIO,
 *         K3_ENOMEM */
int k3_st_writer_put_f32(struct k3_st_writer *w, const char *name, uint64_t first, uint64_t n,
			 const float *data);
/** fsyncs, closes and renames; an element that nobody wrote is an error that lists the keys
 * (K3_EINVAL). A base.safetensors or index that an earlier save in the other form left is removed:
 * the reader prefers the index. Several files are not one atom; for that, write into a fresh folder
 * and rename it. */
int k3_st_writer_finish(struct k3_st_writer *w);
/** Frees; unfinished files are removed. NULL is legal. */
void k3_st_writer_destroy(struct k3_st_writer *w);

#endif
