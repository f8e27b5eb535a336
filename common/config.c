/* Checks and changes of a configuration. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config_fields.h"
#include "fs.h"
#include "log.h"
#include "status.h"

static int
refuse(const struct k3_config *c, const char *field, long long value, const char *allowed)
{
	k3_error("common", "%s: %s is %lld; it must be %s", c->name, field, value, allowed);
	return K3_EINVAL;
}

/* Every plain field is in its own range. */
static int
check_fields(const struct k3_config *c)
{
	int ret = K3_OK;

	for (size_t i = 0; i < k3i_n_fields; i++) {
		if (k3i_fields[i].section == K3I_VISION && !c->vision.present)
			continue;
		K3_TRY(k3i_field_check(&k3i_fields[i], c->name, k3i_field_get(&k3i_fields[i], c)));
	}
out:
	return ret;
}

static int
check_vision(const struct k3_config *c)
{
	const struct k3_vision_config *v = &c->vision;

	if (!v->present)
		return K3_OK;
	if (v->qkv_width % v->heads != 0 || v->qkv_width / v->heads % 4 != 0) {
		k3_error("common", "%s: vision_config.qkv_hidden_size %u with %u heads: the head width must be a whole multiple of 4",
		         c->name, v->qkv_width, v->heads);
		return K3_EINVAL;
	}
	if (v->merge_h < 1 || v->merge_w < 1 || v->width % 2 != 0)
		return refuse(c, "vision_config.merge_kernel_size or vt_hidden_size", v->width, "positive sizes and an even width");
	return K3_OK;
}

int
k3_config_check(const struct k3_config *c)
{
	static const char *const id_name[] = { "bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id" };
	const uint32_t id[] = { c->bos, c->eos, c->pad, c->placeholder };
	int ret;

	K3_TRY(check_fields(c));
	if (c->layers > K3_MAX_LAYERS)
		return refuse(c, "num_hidden_layers", c->layers, "at most 256");
	if (c->vocab < 5)
		return refuse(c, "vocab_size", c->vocab, "at least 5 (four special tokens and one other)");
	if (c->top_k > c->experts) {
		k3_error("common", "%s: num_experts_per_token is %u; it must be at most num_experts, %u", c->name, c->top_k, c->experts);
		return K3_EINVAL;
	}
	if (c->first_dense > c->layers) {
		k3_error("common", "%s: first_k_dense_replace is %u; it must be at most num_hidden_layers, %u", c->name, c->first_dense,
		         c->layers);
		return K3_EINVAL;
	}
	for (size_t i = 0; i < 4; i++)
		if (id[i] >= c->vocab) {
			k3_error("common", "%s: %s is %u; it must be below vocab_size, %u", c->name, id_name[i], id[i], c->vocab);
			return K3_EINVAL;
		}
	K3_TRY(check_vision(c));
out:
	return ret;
}

int
k3_config_set_layers(struct k3_config *config, long long n)
{
	if (n < 1 || n > config->layers) {
		k3_error("common", "%lld layers: %s has 1 to %u", n, config->name, config->layers);
		return K3_EINVAL;
	}
	config->layers = (uint32_t)n;
	if (config->first_dense > config->layers)
		config->first_dense = config->layers;
	return K3_OK;
}

int
k3_config_set_vocab(struct k3_config *config, long long vocab)
{
	if (vocab < 5 || vocab > INT32_MAX) {
		k3_error("common", "vocabulary of %lld tokens: 5 to %d are possible", vocab, INT32_MAX);
		return K3_EINVAL;
	}
	config->vocab = (uint32_t)vocab;
	k3i_ids_default(config);
	return K3_OK;
}

int
k3_config_load(struct k3_config *config, const char *preset_or_path)
{
	enum { MOST_BYTES = 16 << 20 };
	struct stat st;
	char path[4200], *text = NULL;
	size_t bytes;
	int ret;

	if (stat(preset_or_path, &st) != 0)
		return k3_config_preset(config, preset_or_path);
	snprintf(path, sizeof(path), "%s%s", preset_or_path, S_ISDIR(st.st_mode) ? "/config.json" : "");
	K3_TRY(k3_fs_read(path, MOST_BYTES, &text, &bytes));
	K3_TRY(k3_config_parse(config, text, bytes, path));
out:
	free(text);
	return ret;
}
