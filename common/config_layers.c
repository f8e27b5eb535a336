/* Lists of layers against their count: no gap, no overlap, nothing outside.  All offenders of a
 * kind are named at once: a wrong list is mostly wrong by a shift, and one number hides that. */
#include "config_layers.h"

#include <stdio.h>
#include <string.h>

#include "log.h"
#include "status.h"

int
k3i_layers_init(struct k3i_layers *layers, uint32_t n, const char *origin)
{
	memset(layers, 0, sizeof(*layers));
	layers->origin = origin;
	layers->n = n;
	if (n <= K3_MAX_LAYERS)
		return K3_OK;
	k3_error("common", "%s: num_hidden_layers is %u; it must be at most %d", origin, n,
	         K3_MAX_LAYERS);
	return K3_EINVAL;
}

static size_t
append(char *text, size_t room, size_t used, long long number)
{
	if (used >= room)
		return used;
	return used + (size_t)snprintf(text + used, room - used, " %lld", number);
}

void
k3i_layers_add(struct k3i_layers *layers, enum k3i_layer_list list, long long number)
{
	if (number < 1 || number > layers->n)
		layers->outside_used = append(layers->outside, sizeof(layers->outside),
		                              layers->outside_used, number);
	else if (layers->count[list][number - 1] < 2)
		layers->count[list][number - 1]++;
}

static bool
is_repeated(unsigned int full, unsigned int kda)
{
	return full > 1 || kda > 1;
}

static bool
is_in_both(unsigned int full, unsigned int kda)
{
	return full && kda;
}

static bool
is_in_neither(unsigned int full, unsigned int kda)
{
	return !full && !kda;
}

/* Logs the layers of one kind of fault; K3_OK when there are none. */
static int
fault_check(const struct k3i_layers *layers, bool (*is_fault)(unsigned int, unsigned int),
            const char *what)
{
	char numbers[1024] = "";
	size_t used = 0;

	for (uint32_t l = 0; l < layers->n; l++)
		if (is_fault(layers->count[K3I_FULL_LIST][l], layers->count[K3I_KDA_LIST][l]))
			used = append(numbers, sizeof(numbers), used, (long long)l + 1);
	if (!used)
		return K3_OK;
	k3_error("common", "%s: %s:%s (of layers 1 to %u)", layers->origin, what, numbers,
	         layers->n);
	return K3_EINVAL;
}

int
k3i_layers_check(const struct k3i_layers *layers)
{
	int ret = K3_OK;

	if (layers->outside_used) {
		k3_error("common", "%s: full_attn_layers and kda_layers name layers that do not "
		         "exist:%s (of layers 1 to %u)", layers->origin, layers->outside,
		         layers->n);
		return K3_EINVAL;
	}
	K3_TRY(fault_check(layers, is_repeated, "layers stand twice in one list"));
	K3_TRY(fault_check(layers, is_in_both,
	                   "layers stand in full_attn_layers and in kda_layers"));
	K3_TRY(fault_check(layers, is_in_neither,
	                   "layers stand neither in full_attn_layers nor in kda_layers"));
out:
	return ret;
}
