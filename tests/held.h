/* Memory of one test: inputs and expected values from a dump, poisoned outputs, the buffers of a
 * task. Every comparison looks at the guards of all outputs. The trap: Criterion shows a failed
 * assertion in a .fini but does not count it, so a test ends with held_end() in its body. */
#ifndef K3_TESTS_HELD_H
#define K3_TESTS_HELD_H
#include "fixture.h"

enum { HELD_BUFFERS = 32 };

struct held_task {
	void *buf[HELD_BUFFERS];
	uint32_t n;
};

/** Fails the test when a guard is broken, and frees everything; last statement of a test. */
void held_end(void);
/** Fails the test when an output was written beyond its ends. */
void held_guards(void);
float *held_input(const char *dump, const char *tensor);
int32_t *held_ints(const char *dump, const char *tensor);
/** NaN with guards; as int32 a number that is no valid index. */
float *held_out(size_t n_elems);
int32_t *held_out_ints(size_t n_elems);
/** A copy with guards. */
float *held_copy(const float *x, size_t n_elems);
/** Columns c0 .. c1-1 of x [rows, width], packed. */
float *held_columns(const float *x, size_t rows, size_t width, size_t c0, size_t c1);
/** Uniform in [lo, hi), fixed seed. */
float *held_random(uint64_t seed, size_t n_elems, double lo, double hi);
int32_t *held_layout(const int32_t *doc_ids, size_t t, size_t row0);

void held_push(struct held_task *task, void *data);
struct k3_list held_push_list(struct held_task *task, void *data);
/** Pushes x [rows, cols] in blocks of block_rows. */
struct k3_weight held_push_weight(struct held_task *task, float *x, size_t rows, size_t cols,
				  size_t block_rows, int accumulate);

/** RMS comparison with a tensor of a dump, all of it. */
void held_expect(const float *got, const char *dump, const char *tensor, double tol);
/** RMS comparison with float values. */
void held_expect_close(const float *got, const float *want, size_t n_elems, double tol,
		       const char *what);
/** Bitwise comparison. */
void held_expect_same(const float *got, const float *want, size_t n_elems, const char *what);
/** Every element is exactly value. */
void held_expect_all(const float *got, float value, size_t n_elems, const char *what);

#endif
