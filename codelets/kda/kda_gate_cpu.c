/* The projections that feed KDA's gates: f = (x Wfa^T) Wfb^T, br = x Wb^T, gg = x Wg^T; nothing
 * between the two of f.
 *
 * The nonlinear part of the gate belongs to the chunk kernel, which hands back df, dbr and the sums
 * dab by head groups.  The trap: groups cover rows of Wfb and Wb, so a group's product touches only
 * its own rows.
 */
#include "../../common/op/kda.h"
#include "../linalg/linear.h"

struct group {
	size_t h0, heads;
	const float *df, *dbr;
};

static struct group
group_at(void *const *buf, const struct k3_kda_gate_args *a, uint32_t i)
{
	struct group g = {.df = buf[a->df.first + i], .dbr = buf[a->dbr.first + i]};

	g.heads = k3_heads_of_group(a->h, a->group_heads, i, &g.h0);
	return g;
}

void
k3_kda_gate_fwd_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a)
{
	const float *x = buf[4];

	k3_linear_fwd(buf[0], a->k, 0.0f, x, a->d, buf, &a->wfa, 0, a->k, a->t);
	k3_linear_fwd(buf[1], a->p, 0.0f, buf[0], a->k, buf, &a->wfb, 0, a->p, a->t);
	k3_linear_fwd(buf[2], a->h, 0.0f, x, a->d, buf, &a->wb, 0, a->h, a->t);
	k3_linear_fwd(buf[3], a->p, 0.0f, x, a->d, buf, &a->wg, 0, a->p, a->t);
}

void
k3_kda_gate_bwd_dx_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a)
{
	float *dx = buf[0], *dfa = buf[1];

	for (uint32_t i = 0; i < a->df.n; i++) {
		struct group g = group_at(buf, a, i);

		k3_linear_dx(dfa, a->k, i ? 1.0f : 0.0f, g.df, g.heads * a->k, buf, &a->wfb,
			     g.h0 * a->k, (g.h0 + g.heads) * a->k, a->t);
		k3_linear_dx(dx, a->d, 1.0f, g.dbr, g.heads, buf, &a->wb, g.h0, g.h0 + g.heads,
			     a->t);
	}
	k3_linear_dx(dx, a->d, 1.0f, dfa, a->k, buf, &a->wfa, 0, a->k, a->t);
	k3_linear_dx(dx, a->d, 1.0f, buf[2], a->p, buf, &a->wg, 0, a->p, a->t);
}

static void
add_or_set(float *dst, const float *src, size_t n, int accumulate)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = accumulate ? dst[i] + src[i] : src[i];
}

void
k3_kda_gate_bwd_dw_cpu_f32(void *const *buf, const struct k3_kda_gate_args *a)
{
	const float *dfa = buf[0], *dgg = buf[1], *x = buf[2], *fa = buf[3];
	float *da = k3_weight_ptr(buf, &a->a_log), *db = k3_weight_ptr(buf, &a->dt_bias);

	k3_linear_dw(buf, &a->wfa, 0, a->k, dfa, a->k, x, a->d, a->t);
	k3_linear_dw(buf, &a->wg, 0, a->p, dgg, a->p, x, a->d, a->t);
	for (uint32_t i = 0; i < a->df.n; i++) {
		struct group g = group_at(buf, a, i);
		const float *dab = buf[a->dab.first + i];

		k3_linear_dw(buf, &a->wfb, g.h0 * a->k, (g.h0 + g.heads) * a->k, g.df,
			     g.heads * a->k, fa, a->k, a->t);
		k3_linear_dw(buf, &a->wb, g.h0, g.h0 + g.heads, g.dbr, g.heads, x, a->d, a->t);
		add_or_set(da + g.h0, dab, g.heads, (int)a->a_log.accumulate);
		add_or_set(db + g.h0 * a->k, dab + g.heads, g.heads * a->k,
			   (int)a->dt_bias.accumulate);
	}
}
