/* Routes of a mixture-of-experts layer: experts, their weights, and by how much the last one
 * won. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "verify_model.h"

/* Routes of one tile into arrays over all tokens: ids ascending with their weights, and the margin.
 */
static void
take_routes(struct k3i_verify_case *c, const struct k3_datum *d, const int32_t *route,
	    const float *routew, const float *bias, int32_t *ids, double *weights, double *margin)
{
	size_t e = c->config.experts, k = c->config.top_k;
	const struct k3_tile *tile = &c->plan->tile[d->tile];
	const float *score = k3_routew_scores(routew, tile->rows, k),
		    *cut = k3_routew_cut(routew, e, tile->rows, k);

	for (size_t r = 0; r < tile->rows && tile->row0 + r < c->t; r++) {
		const int32_t *from = k3_route_ids(route, e) + r * k;
		size_t at = (tile->row0 + r) * k;
		double least = INFINITY;
		for (size_t j = 0; j < k; j++) {
			size_t p = j;
			double value =
				(double)score[r * e + (size_t)from[j]] + (double)bias[from[j]];
			least = value < least ? value : least;
			for (; p > 0 && ids[at + p - 1] > from[j]; p--) {
				ids[at + p] = ids[at + p - 1];
				weights[at + p] = weights[at + p - 1];
			}
			ids[at + p] = from[j];
			weights[at + p] = (double)routew[r * k + j];
		}
		margin[tile->row0 + r] = least - (double)cut[r];
	}
}

void
k3i_verify_routes(struct k3i_verify_case *c, int l)
{
	size_t k = c->config.top_k, n;
	int32_t *ids = calloc(c->t * k + 1, sizeof(*ids));
	double *weights = calloc(c->t * k + 1, sizeof(*weights)),
	       *margin = calloc(c->t + 1, sizeof(*margin));
	float *bias = malloc((c->config.experts + 1) * sizeof(*bias));
	char name[64];

	K3_ASSERT(ids && weights && margin && bias);
	k3_store_datum_read(c->session.store, NULL, (uint32_t)c->session.model->bias[l], bias);
	for (size_t i = 0; i < c->plan->n_tiles; i++) {
		int32_t a = k3_plan_find(c->plan, "route", l, (int)i, -1),
			b = k3_plan_find(c->plan, "routew", l, (int)i, -1);
		int32_t *route = malloc(c->plan->data[a].bytes + 1);
		float *routew = malloc(c->plan->data[b].bytes + 1);
		K3_ASSERT(route && routew);
		if (k3_store_datum_read(c->session.store, c->plan, (uint32_t)a, route) == K3_OK &&
		    k3_store_datum_read(c->session.store, c->plan, (uint32_t)b, routew) == K3_OK)
			take_routes(c, &c->plan->data[a], route, routew, bias, ids, weights,
				    margin);
		free(route);
		free(routew);
	}
	snprintf(name, sizeof(name), "router_ids.%d", l);
	int32_t *want_ids = k3i_verify_i32(c->st, name, &n);
	if (want_ids && n == c->t * k)
		k3_verify_compare_ints(c->report, "router_ids", name, K3_PLACE_LAYERS + l, ids,
				       want_ids, n);
	snprintf(name, sizeof(name), "router_weights.%d", l);
	double *want = k3i_verify_f64(c->st, name, &n);
	if (want && n == c->t * k)
		k3_verify_compare(c->report, "router_weights", name, K3_PLACE_LAYERS + l, weights,
				  want, n, 2e-5, false);
	free(want);
	snprintf(name, sizeof(name), "router_margin.%d", l);
	want = k3i_verify_f64(c->st, name, &n);
	if (want && n == c->t)
		k3_verify_compare(c->report, "router_margin", name, K3_PLACE_LAYERS + l, margin,
				  want, n, 2e-5, false);
	free(want);
	free(want_ids);
	free(ids);
	free(weights);
	free(margin);
	free(bias);
}
