/* The beginning of a run: initial values of parameters, moments and biases. */
#include "../common/log.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "optimizer.h"

static void
init_part(struct k3_builder *b, uint32_t datum, enum k3_mode mode, struct k3_param_init_args part)
{
	const struct k3_datum *d = &b->plan->data[datum];
	struct k3_param_init_args *a =
		k3i_task(b, K3_OP_PARAM_INIT, d->layer, -1, d->index, sizeof(*a));

	*a = part;
	a->half = d->dtype == K3_BF16;
	k3i_use(b, datum, mode);
	/* a random number costs some forty operations */
	bool constant = part.kind == K3_INIT_ZERO || part.kind == K3_INIT_ONE;
	k3i_task_end(b, (constant ? 1.0 : 40.0) * (double)part.n_elems,
		     (double)(part.n_elems * k3_dtype_bytes((enum k3_dtype)d->dtype)));
}

/* Block of a plain parameter: one task. Of an expert stack: one per checkpoint tensor that has rows
 * in it. */
static void
init_block(struct k3_builder *b, size_t param, uint32_t datum, uint64_t seed, bool parity_mixers)
{
	const struct k3_params *ps = &b->model->params;
	const struct k3_param *p = &ps->param[param];
	const struct k3_datum *d = &b->plan->data[datum];
	struct k3_param_init_args part = {.kind = p->init, .scale = p->init_scale};
	enum k3_mode mode = K3_W;

	if (parity_mixers && (p->role == K3_P_ATTN_RES_PROJ || p->role == K3_P_FFN_RES_PROJ ||
			      p->role == K3_P_OUT_RES_PROJ))
		part.kind = K3_INIT_NORMAL;
	if (!p->experts_per_block) {
		part.key = k3_rng_key(p->name, seed);
		part.first_elem = (uint64_t)d->row0 * p->cols;
		part.n_elems = d->rows * p->cols;
		init_part(b, datum, mode, part);
		return;
	}
	size_t filled = 0;
	for (size_t i = k3_params_tensor_at(ps, param, d->row0); filled < d->rows; i++) {
		struct k3_ckpt_tensor t;
		K3_ASSERT(i < ps->first_tensor[param + 1]);
		k3_params_tensor(ps, i, &t);
		size_t first, n = k3_params_overlap(&t, d->row0, d->rows, &first);
		b->plan->steps++;
		if (n == 0)
			continue;
		filled += n;
		part.key = k3_rng_key(t.name, seed);
		part.first_elem = (uint64_t)(first - t.row0) * p->cols;
		part.offset_elems = (first - d->row0) * p->cols;
		part.n_elems = n * p->cols;
		init_part(b, datum, mode, part);
		mode = K3_RW;
	}
}

/* bf16 copies of the parameters that have one. */
static void
cast_params(struct k3_builder *b)
{
	uint32_t n;
	struct k3_block_group *group = k3i_optim_all(b, true, &n);

	for (uint32_t i = 0; i < n && b->act != b->model->options.optimizer_dtype; i++) {
		struct k3_cast_args *a = k3i_task(b, K3_OP_CAST_PARAMS, -1, -1, (int)i, sizeof(*a));
		double total;
		a->copy = k3i_optim_copies(b, &a->copies, &group[i]);
		k3i_optim_list(b, &a->params, &group[i], 0, K3_R);
		a->n_elems = k3i_optim_sizes(b, &group[i], &total);
		k3i_task_end(b, total, 0);
	}
}

int
k3_plan_init(struct k3_plan **plan, const struct k3_model *model, uint64_t seed, bool parity_mixers)
{
	struct k3_builder b;

	*plan = NULL;
	if (k3i_builder_init(&b, model) == K3_OK) {
		b.pass = K3_PASS_SETUP;
		for (uint32_t i = 0; i < model->n_blocks; i++) {
			const struct k3_datum *d = &model->persist[i];
			struct k3_param_init_args zero = {.kind = K3_INIT_ZERO,
							  .n_elems = d->rows * d->row_elems};
			init_block(&b, (size_t)d->param, i, seed, parity_mixers);
			init_part(&b, i + 2 * model->n_blocks, K3_W, zero);
			init_part(&b, i + 3 * model->n_blocks, K3_W, zero);
		}
		for (uint32_t l = 0; l < model->config.layers; l++)
			if (model->bias[l] != K3_NO_DATUM)
				init_part(&b, (uint32_t)model->bias[l], K3_W,
					  (struct k3_param_init_args){
						  .kind = K3_INIT_ZERO,
						  .n_elems = model->config.experts});
		cast_params(&b);
	}
	return k3i_builder_finish(&b, plan);
}
