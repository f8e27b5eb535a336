/* The checkpoint writer: exact bytes, every element exactly once, and nothing that looks like a
 * checkpoint unless it is complete. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/safetensors.h"
#include "../common/status.h"
#include "scratch.h"

#define TEST(name) Test(st_write, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

enum { ELEMS = 6 };

static struct k3_st_writer *
writer_make(uint64_t shard_bytes)
{
	struct k3_st_writer *w;

	cr_assert_eq(k3_st_writer_create(&w, scratch_path(""), "model", shard_bytes), K3_OK);
	return w;
}

static void
declare(struct k3_st_writer *w, const char *name, enum k3_dtype dtype, uint64_t n)
{
	cr_assert_eq(k3_st_writer_declare(w, name, dtype, 1, &n), K3_OK);
}

/* Saves tensors a, b, c of ELEMS floats, each filled with value. */
static void
checkpoint_save(float value, uint64_t shard_bytes)
{
	static const char *const names[] = { "a", "b", "c" };
	struct k3_st_writer *w = writer_make(shard_bytes);
	float data[ELEMS];

	for (int i = 0; i < ELEMS; i++)
		data[i] = value;
	for (int i = 0; i < 3; i++)
		declare(w, names[i], K3_F32, ELEMS);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(k3_st_writer_put_f32(w, names[i], 0, ELEMS, data), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
}

static void
expect_checkpoint(const char *path, float value)
{
	struct k3_st *st;
	float data[ELEMS];

	cr_assert_eq(k3_st_open(&st, scratch_path(path)), K3_OK);
	cr_assert_eq(k3_st_count(st), 3);
	for (size_t i = 0; i < 3; i++) {
		cr_assert_eq(k3_st_read_f32(k3_st_at(st, i), 0, ELEMS, data), K3_OK);
		for (int j = 0; j < ELEMS; j++)
			cr_assert_eq(data[j], value);
	}
	k3_st_close(st);
}

TEST(the_file_has_the_bytes_of_the_format)
{
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"w\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
		"\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]}}      ";
	static const unsigned char data[] = { 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x80, 0x3f, 0, 0xc0 };
	static const float one_and_half = 1.5f, pair[] = { 1, -2 };
	static const uint64_t dims[] = { 1, 2 };
	struct k3_st_writer *w = writer_make(0);
	uint64_t header_bytes;
	size_t bytes;

	cr_assert_eq(k3_st_writer_metadata(w, "format", "pt"), K3_OK);
	cr_assert_eq(k3_st_writer_declare(w, "b", K3_BF16, 2, dims), K3_OK);
	declare(w, "w", K3_F64, 1);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "w", 0, 1, &one_and_half), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "b", 0, 2, pair), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
	unsigned char *file = scratch_read("model.safetensors", &bytes);
	memcpy(&header_bytes, file, 8);
	cr_assert_eq(header_bytes % 8, 0);
	size_t text = strlen(header);
	while (header[text - 1] == ' ')
		text--;
	cr_assert_eq(header_bytes, (text + 7) / 8 * 8);
	cr_assert_eq(bytes, 8 + header_bytes + sizeof(data));
	cr_assert_arr_eq(file + 8, header, text);
	for (size_t i = text; i < header_bytes; i++)
		cr_assert_eq(file[8 + i], ' ');
	cr_assert_arr_eq(file + 8 + header_bytes, data, sizeof(data));
	cr_assert_eq(scratch_files(), 1);
	free(file);
}

TEST(bf16_is_rounded_to_the_nearest_with_ties_to_even)
{
	/* 1 + k/256: a tie goes to the even neighbour, above it up; then what must survive */
	static const float in[] = {
		0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.00fffep0f, 0x1.fffffep127f, -0.0f,
		INFINITY, 0x1p-133f,
	};
	static const double want[] = {
		0x1p0, 0x1.04p0, 0x1.02p0, 0x1p0, INFINITY, -0.0, INFINITY, 0x1p-133,
	};
	float nan_low_bits;
	uint32_t bits = 0x7f800001;
	struct k3_st_writer *w = writer_make(0);
	struct k3_st *st;
	double got[9];

	memcpy(&nan_low_bits, &bits, 4);
	declare(w, "x", K3_BF16, 9);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 0, 8, in), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 8, 1, &nan_low_bits), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_OK);
	cr_assert_eq(k3_st_read_f64(k3_st_find(st, "x"), 0, 9, got), K3_OK);
	for (int i = 0; i < 8; i++)
		cr_assert(got[i] == want[i] && !signbit(got[i]) == !signbit(want[i]),
		          "element %d: got %a, expected %a", i, got[i], want[i]);
	cr_assert(isnan(got[8]));
	k3_st_close(st);
}

TEST(pieces_in_any_order_make_the_whole)
{
	static const uint64_t cuts[][2] = {{9000, 1000}, {0, 1}, {5, 4995}, {1, 4}, {5000, 4000}};
	enum { N = 10000 };
	float *data = malloc(N * sizeof(*data)), *got = malloc(N * sizeof(*got));
	struct k3_st_writer *w = writer_make(0);
	struct k3_st *st;

	for (int i = 0; i < N; i++)
		data[i] = (float)i;
	declare(w, "x", K3_F64, N);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(
			k3_st_writer_put_f32(w, "x", cuts[i][0], cuts[i][1], data + cuts[i][0]),
			K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_OK);
	cr_assert_eq(k3_st_read_f32(k3_st_find(st, "x"), 0, N, got), K3_OK);
	cr_assert_arr_eq(got, data, N * sizeof(*data));
	k3_st_close(st);
	free(data);
	free(got);
}

TEST(elements_that_nobody_gave_are_an_error_that_lists_the_keys)
{
	static const float data[ELEMS] = { 0 };
	struct k3_st_writer *w = writer_make(0);

	declare(w, "experts.0", K3_F32, ELEMS);
	declare(w, "experts.1", K3_F32, ELEMS);
	declare(w, "experts.2", K3_F32, ELEMS);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "experts.0", 0, ELEMS, data), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "experts.1", 0, 2, data), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "experts.1", 3, 3, data), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_EINVAL);
	const char *log = scratch_log();
	cr_assert_null(strstr(log, "experts.0"));
	cr_assert_not_null(strstr(log, "experts.1: 1 of 6 elements were never given"));
	cr_assert_not_null(strstr(log, "experts.2: 6 of 6 elements were never given"));
	k3_st_writer_destroy(w);
	cr_assert_eq(scratch_files(), 0);
}

TEST(an_element_given_twice_is_refused)
{
	static const float data[ELEMS] = { 0 };
	struct k3_st_writer *w = writer_make(0);

	declare(w, "x", K3_F32, ELEMS);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 2, 2, data), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 0, 3, data), K3_EEXIST);
	cr_assert_not_null(strstr(scratch_log(), "element 2 was given twice"));
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 3, 3, data), K3_EEXIST);
	cr_assert_not_null(strstr(scratch_log(), "element 3 was given twice"));
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 0, ELEMS, data), K3_EEXIST);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 0, 2, data), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 4, 2, data), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
}

TEST(wrong_declarations_and_pieces_are_refused)
{
	static const float data[ELEMS] = { 0 };
	static const uint64_t huge[] = { UINT64_C(1) << 32, UINT64_C(1) << 32 }, six = ELEMS;
	struct k3_st_writer *w;

	cr_assert_eq(k3_st_writer_create(&w, scratch_path("absent"), "model", 0), K3_EIO);
	cr_assert_null(w);
	cr_assert_eq(k3_st_writer_create(&w, scratch_path(""), "../model", 0), K3_EINVAL);
	w = writer_make(0);
	declare(w, "x", K3_F32, ELEMS);
	cr_assert_eq(k3_st_writer_declare(w, "x", K3_F32, 1, &six), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "tensor \"x\" was declared twice"));
	cr_assert_eq(k3_st_writer_declare(w, "y", K3_F32, 2, huge), K3_EINVAL);
	cr_assert_eq(k3_st_writer_declare(w, "y", K3_I32, 1, &six), K3_EINVAL);
	cr_assert_eq(k3_st_writer_declare(w, "y", K3_F32, 9, huge), K3_EINVAL);
	cr_assert_eq(k3_st_writer_declare(w, "\xff", K3_F32, 1, &six), K3_EINVAL);
	cr_assert_eq(k3_st_writer_declare(w, "__metadata__", K3_F32, 1, &six), K3_EINVAL);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 0, 1, data), K3_EINVAL);
	cr_assert_eq(k3_st_writer_finish(w), K3_EINVAL);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_declare(w, "y", K3_F32, 1, &six), K3_EINVAL);
	cr_assert_eq(k3_st_writer_put_f32(w, "z", 0, 1, data), K3_ENOENT);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 5, 2, data), K3_EINVAL);
	cr_assert_eq(k3_st_writer_put_f32(w, "x", 1, UINT64_MAX, data), K3_EINVAL);
	k3_st_writer_destroy(w);
	cr_assert_eq(scratch_files(), 0);
}

TEST(shards_are_cut_between_tensors_and_the_index_finds_them)
{
	size_t bytes;

	checkpoint_save(3, 2 * ELEMS * sizeof(float));
	cr_assert_eq(scratch_files(), 3);
	free(scratch_read("model-00001-of-00002.safetensors", &bytes));
	free(scratch_read("model-00002-of-00002.safetensors", &bytes));
	char *index = (char *)scratch_read("model.safetensors.index.json", &bytes);
	cr_assert_not_null(strstr(index, "\"total_size\": 72"));
	cr_assert_not_null(strstr(index, "\"b\": \"model-00001-of-00002.safetensors\""));
	cr_assert_not_null(strstr(index, "\"c\": \"model-00002-of-00002.safetensors\""));
	free(index);
	expect_checkpoint("", 3);
	expect_checkpoint("model.safetensors.index.json", 3);
}

TEST(a_tensor_larger_than_a_shard_gets_one_of_its_own)
{
	checkpoint_save(4, 1);
	cr_assert_eq(scratch_files(), 4);
	expect_checkpoint("", 4);
}

TEST(the_newest_save_wins_over_one_in_the_other_form)
{
	checkpoint_save(1, 1);
	checkpoint_save(2, 0);
	expect_checkpoint("", 2);
	checkpoint_save(3, 1);
	expect_checkpoint("", 3);
	cr_assert_neq(access(scratch_path("model.safetensors"), F_OK), 0);
}

TEST(what_was_loaded_and_saved_again_has_the_same_bytes)
{
	static const float values[] = { 1.25f, -3, 0x1p-100f, 7, 65536, 0 };
	static const uint64_t dims[] = { 2, 3 };
	struct k3_st_writer *w = writer_make(0);
	struct k3_st *st;
	size_t bytes[2];

	cr_assert_eq(k3_st_writer_declare(w, "language_model.w", K3_F32, 2, dims), K3_OK);
	cr_assert_eq(k3_st_writer_declare(w, "language_model.b", K3_BF16, 2, dims), K3_OK);
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "language_model.w", 0, ELEMS, values), K3_OK);
	cr_assert_eq(k3_st_writer_put_f32(w, "language_model.b", 0, ELEMS, values), K3_OK);
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);

	cr_assert_eq(k3_st_open(&st, scratch_path("")), K3_OK);
	cr_assert_eq(k3_st_writer_create(&w, scratch_path(""), "again", 0), K3_OK);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const struct k3_st_tensor *t = k3_st_at(st, i);
		cr_assert_eq(k3_st_writer_declare(w, t->name, t->dtype, t->n_dims, t->dims), K3_OK);
	}
	cr_assert_eq(k3_st_writer_begin(w), K3_OK);
	for (size_t i = 0; i < k3_st_count(st); i++) {
		const struct k3_st_tensor *t = k3_st_at(st, i);
		float data[ELEMS];
		cr_assert_eq(k3_st_read_f32(t, 0, ELEMS, data), K3_OK);
		cr_assert_eq(k3_st_writer_put_f32(w, t->name, 0, ELEMS, data), K3_OK);
	}
	cr_assert_eq(k3_st_writer_finish(w), K3_OK);
	k3_st_writer_destroy(w);
	k3_st_close(st);
	unsigned char *first = scratch_read("model.safetensors", &bytes[0]);
	unsigned char *second = scratch_read("again.safetensors", &bytes[1]);
	cr_assert_eq(bytes[0], bytes[1]);
	cr_assert_arr_eq(first, second, bytes[0]);
	free(first);
	free(second);
}

/* Saves value 9 over the checkpoint and dies on the way. */
static void
save_until(int point)
{
	static const float data[ELEMS] = { 9, 9, 9, 9, 9, 9 };
	struct k3_st_writer *w = writer_make(1);

	declare(w, "a", K3_F32, ELEMS);
	declare(w, "b", K3_F32, ELEMS);
	if (point == 0)
		raise(SIGKILL);
	k3_st_writer_begin(w);
	if (point == 1)
		raise(SIGKILL);
	k3_st_writer_put_f32(w, "a", 0, ELEMS / 2, data);
	if (point == 2)
		raise(SIGKILL);
	k3_st_writer_put_f32(w, "a", ELEMS / 2, ELEMS / 2, data);
	if (point == 3)
		raise(SIGKILL);
	k3_st_writer_put_f32(w, "b", 0, ELEMS, data);
	raise(SIGKILL);
}

TEST(a_save_killed_at_any_point_leaves_the_previous_checkpoint)
{
	for (int point = 0; point < 5; point++) {
		int status;
		checkpoint_save((float)point, point % 2 ? 1 : 0);
		pid_t child = fork();
		if (child == 0) {
			save_until(point);
			_exit(0);
		}
		cr_assert_eq(waitpid(child, &status, 0), child);
		cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		expect_checkpoint("", (float)point);
	}
}

TEST(a_full_disk_shows_before_the_first_byte_of_data)
{
	struct rlimit limit = { 4096, RLIM_INFINITY };
	struct k3_st_writer *w = writer_make(0);

	signal(SIGXFSZ, SIG_IGN);
	declare(w, "x", K3_F32, 100000);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	cr_assert_eq(k3_st_writer_begin(w), K3_EIO);
	cr_assert_not_null(strstr(scratch_log(), "cannot reserve"));
	k3_st_writer_destroy(w);
	cr_assert_eq(scratch_files(), 0);
}

TEST(a_folder_that_vanished_stops_the_save)
{
	struct k3_st_writer *w;
	const char *folder = scratch_path("gone");

	cr_assert_eq(mkdir(folder, 0700), 0);
	cr_assert_eq(k3_st_writer_create(&w, folder, "model", 0), K3_OK);
	cr_assert_eq(rmdir(folder), 0);
	declare(w, "x", K3_F32, ELEMS);
	cr_assert_eq(k3_st_writer_begin(w), K3_EIO);
	cr_assert_not_null(strstr(scratch_log(), "gone/model.safetensors.partial: cannot create"));
	k3_st_writer_destroy(w);
}
