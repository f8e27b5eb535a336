/* Inside of the trace: records, their order in time, and output that a signal handler may use. */
#ifndef K3_TASKS_TRACE_RECORD_H
#define K3_TASKS_TRACE_RECORD_H
#include <stdatomic.h>

#include "trace.h"

enum k3i_record_state { K3I_FREE, K3I_WAITING, K3I_RUNNING, K3I_DONE };

struct k3_trace_record {
	int64_t ready_ns, start_ns, end_ns;
	double flops;
	int32_t step, microbatch, tile, group;
	uint32_t n_data;
	int32_t released_ns; /* after end_ns */
	int16_t layer, worker;
	uint16_t op;
	uint8_t pass;
	_Atomic uint8_t state; /* enum k3i_record_state; the rest is set before it */
};

/* A task that has started, as it was when the snapshot was taken. */
struct k3i_span {
	int64_t start, end; /* ns */
	uint32_t record;
	int16_t worker;
	bool open; /* still running; end is the time of the snapshot */
};

struct k3i_worker {
	char name[16];
	bool device;
	int64_t until; /* for the writer: when the state shown now ends */
};

/* A file in the making. No allocation, no stdio: write(2) alone. */
struct k3i_out {
	int fd, failed; /* errno of the first failure */
	uint64_t bytes; /* written so far */
	size_t used;
	char buffer[1 << 16];
};

struct k3_trace {
	char *dir, *paje, *tsv, *part; /* the folder; files in it; name of the file in the making */
	uint32_t rank, n_workers;
	uint32_t n_counted; /* workers whose shares are told: devices' streams when there are any */
	struct k3i_worker *worker;
	int64_t (*now_ns)(void);
	bool signals;
	int32_t step, microbatch;
	size_t capacity;
	struct k3_trace_record *ring;
	_Atomic uint64_t n_recorded; /* record i is ring[i % capacity] */
	uint64_t n_lost;
	/* the snapshot: what has started, by start; one writer at a time */
	struct k3i_span *span;
	size_t n_spans, n_open, n_waiting;
	int64_t end_ns; /* end of the last span, or now when one is open */
	struct k3i_out out;
	uint64_t paje_bytes, tsv_bytes;
};

/** Names of a record: "kda_chunk_fwd s3 m0 l2 t0 g1"; without the parts that it does not have. */
void k3i_out_name(struct k3i_out *out, const struct k3_trace_record *r);
void k3i_out_open(struct k3i_out *out, const char *path);
void k3i_out_text(struct k3i_out *out, const char *text);
void k3i_out_int(struct k3i_out *out, int64_t x);
/** x / 10^digits with all digits, e.g. 12.345; digits <= 9. */
void k3i_out_fixed(struct k3i_out *out, int64_t x, int digits);
/** Flushes and closes; @return 0 or the errno of the first failure */
int k3i_out_close(struct k3i_out *out);

/** Fills trace->span. No allocation. */
void k3i_trace_snapshot(struct k3_trace *trace);
/** The steps' switches: does the span begin another step than `step`? Loads run ahead of theirs. */
bool k3i_trace_switches(const struct k3_trace *trace, const struct k3i_span *span, int32_t step);

struct k3i_window {
	int64_t from, to; /* ns; spans that touch it */
};
/** Closes the file in the making and gives it its name. @return 0 or an errno */
int k3i_trace_publish(struct k3_trace *trace, const char *path, uint64_t *bytes);
/** One file of the snapshot; both may run in a signal handler. @return 0 or an errno */
int k3i_trace_write_paje(struct k3_trace *trace, const char *path, struct k3i_window window,
			 uint64_t *bytes);
int k3i_trace_write_tsv(struct k3_trace *trace, const char *path, uint64_t *bytes);

/* Only one thread may write. */
bool k3i_trace_lock(void); /* false: somebody else does */
void k3i_trace_unlock(void);
bool k3i_trace_lock_is_mine(void);
int k3i_trace_signals_take(struct k3_trace *trace);
void k3i_trace_signals_return(struct k3_trace *trace);

/* ---- after the run: may allocate and use stdio */

/* What happened while a step was the newest. */
struct k3i_step {
	int32_t step;
	int64_t from, to; /* ns */
	int64_t kernels;  /* ns of the counted workers in tasks */
	uint32_t n_tasks; /* of this step, whenever they ran */
	bool complete;	  /* all of its tasks are here and have ended */
};
/** Steps in order, malloc'ed; NULL when there are none or memory is out. */
struct k3i_step *k3i_trace_steps(const struct k3_trace *trace, size_t *n);

/** summary.txt as text, malloc'ed. */
char *k3i_trace_summary(struct k3_trace *trace);

/* What a picture shows: a step, and in it one layer, forward and backward. */
struct k3i_view {
	struct k3i_step step;
	int layer; /* -1: none */
	struct k3i_window forward, backward;
};
/** The newest complete step and its middle layer. @return false: there is none */
bool k3i_trace_view(const struct k3_trace *trace, struct k3i_view *view);
/** An SVG of a step, or of one layer. */
int k3i_trace_svg_step(const struct k3_trace *trace, const struct k3i_view *view, const char *path);
int k3i_trace_svg_layer(const struct k3_trace *trace, const struct k3i_view *view,
			const char *path);
/** All pictures that this machine can make. */
void k3i_trace_render(struct k3_trace *trace);

/** dir/name, malloc'ed. */
char *k3i_trace_path(const struct k3_trace *trace, const char *name);

/* Is it one of those that n_counted counts? */
static inline bool
k3i_counts(const struct k3_trace *trace, int worker)
{
	return trace->n_counted == trace->n_workers || trace->worker[worker].device;
}

static inline const struct k3_trace_record *
k3i_record(const struct k3_trace *trace, const struct k3i_span *span)
{
	return &trace->ring[span->record];
}

#endif
