/* A plan of kda_chunk tasks alone, with ready-made gates.  The states of the tiles are a chain in
 * each direction. */
#include "kda_op.h"

#include <math.h>

#include "../common/status.h"
#include "build.h"

struct op_data {
	uint32_t qkv, g, beta, dout, layout, o, dqkv, dg, dbeta, dab;
	size_t rows;
};

static uint32_t
kept(struct k3_builder *b, const char *what, enum k3_data_kind kind, enum k3_dtype dtype, int tile,
     size_t rows, size_t row_elems)
{
	uint32_t d = k3i_data(b, what, kind, dtype, -1, tile, -1, rows, rows, row_elems);

	if (b->status == K3_OK)
		b->plan->data[d].keep = true;
	return d;
}

/* What the host writes lives from the start of the plan. */
static uint32_t
input(struct k3_builder *b, const char *what, enum k3_dtype dtype, int tile, size_t rows,
      size_t row_elems)
{
	uint32_t d = kept(b, what, K3_DATA_INPUT, dtype, tile, rows, row_elems);

	k3i_touch(b, d);
	b->written[d] = 1;
	return d;
}

static void
args_of(struct k3_kda_chunk_args *a, const struct k3_kda_op *op, size_t rows)
{
	*a = (struct k3_kda_chunk_args){.t = rows,
					.h = op->heads,
					.k = op->k,
					.v = op->v,
					.h0 = 0,
					.h1 = (uint32_t)op->heads,
					.raw = 1,
					.scale = (float)(1 / sqrt((double)op->k))};
}

static void
forward(struct k3_builder *b, const struct k3_kda_op *op, const struct op_data *d, int tile,
	int32_t s_in, int32_t s_out)
{
	struct k3_kda_chunk_args *a = k3i_task(b, K3_OP_KDA_CHUNK_FWD, -1, tile, -1, sizeof(*a));

	args_of(a, op, d->rows);
	k3i_use(b, d->o, K3_W);
	k3i_use(b, d->qkv, K3_R);
	k3i_use(b, d->g, K3_R);
	k3i_use(b, d->beta, K3_R);
	k3i_use(b, d->layout, K3_R);
	k3i_work(b, k3_kda_chunk_fwd_work_floats(d->rows, op->heads, op->k, op->v));
	k3i_list_one(b, &a->s_in, s_in, K3_R);
	k3i_list_one(b, &a->s_out, s_out, K3_W);
	k3i_task_end(b, 1, 0);
}

static void
backward(struct k3_builder *b, const struct k3_kda_op *op, const struct op_data *d, int tile,
	 int32_t s_in, int32_t ds_out, int32_t ds_in)
{
	struct k3_kda_chunk_args *a = k3i_task(b, K3_OP_KDA_CHUNK_BWD, -1, tile, -1, sizeof(*a));

	args_of(a, op, d->rows);
	k3i_use(b, d->dqkv, K3_W);
	k3i_use(b, d->dg, K3_W);
	k3i_use(b, d->dbeta, K3_W);
	k3i_use(b, d->dab, K3_W);
	k3i_use(b, d->dout, K3_R);
	k3i_use(b, d->qkv, K3_R);
	k3i_use(b, d->g, K3_R);
	k3i_use(b, d->beta, K3_R);
	k3i_use(b, d->layout, K3_R);
	k3i_work(b, k3_kda_chunk_bwd_work_floats(d->rows, op->heads, op->k, op->v));
	k3i_list_one(b, &a->s_in, s_in, K3_R);
	k3i_list_one(b, &a->ds_out, ds_out, K3_R);
	k3i_list_one(b, &a->ds_in, ds_in, K3_W);
	k3i_task_end(b, 1, 0);
}

static void
tile_data(struct k3_builder *b, const struct k3_kda_op *op, struct op_data *d, int tile,
	  size_t rows)
{
	size_t wide = op->heads * (2 * op->k + op->v);

	d->rows = rows;
	d->qkv = input(b, "qkv", b->act, tile, rows, wide);
	d->g = input(b, "g", b->act, tile, rows, op->heads * op->k);
	d->beta = input(b, "beta", b->act, tile, rows, op->heads);
	d->dout = input(b, "do", b->act, tile, rows, op->heads * op->v);
	d->layout = input(b, "layout", K3_I32, tile, k3_tile_layout_len(rows), 1);
	d->o = kept(b, "o", K3_DATA_ACT, b->act, tile, rows, op->heads * op->v);
	d->dqkv = kept(b, "dqkv", K3_DATA_ACT, b->act, tile, rows, wide);
	d->dg = kept(b, "dg", K3_DATA_ACT, b->act, tile, rows, op->heads * op->k);
	d->dbeta = kept(b, "dbeta", K3_DATA_ACT, b->act, tile, rows, op->heads);
	d->dab = k3i_data(b, "dab", K3_DATA_WORK, K3_F32, -1, tile, -1, op->heads, op->heads,
			  1 + op->k);
}

/* state[i + 1] is what tile i leaves, state[0] what enters the first; likewise dstate. */
static void
chain(struct k3_builder *b, const struct k3_kda_op *op, struct op_data *d, uint32_t *state,
      uint32_t *dstate, size_t n)
{
	size_t kv = op->k * op->v;

	for (size_t i = 0; i <= n; i++) {
		int tile = (int)i - 1;
		bool given = i == 0 && op->start_state, dgiven = i == n && op->end_gradient;
		state[i] = given ? input(b, "state", K3_F32, tile, op->heads, kv)
				 : kept(b, "state", K3_DATA_ACT, K3_F32, tile, op->heads, kv);
		dstate[i] = dgiven ? input(b, "dstate", K3_F32, tile, op->heads, kv)
				   : kept(b, "dstate", K3_DATA_ACT, K3_F32, tile, op->heads, kv);
	}
	for (size_t i = 0; i < n; i++)
		forward(b, op, &d[i], (int)i,
			i > 0 || op->start_state ? (int32_t)state[i] : K3_NO_DATUM,
			(int32_t)state[i + 1]);
	for (size_t i = n; i-- > 0;)
		backward(b, op, &d[i], (int)i,
			 i > 0 || op->start_state ? (int32_t)state[i] : K3_NO_DATUM,
			 i + 1 < n || op->end_gradient ? (int32_t)dstate[i + 1] : K3_NO_DATUM,
			 i > 0 || op->start_state ? (int32_t)dstate[i] : K3_NO_DATUM);
}

int
k3_plan_kda_op(struct k3_plan **plan, const struct k3_model *model, const struct k3_kda_op *op)
{
	struct k3_builder b;
	size_t each = op->tile_tokens ? op->tile_tokens : op->t, n = (op->t + each - 1) / each;

	*plan = NULL;
	if (k3i_builder_init(&b, model) == K3_OK) {
		struct op_data *d = k3i_arena_alloc(b.plan->arena, n * sizeof(*d));
		uint32_t *state = k3i_arena_alloc(b.plan->arena, 2 * (n + 1) * sizeof(*state));
		if (!d || !state)
			b.status = K3_ENOMEM;
		for (size_t i = 0; i < n && b.status == K3_OK; i++)
			tile_data(&b, op, &d[i], (int)i,
				  (i + 1) * each < op->t ? each : op->t - i * each);
		if (b.status == K3_OK)
			chain(&b, op, d, state, state + n + 1, n);
		b.plan->n_tiles = b.plan->own_n = n;
	}
	return k3i_builder_finish(&b, plan);
}
