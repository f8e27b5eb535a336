/* The safetensors reader against files that are broken in the ways that others met: each is refused
 * with a message that names the fault. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/safetensors.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name)                                                                                 \
	Test(safetensors, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* A file with this header and data of ascending bytes 1, 2, ... */
static void
file_make(const char *name, const char *header, size_t data_bytes)
{
	uint64_t n = strlen(header);
	unsigned char *all = malloc(8 + n + data_bytes);

	memcpy(all, &n, 8);
	memcpy(all + 8, header, n);
	for (size_t i = 0; i < data_bytes; i++)
		all[8 + n + i] = (unsigned char)(i + 1);
	scratch_write(name, all, 8 + n + data_bytes);
	free(all);
}

static void
expect_refused(const char *name, const char *message)
{
	struct k3_st *st = (void *)1;
	int ret = k3_st_open(&st, scratch_path(name));
	const char *log = scratch_log();

	cr_assert_eq(ret, K3_EFORMAT, "status %d for the fault: %s", ret, message);
	cr_assert_null(st);
	cr_assert_not_null(strstr(log, message), "expected \"%s\", got: %s", message, log);
}

static void
expect_header_refused(const char *header, size_t data_bytes, const char *message)
{
	file_make("x.safetensors", header, data_bytes);
	expect_refused("x.safetensors", message);
}

TEST(values_names_shapes_and_metadata_are_read)
{
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[3,11]},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
		"\"scalar\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[11,12]},"
		"\"none\":{\"dtype\":\"F64\",\"shape\":[4,0],\"data_offsets\":[3,3]}}   ";
	static const unsigned char b_bytes[] = { 4, 5, 6, 7, 8, 9, 10, 11 };
	struct k3_st *st;
	int32_t ints[3];
	float floats[2], want[2];

	file_make("x.safetensors", header, 12);
	cr_assert_eq(k3_st_open(&st, scratch_path("x.safetensors")), K3_OK);
	cr_assert_eq(k3_st_count(st), 4);
	cr_assert_str_eq(k3_st_at(st, 0)->name, "a");
	cr_assert_str_eq(k3_st_at(st, 1)->name, "none");
	cr_assert_str_eq(k3_st_at(st, 2)->name, "b");
	cr_assert_null(k3_st_at(st, 4));
	cr_assert_null(k3_st_find(st, "c"));
	cr_assert_null(k3_st_find(st, "__metadata__"));
	cr_assert_str_eq(k3_st_metadata(st, "format"), "pt");
	cr_assert_null(k3_st_metadata(st, "absent"));
	cr_assert_eq(k3_st_find(st, "none")->n_elems, 0);
	cr_assert_eq(k3_st_find(st, "scalar")->n_elems, 1);
	const struct k3_st_tensor *b = k3_st_find(st, "b");
	cr_assert(b->n_dims == 2 && b->dims[0] == 1 && b->dims[1] == 2 && b->dtype == K3_F32);
	memcpy(want, b_bytes, sizeof(want));
	cr_assert_eq(k3_st_read_f32(b, 0, 2, floats), K3_OK);
	cr_assert_arr_eq(floats, want, sizeof(want));
	cr_assert_eq(k3_st_read_f32(b, 1, 1, floats), K3_OK);
	cr_assert_eq(floats[0], want[1]);
	cr_assert_eq(k3_st_read_i32(k3_st_find(st, "a"), 0, 3, ints), K3_OK);
	cr_assert(ints[0] == 1 && ints[1] == 2 && ints[2] == 3);
	k3_st_close(st);
}

TEST(half_precision_values_are_widened_exactly)
{
	static const uint16_t f16[] = { 0x3c00, 0xc000, 0x7bff, 0x0001, 0x8400, 0x7c00, 0x7e00, 0 };
	static const double f16_want[] = { 1, -2, 65504, 0x1p-24, -0x1p-14, INFINITY, NAN, 0 };
	static const uint16_t bf16[] = { 0x3f80, 0xc049 };
	static const double bf16_want[] = { 1, -3.140625 };
	struct k3_st_tensor h = { "h", K3_F16, 1, { 8 }, 8, f16 };
	struct k3_st_tensor b = { "b", K3_BF16, 1, { 2 }, 2, bf16 };
	double wide[8];
	float narrow[8];

	cr_assert_eq(k3_st_read_f64(&h, 0, 8, wide), K3_OK);
	cr_assert_eq(k3_st_read_f32(&h, 0, 8, narrow), K3_OK);
	for (int i = 0; i < 8; i++) {
		cr_assert(wide[i] == f16_want[i] || (isnan(wide[i]) && isnan(f16_want[i])));
		cr_assert(narrow[i] == (float)f16_want[i] || isnan(f16_want[i]));
	}
	cr_assert_eq(k3_st_read_f64(&b, 0, 2, wide), K3_OK);
	cr_assert(wide[0] == bf16_want[0] && wide[1] == bf16_want[1]);
}

TEST(reads_outside_the_tensor_or_type_are_refused)
{
	static const int64_t wide[] = { 7, INT64_C(1) << 31, -INT64_C(1) - INT32_MAX };
	struct k3_st_tensor t = { "t", K3_I64, 1, { 3 }, 3, wide };
	float f[4];
	int32_t i[4] = { 0 };

	cr_assert_eq(k3_st_read_f32(&t, 0, 1, f), K3_EFORMAT);
	cr_assert_eq(k3_st_read_i32(&t, 2, 1, i), K3_OK);
	cr_assert_eq(i[0], INT32_MIN);
	cr_assert_eq(k3_st_read_i32(&t, 1, 1, i), K3_EFORMAT);
	cr_assert_not_null(strstr(scratch_log(), "element 1 is 2147483648"));
	cr_assert_eq(k3_st_read_i32(&t, 3, 1, i), K3_EINVAL);
	cr_assert_eq(k3_st_read_i32(&t, 1, UINT64_MAX, i), K3_EINVAL);
}

TEST(files_of_another_kind_get_messages_of_their_own)
{
	static const char lfs[] = "version https://git-lfs.github.com/spec/v1\n"
	                          "oid sha256:0123456789abcdef\nsize 12345\n";
	static const unsigned char zip[30] = "PK\003\004\024\000\010\010\010\000\001\002\003";
	static const unsigned char pickle[30] = "\200\002}q\000(X\001\000\000\000aq\001K\001u.";

	scratch_write("lfs", lfs, strlen(lfs));
	expect_refused("lfs", "Git LFS pointer");
	scratch_write("zip", zip, sizeof(zip));
	expect_refused("zip", "zip archive");
	scratch_write("pickle", pickle, sizeof(pickle));
	expect_refused("pickle", "Python pickle");
	scratch_write("empty", "", 0);
	expect_refused("empty", "the file is empty");
	scratch_write("seven", "1234567", 7);
	expect_refused("seven", "the file has 7 bytes");
}

TEST(a_file_cut_short_at_any_byte_is_refused)
{
	size_t bytes;

	file_make("good", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}",
	          24);
	unsigned char *all = scratch_read("good", &bytes);
	for (size_t n = 1; n < bytes; n++) {
		scratch_write("cut", all, n);
		expect_refused("cut", n < 8 ? "header length" : "cut short");
	}
	free(all);
}

TEST(impossible_header_lengths_are_refused_before_any_allocation)
{
	static const uint64_t lengths[] = { 100000001, UINT64_C(1) << 63, UINT64_MAX, 1017, 0 };
	static const char *const messages[] = {
		"header length 100000001, at most 100000000", "header length 9223372036854775808",
		"header length 18446744073709551615", "only 1016 bytes follow", "must begin with {",
	};
	unsigned char file[1024] = { 0 };

	for (size_t i = 0; i < 5; i++) {
		memcpy(file, &lengths[i], 8);
		scratch_write("x", file, sizeof(file));
		expect_refused("x", messages[i]);
	}
}

TEST(a_key_that_comes_twice_is_named)
{
	expect_header_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
	                      "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
	                      "duplicate key w\n");
	expect_header_refused("{\"model.layers.10.self_attn.\\\"q\\\".weight\":{}, "
	                      "\"model.layers.10.self_attn.\\\"q\\\".weight\" : {}}", 0,
	                      "duplicate key model.layers.10.self_attn.\\\"q\\\".weight\n");
	expect_header_refused("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0,
	                      "duplicate key dtype\n");
}

TEST(shape_and_range_must_agree)
{
#define ONE(dtype, shape, range) \
	"{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}}"
	static const struct {
		const char *header;
		size_t data_bytes;
		const char *message;
	} cases[] = {
		{ONE("F32", "[2,3]", "[0,20]"), 20, "span 20 bytes, but 6 elements"},
		{ONE("F32", "[1]", "[4,0]"), 4, "data_offsets end at 0, before their begin 4"},
		{ONE("F32", "[2]", "[0,8]"), 4, "the file holds 4 bytes"},
		{ONE("U8", "[4294967296,4294967296]", "[0,4]"), 4, "product of shape overflows"},
		{ONE("F64", "[4611686018427387904]", "[0,4]"), 4, "span 4 bytes"},
		{ONE("U8", "[-1]", "[0,1]"), 1, "dimension 0 of shape must be a whole number"},
		{ONE("U8", "[1,1.5]", "[0,1]"), 1, "dimension 1 of shape must be a whole number"},
		{ONE("U8", "[18446744073709551616]", "[0,1]"), 1, "JSON, line 1"},
		{ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1,
		 "shape must be an array of at most 8"},
		{ONE("U8", "1", "[0,1]"), 1, "shape must be an array"},
		{ONE("U7", "[1]", "[0,1]"), 1, "unknown dtype U7"},
		{ONE("U8", "[1]", "[-1,0]"), 1, "data_offsets must be two whole numbers"},
		{ONE("U8", "[1]", "[0]"), 1, "data_offsets must be two whole numbers"},
		{ONE("U8", "[1]", "[0,1.0]"), 1, "data_offsets must be two whole numbers"},
		{ONE("U8", "[1]", "[0,1]"), 2, "end at byte 1 of the data, but the file holds 2"},
		{"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
		 "must be an object with dtype"},
		{"{\"w\":3}", 0, "must be an object with dtype"},
		{"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "empty name"},
		{"{\"__metadata__\":{\"a\":1}}", 0, "the value of a must be a string"},
		{"{\"__metadata__\":[]}", 0, "__metadata__ must be an object"},
		{"[]", 0, "must begin with {"},
		{"{\"w\":", 0, "JSON, line 1"},
		{"{} x", 0, "JSON, line 1"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_header_refused(cases[i].header, cases[i].data_bytes, cases[i].message);
}

TEST(tensors_neither_overlap_nor_leave_holes)
{
	expect_header_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
	                      "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}", 5,
	                      "tensor b begins at byte 2 of the data, overlaps a which ends at 3");
	expect_header_refused(
		"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
		7, "tensor b begins at byte 4 of the data, a hole after a which ends at 3");
	expect_header_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2,
	                      "a hole after the header");
}

/* model-1 holds a, model-2 holds b. */
static void
shards_make(const char *index)
{
	file_make("model-1.safetensors",
	          "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
	file_make("model-2.safetensors",
	          "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
	scratch_write("model.safetensors.index.json", index, strlen(index));
}

TEST(an_index_joins_its_shards_in_its_order)
{
	struct k3_st *st;

	shards_make(
		"{\"weight_map\":{\"b\":\"model-2.safetensors\",\"a\":\"model-1.safetensors\"}}");
	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_OK);
	cr_assert_eq(k3_st_count(st), 2);
	cr_assert_str_eq(k3_st_at(st, 0)->name, "b");
	cr_assert_eq(k3_st_find(st, "a")->n_elems, 2);
	k3_st_close(st);
}

TEST(shard_names_that_leave_the_folder_are_refused_with_the_key)
{
	static const char *const bad[] = {
		"../x.safetensors", "/etc/passwd", "a/../../x", "sub/x.safetensors", "..", ".", "",
		"a\\\\b",
	};
	char index[200];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(index, sizeof(index),
		         "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"the.key\":\"%s\"}}",
		         bad[i]);
		shards_make(index);
		expect_refused("", "weight_map: the.key: the shard");
	}
}

TEST(index_and_shards_must_name_the_same_tensors)
{
	static const char *const cases[][2] = {
		{"{\"weight_map\":{\"a\":\"model-2.safetensors\",\"b\":\"model-1.safetensors\"}}",
		 "tensor a is not in model-2.safetensors"},
		{"{\"weight_map\":{\"c\":\"model-1.safetensors\",\"a\":\"model-1.safetensors\"}}",
		 "tensor c is not in model-1.safetensors"},
		{"{\"weight_map\":{\"b\":\"model-1.safetensors\"}}",
		 "tensor a is in a shard, but not"},
		{"{\"weight_map\":{\"a\":\"model-1.safetensors\",\"a\":\"model-2.safetensors\"}}",
		 "duplicate key a\n"},
		{"{\"weight_map\":{\"a\":7}}", "(not a string)"},
		{"{\"weight_map\":{}}", "weight_map must be an object"},
		{"{}", "weight_map must be an object"},
		{"", "JSON"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		shards_make(cases[i][0]);
		expect_refused("", cases[i][1]);
	}
}

TEST(a_tensor_in_two_shards_is_refused)
{
	shards_make(
		"{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}");
	file_make("model-2.safetensors",
	          "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
	expect_refused("", "tensor a is in two shards");
}

TEST(what_cannot_be_opened_is_an_input_error)
{
	struct k3_st *st;

	cr_assert_eq(k3_st_open(&st, scratch_path("absent")), K3_EIO);
	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_EIO);
	cr_assert_not_null(strstr(scratch_log(), "holds neither model.safetensors.index.json nor"));
	cr_assert_eq(mkfifo(scratch_path("fifo"), 0600), 0);
	cr_assert_eq(k3_st_open(&st, scratch_path("fifo")), K3_EIO);
	shards_make("{\"weight_map\":{\"a\":\"absent.safetensors\"}}");
	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_EIO);
}
