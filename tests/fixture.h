/* What the tests share: small safetensors dumps of the NumPy oracles, comparison, task-argument
 * set-up. */
#ifndef K3_TESTS_FIXTURE_H
#define K3_TESTS_FIXTURE_H
#include <stddef.h>
#include <stdint.h>

#include "../common/op/op.h"
#include "../common/safetensors.h"

/** Opens tests/data/<name>.safetensors (folder: environment K3_TEST_DATA, default tests/data);
 * fails the test when it can't. */
struct k3_st *fixture_open(const char *name);
/** A tensor as malloc'ed float (double, int32) array; *n_elems may be NULL. */
float *fixture_f32(const struct k3_st *st, const char *tensor, size_t *n_elems);
double *fixture_f64(const struct k3_st *st, const char *tensor, size_t *n_elems);
int32_t *fixture_i32(const struct k3_st *st, const char *tensor, size_t *n_elems);

/** malloc'ed floats filled with NaN, with poisoned guards on both sides; fixture_guards_intact
 * checks them. */
float *fixture_poisoned(size_t n_elems);
int fixture_guards_intact(const float *data);
void fixture_free_poisoned(float *data);

/** RMS(got - want) / RMS(want), in double; NaN in got gives NaN. */
double fixture_rms_ratio(const float *got, const double *want, size_t n_elems);
double fixture_rms_ratio_f32(const float *got, const float *want, size_t n_elems);
/** Fails the test with index, expected and got when the ratio exceeds tol or something is not
 * finite. */
void fixture_expect_close(const float *got, const double *want, size_t n_elems, double tol,
			  const char *what);

/** A weight of one block at buffer `first`. */
struct k3_weight fixture_weight(uint32_t first, size_t rows, size_t cols, int accumulate);
/** Layout of a tile that holds whole documents of the given lengths (malloc'ed), first row global
 * row0. */
int32_t *fixture_layout(const int32_t *doc_ids, size_t t, int row0, int cont_in, int cont_out,
			int hist_in, int hist_out);
/** How often a part stands in a text. */
size_t fixture_count(const char *text, const char *part);
/** Uniform in [lo, hi) of counter i, fixed seed. */
double fixture_uniform(uint64_t seed, uint64_t i, double lo, double hi);

#endif
