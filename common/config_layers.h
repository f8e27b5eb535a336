/* The two layer lists of config.json while they are read. Internal to the config_*.c files. */
#ifndef K3_CONFIG_LAYERS_H
#define K3_CONFIG_LAYERS_H

#include "config.h"

enum k3i_layer_list { K3I_FULL_LIST, K3I_KDA_LIST, K3I_N_LISTS };

struct k3i_layers {
	const char *origin;
	uint32_t n;
	uint8_t count[K3I_N_LISTS][K3_MAX_LAYERS]; /* how often a list names it, at most 2 */
	char outside[256]; /* numbers that are no layers, as text */
	size_t outside_used;
};

/** For a model of n layers; K3_EINVAL above K3_MAX_LAYERS. */
int k3i_layers_init(struct k3i_layers *layers, uint32_t n, const char *origin);

/** Notes a number of a list; 1 is the first layer. */
void k3i_layers_add(struct k3i_layers *layers, enum k3i_layer_list list, long long number);

/** Each layer stands once in one of the lists; else K3_EINVAL, logged with all offenders. */
int k3i_layers_check(const struct k3i_layers *layers);

#endif
