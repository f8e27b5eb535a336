/* The machine file.  The trap: it decides tiles, and with them bits, so a field that is missing,
 * misspelt or out of range is refused rather than replaced by something. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"
#include "machine.h"

enum { FORMAT = 1, MOST_JSON_BYTES = 1 << 20, MOST_CORES = 65536 };

static const double most_us = 1e6, most_rate = 1e12;

/* A file being read: the first fault is logged and ends it. */
struct reader {
	const char *path;
	int ret;
};

static void
refuse(struct reader *r, const char *where, const char *field, const json_t *value,
       const char *allowed)
{
	char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII)
			   : NULL;

	if (r->ret == K3_OK)
		k3_error("planner",
			 "%s: %s%s is %.80s, must be %s; k3_bench calibrate writes the file anew",
			 r->path, where, field, text ? text : "missing", allowed);
	r->ret = K3_EFORMAT;
	free(text);
}

/* A number in [lo, hi]; integer: without a fraction. */
static double
number(struct reader *r, const json_t *o, const char *where, const char *field, double lo,
       double hi, bool integer)
{
	const json_t *v = json_object_get(o, field);
	double x = json_number_value(v);
	char allowed[96];

	if (!json_is_number(v) || !(x >= lo && x <= hi) || (integer && x != floor(x))) {
		snprintf(allowed, sizeof(allowed), "%s from %g to %g",
			 integer ? "an integer" : "a number", lo, hi);
		refuse(r, where, field, v, allowed);
		return lo; /* callers convert it */
	}
	return x;
}

static void
text(struct reader *r, const json_t *o, const char *where, const char *field, char *out,
     size_t out_bytes)
{
	const json_t *v = json_object_get(o, field);

	if (!json_is_string(v) || json_string_length(v) >= out_bytes) {
		char allowed[64];
		snprintf(allowed, sizeof(allowed), "a text of at most %zu bytes", out_bytes - 1);
		refuse(r, where, field, v, allowed);
		return;
	}
	snprintf(out, out_bytes, "%s", json_string_value(v));
}

static int
op_of(const char *name)
{
	for (int op = 0; op < K3_N_OPS; op++)
		if (strcmp(k3_op_name((enum k3_op)op), name) == 0)
			return op;
	return -1;
}

/* Terms by their names in the file. */
enum { TERMS = 4 };
static const char *const term_name[TERMS] = {"call_us", "flops_per_us", "bytes_per_us",
					     "param_bytes_per_us"};

static double *
term_of(struct k3_rate *rate, size_t i)
{
	double *const term[TERMS] = {&rate->call_us, &rate->flops_per_us, &rate->bytes_per_us,
				     &rate->param_bytes_per_us};

	return term[i];
}

static void
read_rate(struct reader *r, struct k3_rate *rate, const char *name, json_t *o)
{
	const double least = 1e-9;
	char where[96];
	const char *key;
	size_t known = 0;
	json_t *v;

	snprintf(where, sizeof(where), "operations.%s.", name);
	*rate = (struct k3_rate){0};
	for (size_t i = 0; i < TERMS; i++)
		if (json_object_get(o, term_name[i])) {
			*term_of(rate, i) =
				number(r, o, where, term_name[i], least, most_rate, false);
			known++;
		}
	if (known == 0)
		refuse(r, "operations.", name, o, "an object with a term at least");
	json_object_foreach(o, key, v)
	{
		size_t i = 0;
		while (i < TERMS && strcmp(key, term_name[i]) != 0)
			i++;
		if (i == TERMS)
			refuse(r, where, key, v, "absent: no term has that name");
	}
}

static void
read_rates(struct reader *r, struct k3_machine *m, const json_t *root)
{
	json_t *all = json_object_get(root, "operations"), *v;
	const char *name;

	if (!json_is_object(all)) {
		refuse(r, "", "operations", all, "an object");
		return;
	}
	json_object_foreach(all, name, v)
	{
		int op = op_of(name);
		if (op < 0)
			refuse(r, "operations.", name, v, "absent: no operation has that name");
		else if (!json_is_object(v))
			refuse(r, "operations.", name, v, "an object");
		else
			read_rate(r, &m->rate[op], name, v);
	}
}

static bool
is_gpu_field(const char *key)
{
	static const char *const field[] = {"name", "task_us", "f32_flops_per_us",
					    "bf16_flops_per_us", "bytes_per_us"};

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		if (strcmp(key, field[i]) == 0)
			return true;
	return false;
}

/* A file without it leaves the rates as they are: those of the device that is there. */
static void
read_gpu(struct reader *r, struct k3_machine *m, const json_t *root)
{
	json_t *gpu = json_object_get(root, "gpu"), *v;
	struct k3_gpu *g = &m->gpu;
	const char *key;

	if (!gpu)
		return;
	if (!json_is_object(gpu)) {
		refuse(r, "", "gpu", gpu, "an object");
		return;
	}
	text(r, gpu, "gpu.", "name", g->name, sizeof(g->name));
	/* without a name it would count as absent */
	if (!*g->name)
		refuse(r, "gpu.", "name", json_object_get(gpu, "name"), "a text that is not empty");
	g->task_us = number(r, gpu, "gpu.", "task_us", 0, most_us, false);
	g->f32_flops_per_us = number(r, gpu, "gpu.", "f32_flops_per_us", 1e-9, most_rate, false);
	g->bf16_flops_per_us = number(r, gpu, "gpu.", "bf16_flops_per_us", 1e-9, most_rate, false);
	g->bytes_per_us = number(r, gpu, "gpu.", "bytes_per_us", 1e-9, most_rate, false);
	json_object_foreach(gpu, key, v)
	{
		if (!is_gpu_field(key))
			refuse(r, "gpu.", key, v, "absent: no field has that name");
	}
}

static void
read_gemm(struct reader *r, struct k3_machine *m, const json_t *root)
{
	const json_t *gemm = json_object_get(root, "gemm_flops_per_us");
	char field[16];

	if (!json_is_object(gemm)) {
		refuse(r, "", "gemm_flops_per_us", gemm, "an object");
		return;
	}
	for (size_t i = 0; i < K3_GEMM_SIZES; i++) {
		snprintf(field, sizeof(field), "%u", k3_machine_gemm_size(i));
		m->gemm_flops_per_us[i] =
			number(r, gemm, "gemm_flops_per_us.", field, 1e-9, most_rate, false);
	}
}

int
k3_machine_load(struct k3_machine *machine, const char *path)
{
	struct reader r = {path, K3_OK};
	struct k3_machine m = *machine;
	json_t *root = NULL;
	char *bytes_text = NULL;
	json_error_t error;
	size_t bytes;
	int ret;

	K3_TRY(k3_fs_read(path, MOST_JSON_BYTES, &bytes_text, &bytes));
	root = json_loadb(bytes_text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(root)) {
		k3_error("planner", "%s: no machine file: %s at line %d", path,
			 root ? "no object" : error.text, error.line);
		K3_TRY(K3_EFORMAT);
	}
	number(&r, root, "", "format", FORMAT, FORMAT, true);
	text(&r, root, "", "host", m.host, sizeof(m.host));
	text(&r, root, "", "processor", m.processor, sizeof(m.processor));
	text(&r, root, "", "blas", m.blas, sizeof(m.blas));
	m.cores = (uint32_t)number(&r, root, "", "cores", 1, MOST_CORES, true);
	m.task_us = number(&r, root, "", "task_us", 0, most_us, false);
	m.bytes_per_us = number(&r, root, "", "bytes_per_us", 1e-9, most_rate, false);
	read_gemm(&r, &m, root);
	read_gpu(&r, &m, root);
	read_rates(&r, &m, root);
	K3_TRY(r.ret);
	m.measured = true;
	*machine = m;
out:
	json_decref(root);
	free(bytes_text);
	return ret;
}

static json_t *
rates_json(const struct k3_machine *m)
{
	json_t *all = json_object();

	for (int op = 0; op < K3_N_OPS; op++) {
		struct k3_rate rate = m->rate[op];
		json_t *o = json_object();
		for (size_t i = 0; i < TERMS; i++)
			if (*term_of(&rate, i) > 0)
				json_object_set_new(o, term_name[i], json_real(*term_of(&rate, i)));
		json_object_set_new(all, k3_op_name((enum k3_op)op), o);
	}
	return all;
}

static json_t *
gpu_json(const struct k3_gpu *g)
{
	json_t *o = json_object();

	json_object_set_new(o, "name", json_string(g->name));
	json_object_set_new(o, "task_us", json_real(g->task_us));
	json_object_set_new(o, "f32_flops_per_us", json_real(g->f32_flops_per_us));
	json_object_set_new(o, "bf16_flops_per_us", json_real(g->bf16_flops_per_us));
	json_object_set_new(o, "bytes_per_us", json_real(g->bytes_per_us));
	return o;
}

int
k3_machine_save(const struct k3_machine *m, const char *path)
{
	json_t *root = json_object(), *gemm = json_object();
	char field[16], *folder = strdup(path), *text_out = NULL;
	int ret = K3_OK;

	for (size_t i = 0; i < K3_GEMM_SIZES; i++) {
		snprintf(field, sizeof(field), "%u", k3_machine_gemm_size(i));
		json_object_set_new(gemm, field, json_real(m->gemm_flops_per_us[i]));
	}
	json_object_set_new(root, "format", json_integer(FORMAT));
	json_object_set_new(root, "host", json_string(m->host));
	json_object_set_new(root, "processor", json_string(m->processor));
	json_object_set_new(root, "blas", json_string(m->blas));
	json_object_set_new(root, "cores", json_integer(m->cores));
	json_object_set_new(root, "task_us", json_real(m->task_us));
	json_object_set_new(root, "bytes_per_us", json_real(m->bytes_per_us));
	json_object_set_new(root, "gemm_flops_per_us", gemm);
	if (*m->gpu.name)
		json_object_set_new(root, "gpu", gpu_json(&m->gpu));
	json_object_set_new(root, "operations", rates_json(m));
	text_out = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
	if (!folder || !text_out)
		K3_TRY(K3_ENOMEM);
	char *slash = strrchr(folder, '/');
	if (slash && slash != folder) {
		*slash = '\0';
		K3_TRY(k3_fs_mkdirs(folder));
	}
	K3_TRY(k3_fs_write_atomic(path, text_out, strlen(text_out)));
out:
	json_decref(root);
	free(folder);
	free(text_out);
	return ret;
}
