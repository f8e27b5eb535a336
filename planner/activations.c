/* Policies as text, and the choice for a limit.  The trap: memory need not fall with every layer
 * that recomputes, since a recomputed layer needs room beside the kept ones; so what the bisection
 * ends with was itself planned and found to fit. */
#include "activations.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "plan_check.h"

static const char *const names[] = {[K3_KEEP] = "keep", [K3_RECOMPUTE] = "recompute"};

enum { NONE = 255 };

static uint8_t
policy_of(const char *word, size_t n)
{
	for (uint8_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == n && strncmp(names[i], word, n) == 0)
			return i;
	return NONE;
}

/* Digits at *at; -1 when there are none, or too many. */
static long
layer_at(const char **at)
{
	char *end;
	long layer;

	if (**at < '0' || **at > '9')
		return -1;
	errno = 0;
	layer = strtol(*at, &end, 10);
	*at = end;
	return errno ? -1 : layer;
}

/* One "A-B:policy" of n characters. */
static int
read_range(uint8_t *activations, uint8_t *named, uint32_t layers, const char *range, size_t n)
{
	const char *at = range, *end = range + n;
	long first = layer_at(&at), last = first;
	uint8_t policy = NONE;

	if (at < end && *at == '-') {
		at++;
		last = layer_at(&at);
	}
	if (at < end && *at == ':')
		policy = policy_of(at + 1, (size_t)(end - at - 1));
	if (policy == NONE || first < 0 || last < first || last >= (long)layers) {
		k3_error("planner",
			 "activations: \"%.*s\": allowed are keep, recompute, or ranges "
			 "A-B:keep|recompute with layers from 0 to %u",
			 (int)n, range, layers - 1);
		return K3_EINVAL;
	}
	for (long l = first; l <= last; l++) {
		if (named[l]) {
			k3_error("planner", "activations: \"%.*s\": layer %ld is named twice",
				 (int)n, range, l);
			return K3_EINVAL;
		}
		named[l] = 1;
		activations[l] = policy;
	}
	return K3_OK;
}

int
k3_activations_parse(uint8_t *activations, uint32_t layers, const char *text)
{
	uint8_t named[K3_MAX_LAYERS] = {0}, all = policy_of(text, strlen(text));

	memset(activations, all == NONE ? K3_KEEP : all, K3_MAX_LAYERS);
	for (const char *at = text; all == NONE;) {
		size_t n = strcspn(at, ",");
		int ret = read_range(activations, named, layers, at, n);
		if (ret != K3_OK)
			return ret;
		if (!at[n])
			break;
		at += n + 1;
	}
	return K3_OK;
}

char *
k3_activations_text(const uint8_t *activations, uint32_t layers)
{
	size_t room = 32 + 32 * (size_t)layers, n = 0;
	char *text = malloc(room);

	if (!text)
		return NULL;
	text[0] = 0;
	for (uint32_t first = 0, end; first < layers; first = end) {
		for (end = first + 1; end < layers && activations[end] == activations[first];)
			end++;
		if (first == 0 && end == layers)
			snprintf(text, room, "%s", names[activations[0]]);
		else if (activations[first] != K3_KEEP)
			n += (size_t)snprintf(text + n, room - n, "%s%u-%u:%s", n ? "," : "", first,
					      end - 1, names[activations[first]]);
	}
	return text;
}

/* Does the run fit when the first n layers recompute?  If it must not fail, not fitting is told and
 * an error. */
static int
fits(bool *fit, struct k3_model *model, const struct k3_run_shape *shape, uint32_t n,
     uint64_t limit_bytes, bool must)
{
	struct k3_memory memory;
	int ret;

	memset(model->options.activations, K3_KEEP, K3_MAX_LAYERS);
	memset(model->options.activations, K3_RECOMPUTE, n);
	ret = k3_memory_run(&memory, model, shape);
	if (ret == K3_OK)
		*fit = k3_memory_bound(&memory) <= limit_bytes;
	if (ret == K3_OK && !*fit && must)
		ret = k3_plan_check_memory(&memory, limit_bytes, model);
	k3_memory_fini(&memory);
	return ret;
}

/* The fewest recomputed layers that fit; all of them where none do. */
static int
fewest(struct k3_plan_options *options, const struct k3_config *config,
       const struct k3_run_shape *shape, uint64_t limit_bytes, bool must)
{
	uint32_t least = 0, most = config->layers;
	struct k3_model *model;
	bool fit;
	int ret;

	K3_TRY(k3_model_create(&model, config, options));
	K3_TRY(fits(&fit, model, shape, 0, limit_bytes, false));
	if (fit)
		most = 0;
	else
		K3_TRY(fits(&fit, model, shape, most, limit_bytes, must));
	/* `most` fits (or all is the least that there is), `least` does not */
	while (fit && most > least + 1) {
		uint32_t middle = least + (most - least) / 2;
		bool enough;
		K3_TRY(fits(&enough, model, shape, middle, limit_bytes, false));
		if (enough)
			most = middle;
		else
			least = middle;
	}
	memset(options->activations, K3_KEEP, K3_MAX_LAYERS);
	memset(options->activations, K3_RECOMPUTE, most);
out:
	k3_model_destroy(model);
	return ret;
}

int
k3_activations_choose(struct k3_plan_options *options, const struct k3_config *config,
		      const struct k3_run_shape *shape, uint64_t limit_bytes)
{
	return fewest(options, config, shape, limit_bytes, true);
}

int
k3_activations_squeeze(struct k3_plan_options *options, const struct k3_config *config,
		       const struct k3_run_shape *shape, uint64_t limit_bytes)
{
	return fewest(options, config, shape, limit_bytes, false);
}
