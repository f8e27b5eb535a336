/* Operands of a task in the making: sums, lists, work space, parameters and their gradients. */
#include "build.h"

#include "../common/log.h"
#include "../common/status.h"

uint32_t
k3i_use_sum(struct k3_builder *b, uint32_t datum)
{
	if (b->status != K3_OK)
		return 0;
	uint32_t accumulate = b->written[datum];
	k3i_use(b, datum, accumulate ? K3_RW : K3_W);
	return accumulate;
}

void
k3i_list(struct k3_builder *b, struct k3_list *list, const uint32_t *datum, size_t n,
	 enum k3_mode mode)
{
	list->first = b->cur ? b->cur->n_access : 0;
	list->n = (uint32_t)n;
	for (size_t i = 0; i < n; i++)
		k3i_use(b, datum[i], mode);
}

void
k3i_list_one(struct k3_builder *b, struct k3_list *list, int32_t datum, enum k3_mode mode)
{
	uint32_t id = (uint32_t)datum;

	k3i_list(b, list, &id, datum == K3_NO_DATUM ? 0 : 1, mode);
}

void
k3i_work(struct k3_builder *b, size_t nominal_floats)
{
	const struct k3_task *t = b->cur;
	uint32_t d = k3i_data(b, "work", K3_DATA_WORK, K3_F32, t ? t->layer : -1, t ? t->tile : -1,
			      t ? t->group : -1, 1, 1, nominal_floats);

	k3i_use(b, d, K3_W);
}

void
k3i_skip_work(struct k3_builder *b, size_t nominal_floats)
{
	k3i_skip(b);
	k3i_touch(b, k3i_data(b, "work", K3_DATA_WORK, K3_F32, -1, -1, -1, 1, 1, nominal_floats));
}

static const struct k3_param *
operand(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer, int *index)
{
	*index = k3_params_find(&b->model->params, role, layer);
	K3_ASSERT(*index >= 0);
	const struct k3_param *p = &b->model->params.param[*index];
	w->first = b->cur ? b->cur->n_access : 0;
	w->rows = p->rows;
	w->cols = p->cols;
	return p;
}

void
k3i_weight(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer)
{
	int i;

	operand(b, w, role, layer, &i);
	const struct k3_view *v = &b->weight[i];
	w->n = (uint32_t)v->n;
	w->block_rows = v->block_rows;
	for (size_t k = 0; k < v->n; k++)
		k3i_use(b, v->datum[k], K3_R);
}

void
k3i_touch_weight(struct k3_builder *b, enum k3_role role, int layer)
{
	const struct k3_view *v = &b->weight[k3_params_find(&b->model->params, role, layer)];

	for (size_t k = 0; k < v->n; k++)
		k3i_touch(b, v->datum[k]);
}

void
k3i_grad(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer)
{
	int i;

	operand(b, w, role, layer, &i);
	const struct k3_view *v = &b->grad[i];
	w->n = (uint32_t)v->n;
	w->block_rows = v->block_rows;
	for (size_t k = 0; k < v->n; k++)
		w->accumulate = k3i_use_sum(b, v->datum[k]);
}

static size_t
one_block(struct k3_weight *w, const struct k3_param *p, const struct k3_view *v, size_t block)
{
	size_t first = block * v->block_rows;

	w->n = 1;
	w->rows = w->block_rows = first + v->block_rows < p->rows ? v->block_rows : p->rows - first;
	return w->rows;
}

void
k3i_weight_block(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer,
		 size_t block)
{
	int i;
	const struct k3_param *p = operand(b, w, role, layer, &i);

	one_block(w, p, &b->weight[i], block);
	k3i_use(b, b->weight[i].datum[block], K3_R);
}

void
k3i_grad_block(struct k3_builder *b, struct k3_weight *w, enum k3_role role, int layer,
	       size_t block)
{
	int i;
	const struct k3_param *p = operand(b, w, role, layer, &i);

	one_block(w, p, &b->grad[i], block);
	w->accumulate = k3i_use_sum(b, b->grad[i].datum[block]);
}
