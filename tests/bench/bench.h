/* Cases of `k3_bench op`: one or more kernel calls with everything that they read and write.
 *
 * A family's function builds a case, lets it run once, compares every output with a plain form, and
 * closes it; closing times the calls, unless a comparison failed, and prints a line.  The plain
 * forms share no code with the kernels: sums and elementwise formulas in double, products by
 * Freivalds' test (bench_rows).  Times are of the thread's own processor clock, so that other
 * processes on a busy machine do not count; a rate is set against a limit that the same machine
 * showed in between: every repetition times the calls, then the limit.
 *
 * On a device (bench_cuda.c) the same cases run twice: on few rows to be checked, since the plain
 * forms are slow, then on all rows to be timed.  Buffers are built on the host as floats; a type
 * of each says how it lies on the device.
 */
#ifndef K3_TESTS_BENCH_H
#define K3_TESTS_BENCH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../common/config.h"
#include "../../common/ops.h"

struct k3i_device;

/* What a check on few rows found. */
struct bench_checked {
	char path[160];
	double error;
	bool wrong;
};

/* One run of the program. */
struct bench {
	const char *family; /* at work */
	const struct k3_config *model;
	size_t tokens;	 /* rows of a tile */
	size_t sequence; /* rows of the KDA chunk cases */
	size_t repeat;
	uint32_t heads;	    /* in place of the model's; 0: those */
	size_t payloads;    /* of the mix; 0: those of the model's last layer */
	const char *filter; /* cases whose "MODEL/CASE" holds this text; NULL: all */
	const char *fault;  /* CASE/OUTPUT whose result is spoilt before the comparison */
	bool list;	    /* prints the cases and their outputs, runs none */
	size_t cases, wrong, planted;
	bool check, time;	   /* what is done with a case; both on a CPU */
	bool last;		   /* rows are printed; else a check is kept for them */
	struct k3i_device *device; /* NULL: one CPU thread */
	bool bf16;
	struct bench_checked *checked; /* [n_checked] */
	size_t n_checked;
};

typedef void (*bench_family)(struct bench *b);
void bench_attnres(struct bench *b);
void bench_embed(struct bench *b);
void bench_glu(struct bench *b);
void bench_kda(struct bench *b);
void bench_loss(struct bench *b);
void bench_mla(struct bench *b);
void bench_moe(struct bench *b);
void bench_optim(struct bench *b);
void bench_vit(struct bench *b);

enum { BENCH_BUFFERS = 64, BENCH_CALLS = 2, BENCH_OUTPUTS = 16 };
/* Behind each output, on the host and on a device. */
enum { BENCH_GUARD_BYTES = 256, BENCH_GUARD_BYTE = 0xA5 };

/* What the time is compared with, each on one thread. */
enum bench_limit {
	BENCH_SAME,   /* OpenBLAS sgemm of the same shapes, packed */
	BENCH_CUBE,   /* OpenBLAS sgemm 512^3 */
	BENCH_MEMORY, /* a += s b over arrays of the same size together: the same cache */
	BENCH_N_LIMITS
};

/* C [m,n] = op(A) op(B) with inner length k: A B^T, A B, A^T B. */
enum bench_form { BENCH_NT, BENCH_NN, BENCH_TN };

struct bench_product {
	enum bench_form form;
	size_t m, n, k;
	float *a, *b, *c; /* of the limit */
};

/* On the host a float, but for F64 and I32. */
enum bench_type {
	BENCH_F32,
	BENCH_F64,
	BENCH_I32,
	BENCH_T,   /* bf16 on a device in that mode */
	BENCH_WORK /* content means nothing */
};
struct bench_output {
	const char *name;
	void *data;
	size_t n;
	enum bench_type type;
};

struct bench_memory {
	void *host, *device;
	size_t bytes;
	enum bench_type type;
	bool written, read; /* by kernels */
};

struct bench_call {
	struct bench_case *c;
	enum k3_op op;
	void *buf[BENCH_BUFFERS];
	uint32_t n;
	void *args;
	double flops;			  /* the products' when there are any */
	double traffic_bytes, size_bytes; /* what moves; what is held */
	double unmoved_bytes; /* of the buffers' floats, those that stay where they are */
	double *seconds;      /* of each repetition */
};

struct bench_case {
	struct bench *b;
	char name[64], shape[96];
	struct bench_call call[BENCH_CALLS];
	size_t n_calls;
	enum bench_limit limit;
	double target; /* share of the limit that is asked for; 0: none */
	struct bench_product *product;
	size_t n_products;
	struct bench_output output[BENCH_OUTPUTS];
	size_t n_outputs;
	double error; /* worst so far */
	bool wrong;
	struct bench_memory *memory;
	size_t n_memory;
	double loose; /* factor of what bf16 may lose; 0: 1 */
	uint64_t seed;
};

/* Targets: shares of one-thread sgemm. */
#define BENCH_TARGET_GEMM 0.85
#define BENCH_TARGET_KDA 0.33
#define BENCH_TARGET_ATTENTION 0.50

/** Starts a case. @return false when the filter leaves it out: nothing is to be closed then */
bool bench_open(struct bench_case *c, struct bench *b, const char *name, enum bench_limit limit,
		double target, const char *shape_format, ...) __attribute__((format(printf, 6, 7)));
/** Adds a call of the operation's kernel; its buffers follow in the order of the contract. */
struct bench_call *bench_call(struct bench_case *c, enum k3_op op);
/** Takes a copy of the arguments and sets n_buf; after the last buffer. */
void bench_args(struct bench_call *call, const void *args, size_t bytes);
/** Are results compared at all? If not, what only the comparison needs may be left out. */
bool bench_checks(const struct bench_case *c);
/** Runs all calls once. @return true: the outputs are there to be compared */
bool bench_run(struct bench_case *c);
/** Times the calls if all was right, prints the line, frees the case's memory. */
void bench_close(struct bench_case *c);

/** Memory of the case, aligned as StarPU's buffers are, freed by bench_close. */
void *bench_memory(struct bench_case *c, size_t bytes);
/** The record of what bench_memory gave. */
struct bench_memory *bench_record(struct bench_case *c, const void *data);
/** Floats in every mode: what the contract marks (f32), vectors, taps. data begins its memory. */
void bench_keep(struct bench_case *c, const void *data);
/** n times x. */
double *bench_constants(struct bench_case *c, size_t n, double x);
/** Uniform in [lo, hi), another stream with each call. */
float *bench_random(struct bench_case *c, size_t n, double lo, double hi);
/** Layout of a tile of one document. */
int32_t *bench_layout(struct bench_case *c, size_t t);
/** Pushes what there is; gives it back. */
void *bench_push(struct bench_call *call, const void *data);
/** Pushes uniform numbers in [-1, 1). */
float *bench_in(struct bench_call *call, size_t n);
float *bench_work(struct bench_call *call, size_t n);
/** Pushes an output, filled with NaN (-1) and guarded; the comparison is by this name. */
void *bench_out_typed(struct bench_call *call, const char *name, size_t n, enum bench_type type);
float *bench_out(struct bench_call *call, const char *name, size_t n);
/** Pushes an output that the kernel adds to; *before gets a copy of what it holds. */
float *bench_inout(struct bench_call *call, const char *name, size_t n, float **before);
struct k3_list bench_list(struct bench_call *call, uint32_t n_before);
/** Weight of one block: the buffer pushed last. */
struct k3_weight bench_last(const struct bench_call *call, size_t rows, size_t cols);
/** Pushes a random weight in [-1, 1) and gives it through *w. */
struct k3_weight bench_weight(struct bench_call *call, size_t rows, size_t cols, float **w);
/** Pushes the gradient of a weight, an output that the kernel writes. */
struct k3_weight bench_gradient(struct bench_call *call, const char *name, size_t rows, size_t cols,
				float **dw);
/**
 * Counts the memory traffic of floats that are read, written and updated (both). A line that is
 * written is read before, as stores of this size do without being asked, so both of the last count
 * twice.
 */
void bench_traffic(struct bench_call *call, size_t read, size_t written, size_t updated);
/** On a device the bytes of all buffers count, once for each way; so many floats of them do not. */
void bench_unmoved(struct bench_call *call, size_t elems);
/** Counts 2 m n k flops, and lets sgemm do the same for the limit. */
void bench_product(struct bench_call *call, enum bench_form form, size_t m, size_t n, size_t k);

/* Rows of y [m, n] times a vector of random signs, against sums of products and matrices times the
 * same vector: every element takes part, at the cost of reading the matrices (Freivalds 1977). */
struct bench_rows {
	struct bench_case *c;
	const float *y;
	size_t ldy, m, n, length;
	double *sign, *want;
};
struct bench_rows bench_rows(struct bench_case *c, const float *y, size_t ldy, size_t m, size_t n);
void bench_rows_product(struct bench_rows *w, enum bench_form form, size_t k, const float *a,
			size_t lda, const float *b, size_t ldb);
void bench_rows_add(struct bench_rows *w, const float *x, size_t ldx);
void bench_rows_expect(const struct bench_rows *w, const char *what);

/**
 * Compares all elements: the largest difference over the RMS of want must not exceed what sums of
 * `length` terms may lose. got has rows of ldg, want is packed [m, n].
 */
void bench_expect(struct bench_case *c, const char *what, const float *got, size_t ldg,
		  const double *want, size_t m, size_t n, size_t length);
/** Records a comparison of the family's own: error above tolerance is wrong. */
void bench_judge(struct bench_case *c, const char *what, double error, double tolerance);
/** 2^-24 times what a sum of so many terms loses, with room for the last places of exp and tanh. */
double bench_tolerance(size_t length);
/** y [m, n] = op(A) op(B), without leading dimensions. */
void bench_dgemm(double *y, enum bench_form form, size_t m, size_t n, size_t k, const double *a,
		 const double *b);
/** op(A) op(B) [m, n] in double, for what a kernel hands to nobody. */
double *bench_wide(struct bench_case *c, enum bench_form form, size_t m, size_t n, size_t k,
		   const float *a, size_t lda, const float *b, size_t ldb);
double *bench_doubles(struct bench_case *c, size_t n);
/** Rounded to float. */
float *bench_narrow(struct bench_case *c, const double *x, size_t n);
double bench_sigmoid(double x);
/** y = x w / sqrt(mean x^2 + eps) of one row. */
void bench_rms(double *y, const float *x, const float *w, size_t n, double eps);
/** Its gradient; dw is added to. */
void bench_rms_back(double *dx, double *dw, const double *dy, const float *x, const float *w,
		    size_t n, double eps);

/** Fills seconds of all calls and the limit's rate (flop/s, byte/s) of each repetition. */
void bench_measure(struct bench_case *c, double *limit_rate);
/** Quantile of n numbers, which are sorted. */
double bench_quantile(double *x, size_t n, double q);
/** Runs the kernel of a call. */
void bench_kernel(const struct bench_call *call);

/* On a device, bench_cuda.c. */
/** Runs all calls once there, results on the host. */
void bench_device_run(struct bench_case *c);
/** Fills seconds and traffic_bytes of all calls, and the limit's rates. */
void bench_device_measure(struct bench_case *c, double *limit_rate);
void bench_device_release(struct bench_case *c);

#endif
