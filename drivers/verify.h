/* Golden cases through the real task graph: loading, running, comparing (k3_verify). */
#ifndef K3_DRIVERS_VERIFY_H
#define K3_DRIVERS_VERIFY_H
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "session.h"

struct k3_verify_options {
	const char *weights;	 /* checkpoint for cases that hold no weights; NULL */
	uint32_t tile_tokens;	 /* 0: one tile */
	const char *activations; /* see activations.h; NULL: keep */
	uint32_t bands;		 /* bands that each image is cut in; 0: by patches */
	bool forced_routing;
	enum k3_dtype dtype;
	bool first_difference;	 /* prints every place of the walk, in order */
	const char *plant_fault; /* name of a tensor whose result is spoilt before the comparison;
				    NULL */
	struct k3_runtime_options runtime; /* the trace of file X.safetensors goes to trace_dir/X */
};

/* Places of the forward walk in its order; the backward walk takes them the other way.  One from
 * K3_PLACE_TOWER + 1 on is a tower block, one from K3_PLACE_LAYERS on a layer. */
enum k3_verify_place {
	K3_PLACE_NONE = -1,
	K3_PLACE_TOWER = 0, /* patch embedding */
	K3_PLACE_TOWER_END = 1 << 20,
	K3_PLACE_FEATURES,
	K3_PLACE_EMBEDDINGS,
	K3_PLACE_LAYERS,
	K3_PLACE_HEAD = 1 << 21
};

/* One tensor's comparison; the verdict on a class is that of its worst tensor. */
struct k3_verify_entry {
	char cls[48], name[160];
	int place;
	size_t n_elems;
	double ratio, max_abs, want_max, tolerance;
	double err_square, want_square; /* sums over the elements */
	double *got; /* [n_elems] when values are kept, else NULL */
	bool spoilt; /* missing, not finite, or not zero where zero is the definition */
	char why[112];
};

struct k3_verify_report {
	size_t n, cap;
	struct k3_verify_entry *entry;
	json_t *deviation; /* float32_run_rms_deviation of the file, or NULL */
	/* the same of bfloat16, and its median over the tensors of a class */
	json_t *bf16_deviation, *bf16_median;
	enum k3_dtype dtype;
	bool forced_routing;
	uint32_t layers; /* of the file's model */
	const char *plant_fault;
	bool planted; /* a tensor of that name was found */
	bool first_difference, keep_values;
	size_t passed, failed; /* classes */
};

void k3_verify_report_init(struct k3_verify_report *report,
			   const struct k3_verify_options *options);
void k3_verify_report_fini(struct k3_verify_report *report);

/**
 * Compares n values.  Error = RMS(got - want) / RMS(want); an all-zero want that zero_by_definition
 * names must be met exactly.
 * @param tolerance  of fp32: raised to three times the file's own float32 deviation of the class; in
 *                   bf16 the class has its own
 */
void k3_verify_compare(struct k3_verify_report *report, const char *cls, const char *name,
		       int place, const double *got, const double *want, size_t n, double tolerance,
		       bool zero_by_definition);
/** The same for one value per comparison: relative error. */
void k3_verify_compare_one(struct k3_verify_report *report, const char *cls, const char *name,
			   double got, double want, double tolerance);
/** Integers are equal or fail; in bf16 with free routing 4 % of them may differ. */
void k3_verify_compare_ints(struct k3_verify_report *report, const char *cls, const char *name,
			    int place, const int32_t *got, const int32_t *want, size_t n);
/** Was a tensor of this name compared, or reported as missing? */
bool k3_verify_compared(const struct k3_verify_report *report, const char *name);
/** A tensor that should be there and is not. */
void k3_verify_missing(struct k3_verify_report *report, const char *cls, const char *name);
/** Prints the table of a file and the first place that differs; adds to passed and failed, and
 * drops the entries unless values are kept. */
void k3_verify_print(struct k3_verify_report *report, const char *file, FILE *out);

/** Runs one file of any kind; K3_OK also when classes failed. */
int k3_verify_file(const char *path, const struct k3_verify_options *options,
		   struct k3_verify_report *report);

/* Parts, by kind of file */
int k3i_verify_model(const struct k3_st *st, const struct k3_verify_options *options,
		     struct k3_verify_report *report);
int k3i_verify_train(const struct k3_st *st, const struct k3_verify_options *options,
		     struct k3_verify_report *report);
int k3i_verify_ops(const struct k3_st *st, const struct k3_verify_options *options,
		   struct k3_verify_report *report);

/** Histogram [e, bins] and new biases [e] of the quantile rule for scores [t, e]. */
int k3i_verify_quantile(const double *scores, const double *bias_in, size_t t, size_t e, size_t k,
			size_t bins, int32_t *hist, double *bias_out);

/** Tolerance in bf16 (parity.md 3, golden cases) of a class that has this one in fp32; INFINITY: nothing
 * is promised. */
double k3i_verify_bf16_tolerance(const struct k3_verify_report *report, const char *cls,
				 double fp32_tolerance);
/** Before bf16 tensors are judged: those that are small differences of large sums (A_log's gradients) are
 * measured by the size of all of them. */
void k3i_verify_bf16_pool(struct k3_verify_report *report);
/** Most of the median error over the tensors of a class in bf16; INFINITY: it has no such bound. */
double k3i_verify_bf16_median(const struct k3_verify_report *report, const char *cls);

/** Place of a checkpoint tensor's gradient. */
int k3i_verify_place(const struct k3_params *params, const struct k3_ckpt_tensor *tensor);
/** Do the results of a come before those of b? */
bool k3i_verify_before(const struct k3_verify_entry *a, const struct k3_verify_entry *b);
bool k3i_verify_backward(const struct k3_verify_entry *entry);
/** Name of a place, for people; returns text. */
const char *k3i_verify_place_text(int place, char *text, size_t bytes);

/** Configuration of a case: hf_config with every eps of the file. */
int k3i_verify_config(const struct k3_st *st, struct k3_config *config);
/** A metadata value as JSON of a type; *value is NULL when the key is absent. K3_EFORMAT (logged):
 * no JSON, or another type. */
int k3i_verify_metadata(const struct k3_st *st, const char *key, json_type type, json_t **value);
/** Tensor of the file as malloc'ed double or int32 array; NULL when it is absent or can't be read.
 */
double *k3i_verify_f64(const struct k3_st *st, const char *name, size_t *n);
int32_t *k3i_verify_i32(const struct k3_st *st, const char *name, size_t *n);
/** Tokens and labels are in the vocabulary (negative labels count for nothing), else the first
 * offender is logged. */
int k3i_verify_check_tokens(const int32_t *ids, const int32_t *labels, size_t n, uint32_t vocab);
/** Expert ids that are to be forced are in range, else the first offender is logged. */
int k3i_verify_check_ids(const char *name, const int32_t *ids, size_t n, uint32_t experts);
/**
 * A checkpoint tensor of the store as malloc'ed doubles with its padding; kind 0 parameter, 1
 * gradient, 2 and 3 moments; NULL when memory is out.
 */
double *k3i_verify_tensor(struct k3_store *store, const struct k3_ckpt_tensor *t, uint32_t kind,
			  size_t *n);

#endif
