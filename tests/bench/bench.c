/* What a case of `k3_bench op` holds, from its first buffer to its line in the table.  The trap: a
 * kernel that writes nothing would look fast, so outputs start as NaN, and one that writes too much
 * is caught by guards behind them. */
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/log.h"
#include "../../common/rng.h"

#define X(id, name, family, args, kernel)                                                          \
	static void run_##id(void *const *buf, const void *a)                                      \
	{                                                                                          \
		kernel(buf, a);                                                                    \
	}
K3_COMPUTE_OP_MAP(X)
#undef X

void
bench_kernel(const struct bench_call *call)
{
	static void (*const run[K3_N_OPS])(void *const *, const void *) = {
#define X(id, name, family, args, kernel) [K3_OP_##id] = run_##id,
		K3_COMPUTE_OP_MAP(X)
#undef X
	};

	run[call->op](call->buf, call->args);
}

bool
bench_open(struct bench_case *c, struct bench *b, const char *name, enum bench_limit limit,
	   double target, const char *shape_format, ...)
{
	char path[160];
	va_list ap;

	*c = (struct bench_case){.b = b, .limit = limit, .target = target};
	snprintf(c->name, sizeof(c->name), "%s", name);
	va_start(ap, shape_format);
	vsnprintf(c->shape, sizeof(c->shape), shape_format, ap);
	va_end(ap);
	snprintf(path, sizeof(path), "%s/%s", b->model->name, name);
	return !b->filter || strstr(path, b->filter);
}

void *
bench_memory(struct bench_case *c, size_t bytes)
{
	void *p = NULL;

	if ((c->n_memory & (c->n_memory + 1)) == 0)
		c->memory = realloc(c->memory, (2 * c->n_memory + 2) * sizeof(*c->memory));
	if (!c->memory || posix_memalign(&p, 256, bytes + 1) != 0) {
		k3_error("drivers", "%s needs %zu more bytes of memory", c->name, bytes);
		k3_abort(__FILE__, __LINE__, "out of memory");
	}
	c->memory[c->n_memory++] =
		(struct bench_memory){.host = p, .bytes = bytes, .type = BENCH_I32};
	return p;
}

struct bench_memory *
bench_record(struct bench_case *c, const void *data)
{
	for (size_t i = c->n_memory; i-- > 0;)
		if (c->memory[i].host == data)
			return &c->memory[i];
	k3_abort(__FILE__, __LINE__, "a buffer of a case is not its memory");
}

void
bench_keep(struct bench_case *c, const void *data)
{
	bench_record(c, data)->type = BENCH_F32;
}

double *
bench_constants(struct bench_case *c, size_t n, double x)
{
	double *y = bench_doubles(c, n);

	for (size_t i = 0; i < n; i++)
		y[i] = x;
	return y;
}

/* To eight bits, half up in size: all that bf16 can hold is kept. */
static void
round_all(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &x[i], sizeof(bits));
		bits = (bits + 0x8000) & 0xffff0000;
		memcpy(&x[i], &bits, sizeof(bits));
	}
}

float *
bench_random(struct bench_case *c, size_t n, double lo, double hi)
{
	float *x = bench_memory(c, n * sizeof(*x)), width = (float)(hi - lo) * 0x1p-24f;
	uint64_t state = k3_rng_key("bench", c->seed++);

	bench_record(c, x)->type = BENCH_T;
	for (size_t i = 0; i < n; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		x[i] = (float)lo + width * (float)(state >> 40);
	}
	if (c->b->bf16)
		round_all(x, n);
	return x;
}

int32_t *
bench_layout(struct bench_case *c, size_t t)
{
	size_t n = k3_tile_layout_len(t);
	int32_t *l = memset(bench_memory(c, n * sizeof(*l)), 0, n * sizeof(*l));

	l[K3_TL_ROWS] = l[K3_TL_VALID] = (int32_t)t;
	l[K3_TL_SEGMENTS] = 1;
	for (size_t i = 0; i < t; i++) {
		l[K3_TL_HEAD + i] = 1;
		l[K3_TL_HEAD + t + i] = (int32_t)i;
	}
	l[K3_TL_HEAD + 2 * t + 1] = (int32_t)t;
	return l;
}

struct bench_call *
bench_call(struct bench_case *c, enum k3_op op)
{
	K3_ASSERT(c->n_calls < BENCH_CALLS);
	struct bench_call *call = &c->call[c->n_calls++];

	call->c = c;
	call->op = op;
	return call;
}

void
bench_args(struct bench_call *call, const void *args, size_t bytes)
{
	struct k3_args_head head = {call->n};

	call->args = memcpy(bench_memory(call->c, bytes), args, bytes);
	memcpy(call->args, &head, sizeof(head));
}

void *
bench_push(struct bench_call *call, const void *data)
{
	K3_ASSERT(call->n < BENCH_BUFFERS);
	bench_record(call->c, data)->read = true;
	return call->buf[call->n++] = (void *)data;
}

float *
bench_in(struct bench_call *call, size_t n)
{
	return bench_push(call, bench_random(call->c, n, -1, 1));
}

float *
bench_work(struct bench_call *call, size_t n)
{
	float *x = bench_push(call, bench_memory(call->c, n * sizeof(*x)));

	bench_record(call->c, x)->type = BENCH_WORK;
	return x;
}

static size_t
output_bytes(const struct bench_output *o)
{
	return o->n * (o->type == BENCH_F64 ? 8 : 4);
}

void *
bench_out_typed(struct bench_call *call, const char *name, size_t n, enum bench_type type)
{
	struct bench_case *c = call->c;
	struct bench_output *o = &c->output[c->n_outputs++];

	K3_ASSERT(c->n_outputs <= BENCH_OUTPUTS);
	*o = (struct bench_output){name, NULL, n, type};
	o->data =
		memset(bench_memory(c, output_bytes(o) + BENCH_GUARD_BYTES), 0xFF, output_bytes(o));
	memset((char *)o->data + output_bytes(o), BENCH_GUARD_BYTE, BENCH_GUARD_BYTES);
	bench_push(call, o->data);
	*bench_record(c, o->data) =
		(struct bench_memory){.host = o->data,
				      .bytes = output_bytes(o),
				      .type = type == BENCH_F32 ? BENCH_T : type,
				      .written = true};
	return o->data;
}

float *
bench_out(struct bench_call *call, const char *name, size_t n)
{
	return bench_out_typed(call, name, n, BENCH_F32);
}

float *
bench_inout(struct bench_call *call, const char *name, size_t n, float **before)
{
	*before = bench_random(call->c, n, -1, 1);
	float *x = memcpy(bench_out(call, name, n), *before, n * sizeof(float));

	bench_record(call->c, x)->read = true;
	return x;
}

struct k3_list
bench_list(struct bench_call *call, uint32_t n_before)
{
	return (struct k3_list){n_before, call->n - n_before};
}

struct k3_weight
bench_last(const struct bench_call *call, size_t rows, size_t cols)
{
	return (struct k3_weight){call->n - 1, 1, rows, cols, rows, 0};
}

struct k3_weight
bench_weight(struct bench_call *call, size_t rows, size_t cols, float **w)
{
	float *x = bench_in(call, rows * cols);

	if (rows == 1)
		bench_keep(call->c, x);
	if (w)
		*w = x;
	return bench_last(call, rows, cols);
}

struct k3_weight
bench_gradient(struct bench_call *call, const char *name, size_t rows, size_t cols, float **dw)
{
	*dw = bench_out(call, name, rows * cols);
	bench_keep(call->c, *dw);
	return bench_last(call, rows, cols);
}

void
bench_product(struct bench_call *call, enum bench_form form, size_t m, size_t n, size_t k)
{
	struct bench_case *c = call->c;

	if (m * n * k == 0)
		return;
	if ((c->n_products & (c->n_products + 1)) == 0)
		c->product = realloc(c->product, (2 * c->n_products + 2) * sizeof(*c->product));
	K3_ASSERT(c->product);
	c->product[c->n_products++] = (struct bench_product){form, m, n, k, NULL, NULL, NULL};
	call->flops += 2.0 * (double)m * (double)n * (double)k;
}

void
bench_traffic(struct bench_call *call, size_t read, size_t written, size_t updated)
{
	call->traffic_bytes += 4.0 * (double)(read + 2 * written + 2 * updated);
	call->size_bytes += 4.0 * (double)(read + written + updated);
}

void
bench_unmoved(struct bench_call *call, size_t elems)
{
	call->unmoved_bytes += (call->c->b->bf16 ? 2.0 : 4.0) * (double)elems;
}

/* One element of the output that --plant-fault names, off by the size of a usual element. */
static void
plant(struct bench_case *c)
{
	for (size_t i = 0; i < c->n_outputs; i++) {
		struct bench_output *o = &c->output[i];
		char path[160];
		double sum = 0;
		size_t at = o->n / 2;

		snprintf(path, sizeof(path), "%s/%s", c->name, o->name);
		if (strcmp(path, c->b->fault) != 0)
			continue;
		c->b->planted++;
		if (o->type == BENCH_I32) {
			((int32_t *)o->data)[at]++;
		} else if (o->type == BENCH_F64) {
			((double *)o->data)[at] *= 1.01;
		} else {
			for (size_t j = 0; j < o->n; j++)
				sum += (double)((float *)o->data)[j] *
				       (double)((float *)o->data)[j];
			((float *)o->data)[at] += (float)sqrt(sum / (double)o->n);
		}
	}
}

static void
check_guards(struct bench_case *c)
{
	for (size_t i = 0; i < c->n_outputs; i++) {
		const struct bench_output *o = &c->output[i];
		const unsigned char *guard = (const unsigned char *)o->data + output_bytes(o);
		size_t broken = 0;

		for (size_t j = 0; j < BENCH_GUARD_BYTES; j++)
			broken += guard[j] != BENCH_GUARD_BYTE;
		if (broken) {
			k3_error("drivers", "%s (%s) writes beyond the end of %s", c->name,
				 c->b->model->name, o->name);
			c->wrong = true;
		}
	}
}

bool
bench_checks(const struct bench_case *c)
{
	return c->b->check && !c->b->list;
}

bool
bench_run(struct bench_case *c)
{
	if (c->b->list) {
		for (size_t i = 0; i < c->n_outputs; i++)
			printf("%s\t%s\t%s\n", c->b->family, c->name, c->output[i].name);
		return false;
	}
	if (!c->b->check)
		return false;
	if (c->b->device)
		bench_device_run(c);
	else
		for (size_t i = 0; i < c->n_calls; i++)
			bench_kernel(&c->call[i]);
	check_guards(c);
	if (c->b->fault)
		plant(c);
	return true;
}

/* One line: the call, or all calls together. */
static void
print_line(const struct bench_case *c, const char *name, const double *seconds, double flops,
	   double bytes, const double *limit_rate, double target)
{
	static const char *const limits[2][BENCH_N_LIMITS] = {{"sgemm_same", "sgemm_512", "update"},
							      {"cublas", "cublas", "copy"}};
	size_t n = c->b->repeat;
	double time[n], limit[n], share[n];
	double amount = c->limit == BENCH_MEMORY ? bytes : flops;

	for (size_t i = 0; i < n; i++) {
		time[i] = seconds[i];
		limit[i] = limit_rate[i];
		share[i] = amount / seconds[i] / limit_rate[i];
	}
	double median = bench_quantile(time, n, 0.5), part = bench_quantile(share, n, 0.5);

	printf("%s\t%s\t%s\t%s\t%.3g\t%.9g\t%.9g\t%.9g\t%.9g\t%s\t%s\t%.9g\t%.4f\t", c->b->family,
	       name, c->b->model->name, c->shape, c->error, 1e6 * median,
	       1e6 * bench_quantile(time, n, 0.1), 1e6 * bench_quantile(time, n, 0.9),
	       1e-9 * amount / median, c->limit == BENCH_MEMORY ? "GB/s" : "GFLOP/s",
	       limits[c->b->device != NULL][c->limit], 1e-9 * bench_quantile(limit, n, 0.5), part);
	if (c->b->device)
		printf("-\t-\t%s\t%.9g\n", c->b->bf16 ? "bf16" : "fp32", 1e-9 * bytes / median);
	else if (target > 0)
		printf("%.2f\t%s\n", target, part >= target ? "met" : "short");
	else
		printf("-\t-\n");
	fflush(stdout);
}

static void
report(struct bench_case *c)
{
	size_t n = c->b->repeat;
	double limit_rate[n], all[n], flops = 0, bytes = 0;

	if (c->wrong || !c->b->time) {
		printf("%s\t%s\t%s\t%s\t%.3g\t-\t-\t-\t-\t-\t-\t-\t-\t-\t%s%s\n", c->b->family,
		       c->name, c->b->model->name, c->shape, c->error, c->wrong ? "wrong" : "right",
		       !c->b->device ? ""
		       : c->b->bf16  ? "\tbf16\t-"
				     : "\tfp32\t-");
		return;
	}
	if (c->b->device)
		bench_device_measure(c, limit_rate);
	else
		bench_measure(c, limit_rate);
	memset(all, 0, sizeof(all));
	for (size_t k = 0; k < c->n_calls; k++) {
		struct bench_call *call = &c->call[k];

		for (size_t i = 0; i < n; i++)
			all[i] += call->seconds[i];
		flops += call->flops;
		bytes += call->traffic_bytes;
		if (c->n_calls > 1) {
			char name[128];
			snprintf(name, sizeof(name), "%s/%s", c->name, k3_op_name(call->op));
			print_line(c, name, call->seconds, call->flops, call->traffic_bytes,
				   limit_rate, 0);
		}
	}
	print_line(c, c->name, all, flops, bytes, limit_rate, c->target);
}

/* Keeps what a check found for the row of the case that is timed later, or finds it. */
static void
pass_on(struct bench_case *c)
{
	struct bench *b = c->b;
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", b->model->name, c->name);
	if (!b->last) {
		b->checked = realloc(b->checked, (b->n_checked + 1) * sizeof(*b->checked));
		K3_ASSERT(b->checked);
		struct bench_checked *k = &b->checked[b->n_checked++];
		*k = (struct bench_checked){.error = c->error, .wrong = c->wrong};
		memcpy(k->path, path, sizeof(path));
		return;
	}
	for (size_t i = 0; !b->check && i < b->n_checked; i++)
		if (strcmp(b->checked[i].path, path) == 0) {
			c->error = b->checked[i].error;
			c->wrong = b->checked[i].wrong;
		}
}

void
bench_close(struct bench_case *c)
{
	if (!c->b->list) {
		pass_on(c);
		c->b->cases += c->b->last;
		c->b->wrong += c->b->last && c->wrong;
		if (c->b->last)
			report(c);
	}
	bench_device_release(c);
	for (size_t i = 0; i < c->n_memory; i++)
		free(c->memory[i].host);
	free(c->memory);
	free(c->product);
}
