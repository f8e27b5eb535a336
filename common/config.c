/* Checks and changes of a configuration.  The trap: fields that are fine one by one still overflow
 * as widths of tensors, so the products are checked here and the builders multiply without fear. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config_fields.h"
#include "files.h"
#include "fs.h"
#include "log.h"
#include "status.h"

static int
fields_check(const struct k3_config *config)
{
	int ret = K3_OK;

	for (size_t i = 0; i < k3i_n_fields; i++) {
		const struct k3i_field *field = &k3i_fields[i];

		if (field->section != K3I_VISION || config->vision.present)
			K3_TRY(k3i_field_check(field, config->name, k3i_field_get(field, config)));
	}
out:
	return ret;
}

/* A number that another one of the configuration bounds. */
static int
most_check(const struct k3_config *config, const char *key, uint32_t value, const char *of,
           long long most)
{
	if (value <= most)
		return K3_OK;
	k3_error("common", "%s: %s is %u; it must be at most %s%lld", config->name, key,
	         value, of, most);
	return K3_EINVAL;
}

/* Both factors are below 2^31, so the product is exact. */
static int
product_check(const struct k3_config *config, const char *what, uint64_t a, uint64_t b)
{
	if (a * b <= INT32_MAX)
		return K3_OK;
	k3_error("common", "%s: %s is %llu times %llu; the product must be at most %d",
	         config->name, what, (unsigned long long)a, (unsigned long long)b, INT32_MAX);
	return K3_EINVAL;
}

static int
products_check(const struct k3_config *c)
{
	const struct k3_vision_config *v = &c->vision;
	int ret;

	K3_TRY(product_check(c, "width of all query heads", c->heads, c->nope_dim + c->rope_dim));
	K3_TRY(product_check(c, "width of all key and value heads", c->heads,
	                     c->nope_dim + c->v_dim));
	K3_TRY(product_check(c, "width of three KDA projections", 3ull * c->kda_heads, c->kda_dim));
	K3_TRY(product_check(c, "width of the shared experts", c->shared_experts, c->expert_ffn));
	if (v->present) {
		K3_TRY(product_check(c, "values of a patch", 3ull * v->patch, v->patch));
		K3_TRY(product_check(c, "patches of a merged token", v->merge_h, v->merge_w));
		K3_TRY(product_check(c, "width of a merged token", v->merge_h * v->merge_w,
		                     v->width));
		K3_TRY(product_check(c, "places of the position table", v->table_h, v->table_w));
	}
out:
	return ret;
}

static int
ids_check(const struct k3_config *config)
{
	struct k3_config copy = *config;

	for (int i = 0; i < K3I_N_IDS; i++) {
		uint32_t id = *k3i_id(&copy, i);

		if (id >= config->vocab) {
			k3_error("common", "%s: %s is %u; it must be below vocab_size, %u",
			         config->name, k3i_id_keys[i], id, config->vocab);
			return K3_EINVAL;
		}
		/* the rows of placeholders are overwritten by images: no other token may be one */
		if (config->vision.present && config->placeholder == id && i != K3I_N_IDS - 1) {
			k3_error("common", "%s: media_placeholder_token_id is %u; it must differ "
			         "from %s", config->name, id, k3i_id_keys[i]);
			return K3_EINVAL;
		}
	}
	return K3_OK;
}

static int
vision_check(const struct k3_config *config)
{
	const struct k3_vision_config *v = &config->vision;

	if (!v->present)
		return K3_OK;
	if (v->qkv_width % v->heads != 0 || v->qkv_width / v->heads % 4 != 0) {
		k3_error("common", "%s: vision_config.qkv_hidden_size is %u; it must be a multiple "
		         "of 4 times vt_num_attention_heads, %u", config->name, v->qkv_width,
		         v->heads);
		return K3_EINVAL;
	}
	int ret = most_check(config, "vision_config.vt_num_hidden_layers", v->layers, "",
			     K3_MAX_LAYERS);
	if (ret != K3_OK)
		return ret;
	if (v->width % 2 != 0) {
		k3_error("common", "%s: vision_config.vt_hidden_size is %u; it must be even (half "
		         "of it holds the sines of the time code)", config->name, v->width);
		return K3_EINVAL;
	}
	if (v->merge_h < 1 || v->merge_w < 1 || v->merge_h > INT32_MAX || v->merge_w > INT32_MAX) {
		k3_error("common", "%s: vision_config.merge_kernel_size is [%u, %u]; it must be "
		         "two integers from 1", config->name, v->merge_h, v->merge_w);
		return K3_EINVAL;
	}
	return K3_OK;
}

int
k3_config_check(const struct k3_config *config)
{
	int ret;

	K3_TRY(fields_check(config));
	K3_TRY(most_check(config, "num_hidden_layers", config->layers, "", K3_MAX_LAYERS));
	if (config->vocab < K3I_MIN_VOCAB) {
		k3_error("common", "%s: vocab_size is %u; it must be at least %d (four special "
		         "tokens and another one)", config->name, config->vocab, K3I_MIN_VOCAB);
		return K3_EINVAL;
	}
	K3_TRY(most_check(config, "num_experts", config->experts, "", K3_MAX_EXPERTS));
	K3_TRY(most_check(config, "num_experts_per_token", config->top_k, "num_experts, ",
	                  config->experts));
	K3_TRY(most_check(config, "first_k_dense_replace", config->first_dense,
	                  "num_hidden_layers, ", config->layers));
	K3_TRY(most_check(config, "linear_attn_config.short_conv_kernel_size", config->conv_taps,
	                  "", K3_MAX_TAPS));
	K3_TRY(vision_check(config));
	K3_TRY(products_check(config));
	K3_TRY(ids_check(config));
out:
	return ret;
}

int
k3_config_set_layers(struct k3_config *config, long long n)
{
	if (n < 1 || n > config->layers) {
		k3_error("common", "%lld layers are not possible; %s has layers for 1 to %u", n,
		         config->name, config->layers);
		return K3_EINVAL;
	}
	for (uint32_t l = (uint32_t)n; l < config->layers; l++)
		config->is_mla[l] = false;
	config->layers = (uint32_t)n;
	if (config->first_dense > config->layers)
		config->first_dense = config->layers;
	return K3_OK;
}

int
k3_config_set_vocab(struct k3_config *config, long long vocab)
{
	if (vocab < K3I_MIN_VOCAB || vocab > INT32_MAX) {
		k3_error("common", "a vocabulary of %lld tokens is not possible; it must have "
		         "%d to %d", vocab, K3I_MIN_VOCAB, INT32_MAX);
		return K3_EINVAL;
	}
	config->vocab = (uint32_t)vocab;
	k3i_ids_default(config);
	return K3_OK;
}

/* A preset wins over a file of that name: what --model debug means does not depend on the folder in
 * which it is run, and ./debug still reaches the file. */
static bool
is_preset(const char *name)
{
	for (const char *const *preset = k3_config_presets(); *preset; preset++)
		if (strcmp(*preset, name) == 0)
			return true;
	return false;
}

int
k3_config_load(struct k3_config *config, const char *preset_or_path)
{
	enum { MOST_BYTES = 16 << 20 };
	struct stat st;
	char *path = NULL, *text = NULL;
	size_t bytes;
	int ret;

	if (is_preset(preset_or_path) || stat(preset_or_path, &st) != 0)
		return k3_config_preset(config, preset_or_path);
	path = S_ISDIR(st.st_mode) ? k3i_path_join(preset_or_path, "config.json")
	                           : strdup(preset_or_path);
	K3_TRY(path ? K3_OK : K3_ENOMEM);
	K3_TRY(k3_fs_read(path, MOST_BYTES, &text, &bytes));
	K3_TRY(k3_config_parse(config, text, bytes, path));
out:
	free(text);
	free(path);
	return ret;
}
