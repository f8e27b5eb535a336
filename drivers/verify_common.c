/* What the kinds of golden files share. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "verify.h"

int
k3i_verify_metadata(const struct k3_st *st, const char *key, json_type type, json_t **value)
{
	const char *text = k3_st_metadata(st, key);
	json_error_t error;

	*value = NULL;
	if (!text)
		return K3_OK;
	*value = json_loads(text, JSON_DECODE_ANY, &error);
	if (*value && json_typeof(*value) == type)
		return K3_OK;
	if (!*value)
		k3_error("drivers", "metadata %s is no JSON: %s", key, error.text);
	else
		k3_error("drivers", "metadata %s is %.80s; it must be a JSON %s", key, text,
			 type == JSON_ARRAY ? "array" : "object");
	json_decref(*value);
	*value = NULL;
	return K3_EFORMAT;
}

int
k3i_verify_config(const struct k3_st *st, struct k3_config *config)
{
	const char *text = k3_st_metadata(st, "hf_config");
	json_t *eps = NULL;
	int ret = K3_OK;

	if (!text) {
		k3_error("drivers", "metadata hf_config is missing");
		return K3_EFORMAT;
	}
	K3_TRY(k3_config_parse(config, text, strlen(text), "hf_config"));
	K3_TRY(k3i_verify_metadata(st, "eps", JSON_OBJECT, &eps));
	const struct {
		const char *key;
		double *value;
	} part[] = {
		{"rms_norm", &config->norm_eps},
		{"mla_latent_norm", &config->mla_norm_eps},
		{"qk_l2norm", &config->l2_eps},
		{"router_sum", &config->router_sum_eps},
		{"vision_norm", &config->vision.norm_eps},
		{"projector_norm", &config->vision.projector_eps},
	};
	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
		json_t *v = json_object_get(eps, part[i].key);
		if (v && !json_is_number(v)) {
			k3_error("drivers", "metadata eps: %s must be a number", part[i].key);
			K3_TRY(K3_EFORMAT);
		}
		if (v)
			*part[i].value = json_number_value(v);
	}
	K3_TRY(k3_config_check(config));
out:
	json_decref(eps);
	return ret;
}

double *
k3i_verify_f64(const struct k3_st *st, const char *name, size_t *n)
{
	const struct k3_st_tensor *t = k3_st_find(st, name);
	double *out;

	if (!t)
		return NULL;
	out = malloc((t->n_elems + 1) * sizeof(*out));
	if (out && k3_st_read_f64(t, 0, t->n_elems, out) != K3_OK) {
		free(out);
		return NULL;
	}
	*n = t->n_elems;
	return out;
}

int32_t *
k3i_verify_i32(const struct k3_st *st, const char *name, size_t *n)
{
	const struct k3_st_tensor *t = k3_st_find(st, name);
	int32_t *out;

	if (!t)
		return NULL;
	out = malloc((t->n_elems + 1) * sizeof(*out));
	if (out && k3_st_read_i32(t, 0, t->n_elems, out) != K3_OK) {
		free(out);
		return NULL;
	}
	*n = t->n_elems;
	return out;
}

int
k3i_verify_check_tokens(const int32_t *ids, const int32_t *labels, size_t n, uint32_t vocab)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= vocab ||
		    (labels[i] >= 0 && (uint32_t)labels[i] >= vocab)) {
			k3_error("drivers",
				 "token %d or label %d at position %zu: the vocabulary has %u",
				 ids[i], labels[i], i, vocab);
			return K3_EINVAL;
		}
	return K3_OK;
}

int
k3i_verify_check_ids(const char *name, const int32_t *ids, size_t n, uint32_t experts)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= experts) {
			k3_error("drivers", "%s[%zu] is %d: there are %u experts", name, i, ids[i],
				 experts);
			return K3_EINVAL;
		}
	return K3_OK;
}

/* Adds the rows of one block to the tensor. */
static void
take_block(double *out, const struct k3_ckpt_tensor *t, const struct k3_datum *d,
	   const float *block)
{
	size_t first, n = k3_params_overlap(t, d->row0, d->rows, &first);

	for (size_t i = first * d->row_elems; i < (first + n) * d->row_elems; i++)
		out[i - t->row0 * d->row_elems] = (double)block[i - d->row0 * d->row_elems];
}

double *
k3i_verify_tensor(struct k3_store *store, const struct k3_ckpt_tensor *t, uint32_t kind, size_t *n)
{
	const struct k3_model *m = k3_store_model(store);
	uint64_t elems = 1;
	double *out;

	for (uint32_t i = 0; i < t->n_dims; i++)
		elems *= t->dims[i];
	*n = elems;
	out = calloc(elems + 1, sizeof(*out));
	for (size_t b = 0; out && b < m->params.param[t->param].n_blocks; b++) {
		uint32_t datum = m->param_block[t->param] + kind * m->n_blocks + (uint32_t)b;
		const struct k3_datum *d = &m->persist[datum];
		size_t first;
		if (k3_params_overlap(t, d->row0, d->rows, &first) == 0)
			continue;
		float *block = malloc(d->bytes + 1);
		if (!block || k3_store_datum_read(store, NULL, datum, block) != K3_OK) {
			free(block);
			free(out);
			return NULL;
		}
		take_block(out, t, d, block);
		free(block);
	}
	return out;
}

/* dir/X for a file .../X.safetensors, malloc'ed */
static char *
trace_folder(const char *dir, const char *file)
{
	const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file,
		   *dot = strrchr(name, '.');
	int kept = dot && dot > name ? (int)(dot - name) : (int)strlen(name);
	size_t bytes = strlen(dir) + (size_t)kept + 2;
	char *path = malloc(bytes);

	if (path)
		snprintf(path, bytes, "%s/%.*s", dir, kept, name);
	return path;
}

/* Deviations of the file's own bf16 run, which a model's gradients are judged by. */
static int
read_bf16_metadata(const struct k3_st *st, struct k3_verify_report *report)
{
	int ret = K3_OK;

	json_decref(report->bf16_deviation);
	json_decref(report->bf16_median);
	report->bf16_deviation = report->bf16_median = NULL;
	if (report->dtype != K3_BF16)
		return K3_OK;
	K3_TRY(k3i_verify_metadata(st, "bfloat16_run_rms_deviation", JSON_OBJECT,
				   &report->bf16_deviation));
	K3_TRY(k3i_verify_metadata(st, "bfloat16_run_rms_median", JSON_OBJECT,
				   &report->bf16_median));
	if (k3_st_metadata(st, "train")) {
		k3_error("drivers", "--dtype bf16: a training file is compared in fp32 alone");
		ret = K3_EINVAL;
	} else if (k3_st_metadata(st, "config") &&
		   (!report->bf16_deviation || !report->bf16_median)) {
		k3_error("drivers", "--dtype bf16: metadata bfloat16_run_rms_deviation or "
				    "bfloat16_run_rms_median is missing");
		ret = K3_EFORMAT;
	}
out:
	return ret;
}

int
k3_verify_file(const char *path, const struct k3_verify_options *options,
	       struct k3_verify_report *report)
{
	struct k3_verify_options own = *options;
	struct k3_st *st = NULL;
	char *folder = NULL;
	int ret;

	K3_TRY(k3_st_open(&st, path));
	if (options->runtime.trace_dir) {
		folder = trace_folder(options->runtime.trace_dir, path);
		K3_TRY(folder ? K3_OK : K3_ENOMEM);
		own.runtime.trace_dir = folder;
	}
	json_decref(report->deviation);
	K3_TRY(k3i_verify_metadata(st, "float32_run_rms_deviation", JSON_OBJECT,
				   &report->deviation));
	K3_TRY(read_bf16_metadata(st, report));
	if (k3_st_metadata(st, "train"))
		K3_TRY(k3i_verify_train(st, &own, report));
	else if (k3_st_metadata(st, "config"))
		K3_TRY(k3i_verify_model(st, &own, report));
	else
		K3_TRY(k3i_verify_ops(st, &own, report));
out:
	k3_st_close(st);
	free(folder);
	return ret;
}
