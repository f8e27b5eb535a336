/* CUDA kernels against CPU kernels: fresh random inputs, outputs poisoned before each run.
 *
 * A case lists the task's buffers in order.  cuda_case_compare runs the CPU kernel in float, the float
 * CUDA kernel on the same values, and the bf16 CUDA kernel on values rounded to bf16 (then the CPU
 * kernel too sees the rounded ones), and compares every output by RMS(got - want) / RMS(want).
 */
#ifndef K3_TESTS_CUDA_CASE_H
#define K3_TESTS_CUDA_CASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../codelets/cuda/cuda.h"
#include "../../common/op/op.h"

enum cuda_operand_type {
	CUDA_T,	  /* float, bf16 in the bf16 kernel */
	CUDA_F32, /* float in both */
	CUDA_F64,
	CUDA_I32,
	CUDA_WORK /* content means nothing; elems are bytes */
};
enum cuda_operand_mode { CUDA_R = 1, CUDA_W = 2, CUDA_RW = 3 };

struct cuda_operand {
	enum cuda_operand_type type;
	enum cuda_operand_mode mode;
	size_t elems;
	void *host; /* float, double or int32 values; of outputs the CPU kernel's result */
	/* largest RMS ratio, 0: 1e-5 and 5e-3; integers and doubles 0: equal */
	double tolerance_f32, tolerance_bf16;
	const char *name;
};

enum { CUDA_CASE_MAX = 96 };
struct cuda_case {
	size_t n;
	struct cuda_operand operand[CUDA_CASE_MAX];
	uint64_t seed;
};

/** Skips the running test unless there is a device. */
void cuda_case_need_device(void);

/** Empties the case and seeds its random numbers. */
void cuda_case_begin(struct cuda_case *c, uint64_t seed);
/** Frees all values. */
void cuda_case_end(struct cuda_case *c);

/* Add a buffer; its number in buf[]. */
/** Normal(0, scale) values (R, RW), or poison (W). */
uint32_t cuda_case_add(struct cuda_case *c, enum cuda_operand_type type,
		       enum cuda_operand_mode mode, size_t elems, double scale, const char *name);
/** Given values, copied. */
uint32_t cuda_case_values(struct cuda_case *c, enum cuda_operand_type type,
			  enum cuda_operand_mode mode, size_t elems, const void *values,
			  const char *name);
/** A weight (CUDA_R), or a gradient that is written (CUDA_W, CUDA_F32) or added to (CUDA_RW), in row
 * blocks. */
struct k3_weight cuda_case_weight(struct cuda_case *c, enum cuda_operand_type type,
				  enum cuda_operand_mode mode, size_t rows, size_t cols,
				  size_t block_rows, double scale, const char *name);
/** n buffers of the same size. */
struct k3_list cuda_case_list(struct cuda_case *c, enum cuda_operand_type type,
			      enum cuda_operand_mode mode, size_t n, size_t elems, double scale,
			      const char *name);
/** Other bounds for the buffer that was added last. */
void cuda_case_tolerance(struct cuda_case *c, double f32, double bf16);

typedef void cuda_case_cpu(void *const *buf, const void *args);
typedef void cuda_case_cuda(void *const *buf, const void *args, const struct k3_cuda *cuda);

/**
 * Runs and compares; failures are reported with the names of case and buffer.
 * @param args     arguments struct; n_buf is set here
 * @param scratch  bytes for the CUDA kernels
 * @param bf16     NULL: the operation has no bf16 kernel
 */
void cuda_case_compare(struct cuda_case *c, const char *name, void *args, cuda_case_cpu *cpu,
		       cuda_case_cuda *f32, cuda_case_cuda *bf16, size_t scratch);

/* Typed functions as the ones above. */
#define CUDA_CASE_COMPARE(c, name, args, cpu, stem, scratch)                                       \
	cuda_case_compare(c, name, args, (cuda_case_cpu *)(void (*)(void))(cpu),                   \
			  (cuda_case_cuda *)(void (*)(void))k3_##stem##_cuda_f32,                  \
			  (cuda_case_cuda *)(void (*)(void))k3_##stem##_cuda_bf16, scratch)

#endif
