/* LM head and loss in the plan: sub-tiles of rows, vocabulary blocks, so that the logits of a
 * sub-tile are all that exists. */
#include "../common/status.h"
#include "text.h"

enum { LEAST_ROWS = 64 };

uint32_t
k3_plan_head_rows(const struct k3_plan_options *o, const struct k3_config *config)
{
	size_t block_bytes = o->block_bytes ? o->block_bytes : K3_BLOCK_BYTES;
	size_t bytes = o->for_gpus ? (size_t)K3_GPU_LOGITS_BYTES : block_bytes;
	size_t elem = o->for_gpus ? k3_dtype_bytes(o->dtype) : sizeof(float);
	size_t rows = bytes / (elem * config->vocab);

	return rows < LEAST_ROWS      ? LEAST_ROWS
	       : rows > K3_MAX_TOKENS ? K3_MAX_TOKENS
				      : (uint32_t)rows;
}

/* Sub-tiles of a tile are equally long, of whole runs of rows where the limit allows it. */
static size_t
head_rows(const struct k3i_walk *w)
{
	size_t most = w->b->model->options.head_rows, subs = (w->nominal + most - 1) / most;
	size_t each = (w->nominal + subs - 1) / subs,
	       whole = (each + LEAST_ROWS - 1) / LEAST_ROWS * LEAST_ROWS;

	return whole <= most && whole <= w->nominal ? whole : each;
}

struct sub {
	size_t tile, r0, rows;
	uint32_t *logits; /* one per vocabulary block */
	uint32_t tstat;
};

static const struct k3_view *
head_view(const struct k3i_walk *w)
{
	return &w->b->weight[k3_params_find(&w->b->model->params, K3_P_HEAD, -1)];
}

static size_t
block_cols(const struct k3i_walk *w, size_t block)
{
	size_t rows = head_view(w)->block_rows, first = block * rows;

	return first + rows < w->c->vocab ? rows : w->c->vocab - first;
}

static void
cross_entropy(struct k3i_walk *w, struct sub *s, size_t index, size_t nominal)
{
	struct k3_builder *b = w->b;
	size_t n = head_view(w)->n;
	int tile = k3i_tile_no(w, s->tile);

	s->logits = k3i_array(w, n);
	s->tstat = k3i_data(b, "tstat", K3_DATA_ACT, K3_F32, -1, tile, (int)index, s->rows, nominal,
			    2);
	for (size_t v = 0; v < n; v++)
		s->logits[v] = k3i_data(b, "dlogits", b->what.backward ? K3_DATA_ACT : K3_DATA_WORK,
					b->act, -1, tile, (int)(index * n + v), s->rows, nominal,
					block_cols(w, v));
	int32_t keep = K3_NO_DATUM;
	if (b->what.keep || b->what.keep_logits)
		keep = (int32_t)k3i_data(b, "logits", K3_DATA_ACT, b->act, -1, tile, (int)index,
					 s->rows, nominal, w->c->vocab);
	if (b->status != K3_OK)
		return;
	struct k3_lm_head_args *a = k3i_task(b, K3_OP_LM_HEAD_CE, -1, tile, (int)index, sizeof(*a));
	*a = (struct k3_lm_head_args){.t = k3i_rows(w, s->tile),
				      .d = w->c->width,
				      .r0 = s->r0,
				      .rows = s->rows,
				      .grad = b->what.backward};
	k3i_use(b, s->tstat, K3_W);
	k3i_use(b, w->hf[s->tile], K3_R);
	k3i_use(b, w->labels[s->tile], K3_R);
	k3i_use(b, b->model->hyper, K3_R);
	k3i_list(b, &a->logits, s->logits, n, K3_W);
	k3i_list_one(b, &a->keep, keep, K3_W);
	k3i_weight(b, &a->head, K3_P_HEAD, -1);
	k3i_task_end(b, 2.0 * (double)s->rows * (double)((size_t)w->c->vocab * w->c->width), 0);
	k3i_keep(w, s->tstat);
	if (keep != K3_NO_DATUM)
		b->plan->data[keep].keep = true;
}

static void
head_bwd(struct k3i_walk *w, const struct sub *s, size_t index, uint32_t dh)
{
	struct k3_builder *b = w->b;
	size_t n = head_view(w)->n, t = k3i_rows(w, s->tile);
	int tile = k3i_tile_no(w, s->tile);

	b->pass = K3_PASS_BACKWARD;
	struct k3_lm_head_args *a = k3i_task(b, K3_OP_LM_HEAD_DX, -1, tile, (int)index, sizeof(*a));
	*a = (struct k3_lm_head_args){
		.t = t, .d = w->c->width, .r0 = s->r0, .rows = s->rows, .grad = 1};
	k3i_use_sum(b, dh);
	k3i_list(b, &a->logits, s->logits, n, K3_R);
	k3i_weight(b, &a->head, K3_P_HEAD, -1);
	k3i_task_end(b, 2.0 * (double)s->rows * (double)((size_t)w->c->vocab * w->c->width), 0);
	for (size_t v = 0; v < n; v++) {
		struct k3_lm_head_args *dw =
			k3i_task(b, K3_OP_LM_HEAD_DW, -1, tile, (int)v, sizeof(*dw));
		*dw = (struct k3_lm_head_args){
			.t = t, .d = w->c->width, .r0 = s->r0, .rows = s->rows, .grad = 1};
		k3i_use(b, s->logits[v], K3_R);
		k3i_use(b, w->hf[s->tile], K3_R);
		k3i_grad_block(b, &dw->head, K3_P_HEAD, -1, v);
		k3i_task_end(b, 2.0 * (double)s->rows * (double)(block_cols(w, v) * w->c->width),
			     0);
	}
	b->pass = K3_PASS_FORWARD; /* the loss of later rows comes next */
}

void
k3i_head(struct k3i_walk *w, uint32_t *dh)
{
	struct k3_builder *b = w->b;
	size_t each = head_rows(w);

	for (size_t i = 0; i < w->n; i++) {
		size_t t = k3i_rows(w, i), subs = (t + each - 1) / each;
		uint32_t *tstat = k3i_array(w, subs);
		dh[i] = k3i_act(w, "dhead_in", -1, i, -1, w->c->width);
		for (size_t s = 0; s < subs && b->status == K3_OK; s++) {
			struct sub sub = {.tile = i,
					  .r0 = s * each,
					  .rows = s * each + each < t ? each : t - s * each};
			cross_entropy(w, &sub, s, each);
			tstat[s] = sub.tstat;
			if (b->what.backward && b->status == K3_OK)
				head_bwd(w, &sub, s, dh[i]);
		}
		if (b->status != K3_OK)
			return;
		struct k3_loss_sum_args *a =
			k3i_task(b, K3_OP_LOSS_SUM, -1, k3i_tile_no(w, i), -1, sizeof(*a));
		a->t = t;
		a->rows_each = each;
		a->accumulate = k3i_use_sum(b, b->model->loss_acc);
		k3i_use(b, w->labels[i], K3_R);
		k3i_use(b, w->layout[i], K3_R);
		k3i_list(b, &a->tstat, tstat, subs, K3_R);
		k3i_task_end(b, (double)t, 0);
	}
}
