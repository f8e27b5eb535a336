/* MLA projections (model.md 4): query latent with its norm, queries, compressed keys and values,
 * output gate. The trap: q_a's norm has its own eps, and its factor is recomputed in the backward
 * pass rather than saved. */
#include <string.h>

#include "../../common/op/mla.h"
#include "../linalg/linear.h"
#include "../norm/rms.h"

void
k3_mla_proj_fwd_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a)
{
	float *qa = buf[0], *q = buf[1], *c = buf[2], *zg = buf[3], *work = buf[5];
	const float *x = buf[4], *qn = buf[a->qn.first];
	size_t hq = a->h * a->kq, hv = a->h * a->v, ck = a->rkv + a->rope;

	k3_linear_fwd(qa, a->rq, 0, x, a->d, buf, &a->wqa, 0, a->rq, a->t);
	k3_rms_fwd_rows(work, qa, qn, a->t, a->rq, a->eps);
	k3_linear_fwd(q, hq, 0, work, a->rq, buf, &a->wqb, 0, hq, a->t);
	k3_linear_fwd(c, ck, 0, x, a->d, buf, &a->wkva, 0, ck, a->t);
	k3_linear_fwd(zg, hv, 0, x, a->d, buf, &a->wgate, 0, hv, a->t);
}

/* Heads of group g: rows of Wqb. */
static size_t
group_rows(const struct k3_mla_proj_args *a, uint32_t g, size_t *first)
{
	size_t h0, heads = k3_heads_of_group(a->h, a->group_heads, g, &h0);

	*first = h0 * a->kq;
	return heads * a->kq;
}

void
k3_mla_proj_bwd_dx_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a)
{
	float *dx = buf[0], *dqa = buf[1], *dlat = buf[5];
	const float *dc = buf[2], *dzg = buf[3], *qa = buf[4];
	const float *qn = buf[a->qn.first];
	float *dqn = buf[a->dqn.first];
	size_t ck = a->rkv + a->rope;

	for (uint32_t g = 0; g < a->dq.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		k3_linear_dx(dlat, a->rq, g ? 1.0f : 0.0f, buf[a->dq.first + g], n, buf, &a->wqb,
			     first, first + n, a->t);
	}
	if (!a->dqn.accumulate)
		memset(dqn, 0, a->rq * sizeof(*dqn));
	for (size_t i = 0; i < a->t; i++) {
		const float *row = qa + i * a->rq;
		k3_rms_bwd_row(dqa + i * a->rq, dqn, dlat + i * a->rq, row, qn,
			       k3_rms_factor(row, a->rq, a->eps), a->rq);
	}
	k3_linear_dx(dx, a->d, 0, dqa, a->rq, buf, &a->wqa, 0, a->rq, a->t);
	k3_linear_dx(dx, a->d, 1, dc, ck, buf, &a->wkva, 0, ck, a->t);
	k3_linear_dx(dx, a->d, 1, dzg, a->h * a->v, buf, &a->wgate, 0, a->h * a->v, a->t);
}

void
k3_mla_proj_bwd_dw_cpu_f32(void *const *buf, const struct k3_mla_proj_args *a)
{
	const float *dqa = buf[0], *dc = buf[1], *dzg = buf[2], *qa = buf[3], *x = buf[4];
	float *work = buf[5];
	size_t ck = a->rkv + a->rope;

	k3_rms_fwd_rows(work, qa, buf[a->qn.first], a->t, a->rq, a->eps);
	k3_linear_dw(buf, &a->wqa, 0, a->rq, dqa, a->rq, x, a->d, a->t);
	for (uint32_t g = 0; g < a->dq.n; g++) {
		size_t first, n = group_rows(a, g, &first);
		k3_linear_dw(buf, &a->wqb, first, first + n, buf[a->dq.first + g], n, work, a->rq,
			     a->t);
	}
	k3_linear_dw(buf, &a->wkva, 0, ck, dc, ck, x, a->d, a->t);
	k3_linear_dw(buf, &a->wgate, 0, a->h * a->v, dzg, a->h * a->v, x, a->d, a->t);
}
