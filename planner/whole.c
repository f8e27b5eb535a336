/* Persistent data in the parts of one handle.  Every handle of a task costs StarPU time, three
 * times: when the task becomes ready, when its data are fetched and when it ends.  A GPU updates a
 * parameter in less, so what only the optimizer touches is joined: the moments of one of its tasks,
 * and the masters that have a copy.  So are the vectors of a layer that one optimizer task updates,
 * as all other tasks read them alone.  The traps: tasks that write two parts wait for each other,
 * so gradients keep handles of their own; and a run without an optimizer (k3_eval) loads masters,
 * so these don't share with moments. */
#include "whole.h"

#include <stdlib.h>

#include "../common/status.h"
#include "optimizer.h"

enum { NONE = UINT32_MAX };
static const size_t alignment = 256; /* as of data that have handles of their own */

/* Puts a datum at the end of the handle that `first` leads; the first one of all leads. */
static void
join(struct k3_model *m, uint32_t *first, uint32_t datum)
{
	struct k3_datum *d = &m->persist[datum];

	if (*first == NONE) {
		*first = datum;
		return;
	}
	struct k3_datum *leader = &m->persist[*first];
	size_t bytes = leader->whole_bytes ? leader->whole_bytes : leader->bytes;
	d->whole = *first + 1;
	d->at = (bytes + alignment - 1) / alignment * alignment;
	leader->whole_bytes = (d->at + d->bytes + alignment - 1) / alignment * alignment;
}

/* What of one optimizer task's data goes together. */
static void
join_group(struct k3_model *m, const struct k3_block_group *g)
{
	uint32_t moments = NONE, masters = NONE, vectors = NONE;

	for (uint32_t k = 0; k < g->n; k++) {
		uint32_t i = g->block[k];
		int32_t copy = m->copy[i];
		join(m, &moments, i + 2 * m->n_blocks);
		join(m, &moments, i + 3 * m->n_blocks);
		if (copy != K3_NO_DATUM && copy != (int32_t)i)
			join(m, &masters, i);
		if (k3_param_is_matrix(&m->params.param[m->persist[i].param]))
			continue;
		if (vectors != NONE && m->persist[vectors].layer != m->persist[i].layer)
			vectors = NONE;
		join(m, &vectors, i);
	}
}

int
k3i_make_wholes(struct k3_model *model)
{
	uint32_t n = model->n_updates;
	struct k3_block_group *group = calloc(n + 1, sizeof(*group));

	if (!group)
		return K3_ENOMEM;
	k3i_update_groups(model, group, n);
	for (uint32_t i = 0; i < n; i++)
		join_group(model, &group[i]);
	free(group);
	return K3_OK;
}

size_t
k3_datum_place_bytes(const struct k3_datum *d)
{
	return d->whole ? 0 : d->whole_bytes ? d->whole_bytes : d->bytes;
}
