/* What a plan has kept, put together again. */
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "verify_model.h"

double *
k3i_verify_gather(struct k3i_verify_case *c, const char *what, int layer, size_t *n)
{
	double *out = NULL;
	size_t have = 0;

	/* a backward walk makes its data late tile first: rows are put in order here */
	for (size_t at = 0; at < c->plan->n_tiles * c->plan->n_data; at++) {
		size_t i = at % c->plan->n_data;
		const struct k3_datum *d = &c->plan->data[i];
		if (d->tile != (int32_t)(at / c->plan->n_data) || d->layer != layer || !d->keep ||
		    strcmp(d->what, what) != 0)
			continue;
		size_t elems = d->rows * d->row_elems;
		float *part = malloc(elems * sizeof(*part) + 1);
		double *grown = realloc(out, (have + elems + 1) * sizeof(*out));
		K3_ASSERT(part && grown);
		out = grown;
		int ret = k3_store_floats_read(c->session.store, c->plan, (uint32_t)i, part);
		for (size_t k = 0; ret == K3_OK && k < elems; k++)
			out[have + k] = (double)part[k];
		have += elems;
		free(part);
		if (ret != K3_OK) {
			free(out);
			return NULL;
		}
	}
	*n = have;
	return out;
}
