#include "held.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

static struct {
	void *plain[MOST];
	float *guarded[MOST];
	size_t n_plain, n_guarded;
} held;

static void *
keep(void *p)
{
	cr_assert(p && held.n_plain < MOST, "no memory, or more than %d pieces of it", MOST);
	return held.plain[held.n_plain++] = p;
}

void
held_guards(void)
{
	size_t broken = 0;

	for (size_t i = 0; i < held.n_guarded; i++)
		broken += !fixture_guards_intact(held.guarded[i]);
	cr_assert_eq(broken, 0, "%zu buffers were written beyond their ends", broken);
}

void
held_end(void)
{
	held_guards();
	for (size_t i = 0; i < held.n_guarded; i++)
		fixture_free_poisoned(held.guarded[i]);
	for (size_t i = 0; i < held.n_plain; i++)
		free(held.plain[i]);
	memset(&held, 0, sizeof(held));
}

float *
held_input(const char *dump, const char *tensor)
{
	struct k3_st *st = fixture_open(dump);
	float *x = keep(fixture_f32(st, tensor, NULL));

	k3_st_close(st);
	return x;
}

int32_t *
held_ints(const char *dump, const char *tensor)
{
	struct k3_st *st = fixture_open(dump);
	int32_t *x = keep(fixture_i32(st, tensor, NULL));

	k3_st_close(st);
	return x;
}

float *
held_out(size_t n_elems)
{
	cr_assert(held.n_guarded < MOST, "more than %d outputs", MOST);
	return held.guarded[held.n_guarded++] = fixture_poisoned(n_elems);
}

int32_t *
held_out_ints(size_t n_elems)
{
	return (int32_t *)(void *)held_out(n_elems);
}

float *
held_copy(const float *x, size_t n_elems)
{
	return memcpy(held_out(n_elems), x, n_elems * sizeof(*x));
}

float *
held_columns(const float *x, size_t rows, size_t width, size_t c0, size_t c1)
{
	size_t n = c1 - c0;
	float *out = held_out(rows * n);

	for (size_t i = 0; i < rows; i++)
		memcpy(out + i * n, x + i * width + c0, n * sizeof(*out));
	return out;
}

float *
held_random(uint64_t seed, size_t n_elems, double lo, double hi)
{
	float *x = held_out(n_elems);

	for (size_t i = 0; i < n_elems; i++)
		x[i] = (float)fixture_uniform(seed, i, lo, hi);
	return x;
}

int32_t *
held_layout(const int32_t *doc_ids, size_t t, size_t row0)
{
	return keep(fixture_layout(doc_ids, t, (int)row0, 0, 0, 0, 0));
}

void
held_push(struct held_task *task, void *data)
{
	cr_assert(task->n < HELD_BUFFERS, "more than %d buffers", HELD_BUFFERS);
	task->buf[task->n++] = data;
}

struct k3_list
held_push_list(struct held_task *task, void *data)
{
	struct k3_list l = {task->n, data != NULL};

	if (data)
		held_push(task, data);
	return l;
}

struct k3_weight
held_push_weight(struct held_task *task, float *x, size_t rows, size_t cols, size_t block_rows,
		 int accumulate)
{
	struct k3_weight w = {task->n, 0, rows, cols, block_rows, (uint32_t)accumulate};

	for (size_t r = 0; r < rows; r += block_rows, w.n++)
		held_push(task, x + r * cols);
	return w;
}

void
held_expect(const float *got, const char *dump, const char *tensor, double tol)
{
	struct k3_st *st = fixture_open(dump);
	size_t n;
	double *want = fixture_f64(st, tensor, &n);

	fixture_expect_close(got, want, n, tol, tensor);
	free(want);
	k3_st_close(st);
	held_guards();
}

void
held_expect_close(const float *got, const float *want, size_t n_elems, double tol, const char *what)
{
	double *wide = malloc((n_elems + 1) * sizeof(*wide));

	for (size_t i = 0; i < n_elems; i++)
		wide[i] = (double)want[i];
	fixture_expect_close(got, wide, n_elems, tol, what);
	free(wide);
	held_guards();
}

void
held_expect_same(const float *got, const float *want, size_t n_elems, const char *what)
{
	for (size_t i = 0; i < n_elems; i++)
		cr_assert(memcmp(got + i, want + i, sizeof(*got)) == 0,
			  "%s[%zu] is %.9g, expected %.9g exactly", what, i, (double)got[i],
			  (double)want[i]);
	held_guards();
}

void
held_expect_all(const float *got, float value, size_t n_elems, const char *what)
{
	for (size_t i = 0; i < n_elems; i++)
		cr_assert(got[i] == value, "%s[%zu] is %g, expected %g exactly", what, i,
			  (double)got[i], (double)value);
	held_guards();
}
