/* The communication of whole plans on meshes of several ranks: every task of every rank, on host
 * memory, with known values in what it reads and poison in what it writes. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../planner/mesh.h"
#include "../tasks/lane_call.h"
#include "nccl_ranks.h"
#include "vision_case.h"

enum { MOST_RANKS = 6, MOST_COMMS = 24 };

struct world {
	uint32_t ranks;
	struct k3_model *model[MOST_RANKS];
	struct k3_plan *plan[MOST_RANKS];
	struct nccl_ranks_group *group[MOST_COMMS];
	char fault[MOST_RANKS][200]; /* the first of each rank */
	size_t done[MOST_RANKS];     /* tasks */
};

struct rank {
	struct world *w;
	uint32_t rank;
	const struct k3_task *task; /* that is being tried */
	size_t nth;		    /* tasks of its operation before it */
};

/* ---- numbers in the types of data; small integers, so that their sums are exact in all of them */

static void
put(void *data, size_t i, enum k3_dtype dtype, double x)
{
	float f = (float)x;
	uint32_t word;

	memcpy(&word, &f, sizeof(word));
	if (dtype == K3_BF16)
		((uint16_t *)data)[i] = (uint16_t)(word >> 16);
	else if (dtype == K3_F64)
		((double *)data)[i] = x;
	else if (dtype == K3_I32)
		((int32_t *)data)[i] = (int32_t)x;
	else
		((float *)data)[i] = f;
}

static double
get(const void *data, size_t i, enum k3_dtype dtype)
{
	uint32_t word;
	float f;

	if (dtype == K3_F64)
		return ((const double *)data)[i];
	if (dtype == K3_I32)
		return ((const int32_t *)data)[i];
	if (dtype == K3_F32)
		return (double)((const float *)data)[i];
	word = (uint32_t)((const uint16_t *)data)[i] << 16;
	memcpy(&f, &word, sizeof(f));
	return (double)f;
}

/* What stands in row `row` and column `col` of something, on the rank that says `who`. */
static double
value(size_t what, size_t row, size_t col, uint32_t who)
{
	return (double)((what * 7 + row * 3 + col) % 31 + who);
}

/* ---- what a task reads, and what it must leave */

static const struct k3_datum *
datum(const struct rank *r, uint32_t i)
{
	const struct k3_plan *p = r->task->plan;

	return &p->data[p->access[r->task->first_access + i].datum];
}

/* The same operation's nth task on another rank. */
static const struct k3_task *
task_on(const struct rank *r, uint32_t other)
{
	const struct k3_plan *p = r->w->plan[other];
	size_t nth = 0;

	for (size_t i = 0; i < p->n_tasks; i++)
		if (p->task[i].op == r->task->op && nth++ == r->nth)
			return &p->task[i];
	return NULL;
}

static const struct k3_comm *
members(const struct rank *r)
{
	return &r->task->plan->comm[r->task->comm];
}

/* What a datum is, the same on all ranks; its first row in it. */
static size_t
identity(const struct rank *r, const struct k3_datum *d, size_t *row0)
{
	*row0 = 0;
	/* the ends of a halo have other tiles, or none */
	if (r->task->op == K3_OP_HALO_SEND || r->task->op == K3_OP_HALO_RECV)
		return (size_t)d->layer + 2;
	if (d->param >= 0) {
		*row0 = d->row0;
		return (size_t)d->param;
	}
	/* tiles of the tower have the same numbers everywhere */
	if (r->task->op == K3_OP_GATHER_FEATURES || r->task->op == K3_OP_SUM_FEATURE_GRADS)
		return (size_t)d->tile;
	if (d->tile >= 0)
		*row0 = r->task->plan->tile[d->tile].row0;
	return (size_t)(d->layer + 2) * 5 + (size_t)(d->index + 1);
}

/* Sums start from something when they add. */
enum { BEFORE = 40 };

static void
prepare(const struct rank *r, void **buf)
{
	const struct k3_plan *p = r->task->plan;

	for (uint32_t i = 0; i < r->task->n_access; i++) {
		const struct k3_datum *d = datum(r, i);
		bool read = p->access[r->task->first_access + i].mode & K3_R;
		bool shard = r->task->op == K3_OP_REDUCE_SCATTER_GRADS && d->kind == K3_DATA_GRAD;
		bool one = r->task->op == K3_OP_GATHER_PARAMS || r->task->op == K3_OP_GATHER_KV ||
			   r->task->op == K3_OP_GATHER_FEATURES;
		uint32_t who = one ? 0 : r->rank;
		size_t row0, what = identity(r, d, &row0);
		buf[i] = d->bytes ? malloc(d->bytes) : NULL;
		if (d->bytes)
			memset(buf[i], 0xff, d->bytes);
		for (size_t e = 0; read && e < d->rows * d->row_elems; e++)
			put(buf[i], e, (enum k3_dtype)d->dtype,
			    shard ? BEFORE
				  : value(what, row0 + e / d->row_elems, e % d->row_elems, who));
	}
}

/* Element e of buffer i after the task; NAN: it means nothing. */
static double
expected(const struct rank *r, uint32_t i, size_t e)
{
	const struct k3_task *t = r->task;
	const struct k3_datum *d = datum(r, i);
	const struct k3_comm *comm = members(r);
	size_t row0, what = identity(r, d, &row0), row = row0 + e / d->row_elems,
		     col = e % d->row_elems;
	double sum = 0;

	for (uint32_t m = 0; m < comm->n_members; m++)
		sum += value(what, row, col, comm->member[m]);
	switch (t->op) {
	case K3_OP_GATHER_PARAMS: {
		const struct k3_param *p = &t->plan->model->params.param[d->param];
		size_t end = (row0 / p->block_rows + 1) * p->block_rows;
		return row < end && row < p->rows ? value(what, row, col, 0) : NAN;
	}
	case K3_OP_ALLREDUCE:
		return sum;
	case K3_OP_SUM_FEATURE_GRADS:
		/* others have done with theirs */
		return t->peer == (int32_t)r->rank ? sum : NAN;
	case K3_OP_REDUCE_SCATTER_GRADS: {
		const struct k3_reduce_scatter_args *a = t->args;
		if (d->kind != K3_DATA_GRAD)
			return NAN;
		return sum + (a->accumulate ? BEFORE : 0);
	}
	case K3_OP_GATHER_FEATURES:
		return value(what, row, col, 0);
	case K3_OP_GATHER_KV:
		return d->kind == K3_DATA_WORK ? NAN : value(what, row, col, 0);
	case K3_OP_HALO_RECV:
		return value(what, row, col, (uint32_t)t->peer);
	default:
		return NAN;
	}
}

static void
fault(struct rank *r, uint32_t i, size_t e, double got, double want)
{
	char *text = r->w->fault[r->rank];

	if (!*text)
		snprintf(text, sizeof(r->w->fault[0]),
			 "rank %u, %s: buffer %u, element %zu: %g, expected %g", r->rank,
			 r->task->name, i, e, got, want);
}

static void
expect(struct rank *r, void *const *buf, uint32_t i, size_t e, double want)
{
	double got = get(buf[i], e, (enum k3_dtype)datum(r, i)->dtype);

	if (got != want)
		fault(r, i, e, got, want);
}

/* States of all members, in their order; zeros of those that have no document to cut. */
static void
expect_states(struct rank *r, void *const *buf)
{
	const struct k3_kda_state_gather_args *a = r->task->args;
	const struct k3_comm *comm = members(r);

	for (uint32_t g = 0; g < a->all.n; g++)
		for (uint32_t m = 0; m < comm->n_members; m++) {
			const struct k3_kda_state_gather_args *other =
				task_on(r, comm->member[m])->args;
			const struct k3_datum *d = datum(r, a->all.first + g);
			size_t row0, what = identity(r, d, &row0), each = d->rows / comm->n_members;
			for (size_t e = 0; e < each * d->row_elems; e++)
				expect(r, buf, a->all.first + g, m * each * d->row_elems + e,
				       other->sm.n ? value(what, e / d->row_elems, e % d->row_elems,
							   comm->member[m])
						   : 0);
		}
}

/* The root's own gradient and those of the ranks that have one of the tile. */
static void
expect_kv_grads(struct rank *r, void *const *buf)
{
	const struct k3_kv_args *a = r->task->args;
	const struct k3_comm *comm = members(r);

	if (r->task->peer != (int32_t)r->rank)
		return;
	for (uint32_t i = 0; i < a->n_tiles; i++) {
		const struct k3_datum *d = datum(r, a->tiles.first + i);
		size_t row0, what = identity(r, d, &row0);
		for (size_t e = 0; e < d->rows * d->row_elems; e++) {
			double sum = 0;
			for (uint32_t m = 0; m < comm->n_members; m++) {
				const struct k3_kv_args *other = task_on(r, comm->member[m])->args;
				if (other->tile[i].listed)
					sum += value(what, row0 + e / d->row_elems,
						     e % d->row_elems, comm->member[m]);
			}
			expect(r, buf, a->tiles.first + i, e, sum);
		}
	}
}

static void
check(struct rank *r, void *const *buf)
{
	if (r->task->op == K3_OP_KDA_STATE_GATHER)
		expect_states(r, buf);
	if (r->task->op == K3_OP_SCATTER_KV_GRADS)
		expect_kv_grads(r, buf);
	for (uint32_t i = 0; i < r->task->n_access; i++)
		for (size_t e = 0; e < datum(r, i)->rows * datum(r, i)->row_elems; e++) {
			double want = expected(r, i, e);
			if (!isnan(want))
				expect(r, buf, i, e, want);
		}
}

/* ---- the ranks */

static void *
run_rank(void *arg)
{
	struct rank *r = arg;
	const struct k3_plan *p = r->w->plan[r->rank];
	const struct k3_mesh *mesh = &r->w->model[r->rank]->options.mesh;
	size_t seen[K3_N_OPS] = {0};

	for (size_t i = 0; i < p->n_tasks; i++) {
		r->task = &p->task[i];
		r->nth = seen[r->task->op]++;
		if (r->task->comm < 0)
			continue;
		enum k3_group kind = k3_mesh_comm_kind(mesh, r->task->comm);
		void *buf[r->task->n_access + 1];
		prepare(r, buf);
		k3i_lane_call(buf, r->task, mesh,
			      nccl_ranks_comm(r->w->group[r->task->comm],
					      k3_mesh_group_rank(mesh, kind, r->rank)),
			      NULL, nccl_ranks_failed);
		check(r, buf);
		for (uint32_t k = 0; k < r->task->n_access; k++)
			free(buf[k]);
		r->w->done[r->rank]++;
	}
	return NULL;
}

/* Runs one plan of each rank. */
static void
run_plans(struct world *w)
{
	struct rank rank[MOST_RANKS];
	pthread_t thread[MOST_RANKS];
	const struct k3_plan *first = w->plan[0];

	cr_assert_leq(first->n_comms, MOST_COMMS);
	for (size_t c = 0; c < first->n_comms; c++)
		w->group[c] = nccl_ranks_group_create(first->comm[c].n_members);
	for (uint32_t r = 0; r < w->ranks; r++) {
		rank[r] = (struct rank){.w = w, .rank = r};
		cr_assert_eq(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
	}
	for (uint32_t r = 0; r < w->ranks; r++)
		pthread_join(thread[r], NULL);
	for (uint32_t r = 0; r < w->ranks; r++)
		cr_expect_str_empty(w->fault[r]);
	for (size_t c = 0; c < first->n_comms; c++)
		nccl_ranks_group_destroy(w->group[c]);
	for (uint32_t r = 0; r < w->ranks; r++)
		k3_plan_destroy(w->plan[r]);
}

/* A first and a second microbatch and the end of the step; returns the tasks of rank 0. */
static size_t
run_mesh(const char *mesh, const struct k3_plan_options *options, const char *const *documents)
{
	struct k3_mesh m;
	struct world w = {0};

	cr_assert_eq(k3_mesh_parse(&m, mesh), K3_OK);
	w.ranks = k3_mesh_ranks(&m);
	cr_assert_leq(w.ranks, MOST_RANKS);
	for (uint32_t r = 0; r < w.ranks; r++)
		w.model[r] = case_model(mesh, r, options);
	for (int step = 0; step < 3; step++) {
		for (uint32_t r = 0; r < w.ranks; r++)
			if (step < 2)
				w.plan[r] = case_plan(w.model[r], documents[r / m.cp], step == 0);
			else
				cr_assert_eq(k3_plan_optimizer(&w.plan[r], w.model[r], 0), K3_OK);
		run_plans(&w);
	}
	for (uint32_t r = 0; r < w.ranks; r++)
		k3_model_destroy(w.model[r]);
	return w.done[0];
}

Test(comm_ranks, shards_of_five_ranks_some_of_them_empty, .timeout = 60)
{
	static const char *const documents[] = {"20", "-20", "5 5 5 5", "1 19", "20"};
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	cr_expect_gt(run_mesh("dp_shard=5", &o, documents), 30);
	o.dtype = K3_BF16;
	o.block_bytes = 5000;
	o.piece_bytes = 12000;
	cr_expect_gt(run_mesh("dp_shard=3", &o, documents), 60);
}

Test(comm_ranks, latents_and_states_of_three_context_parallel_ranks, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.tile_tokens = 64;
	cr_expect_gt(run_mesh("cp=3", &o, (const char *const[]){"101 99 -40 160"}), 60);
	o.dtype = K3_BF16;
	cr_expect_gt(run_mesh("cp=3", &o, (const char *const[]){"400"}), 60);
	cr_expect_gt(run_mesh("cp=3", &o, (const char *const[]){"130 -140 30"}), 60);
}

Test(comm_ranks, replicas_of_two_shards, .timeout = 60)
{
	static const char *const documents[] = {"70 -5 125", "200", "3 1 196"};

	cr_expect_gt(run_mesh("dp_replicate=3,dp_shard=2", NULL,
			      (const char *const[]){"20", "-20", "5 15", "20", "1 19", "20"}),
		     40);
	cr_expect_gt(run_mesh("dp_replicate=3,cp=2", NULL, documents), 60);
}

Test(comm_ranks, one_rank_that_is_forced_leaves_everything_as_it_is, .timeout = 60)
{
	struct k3_plan_options o;

	k3_plan_options_init(&o);
	o.mesh.forced = true;
	cr_expect_gt(run_mesh("cp=1", &o, (const char *const[]){"70 -5 125"}), 60);
}

/* A microbatch with images, the same on the ranks of a cp group; returns the tasks of rank 0. */
static size_t
run_images(const char *mesh, const struct k3_plan_options *options, const char *const *images)
{
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_mesh m;
	struct world w = {0};

	cr_assert_eq(k3_mesh_parse(&m, mesh), K3_OK);
	w.ranks = k3_mesh_ranks(&m);
	cr_assert_leq(w.ranks, MOST_RANKS);
	for (uint32_t r = 0; r < w.ranks; r++) {
		w.model[r] = vision_case_model(mesh, r, options);
		w.plan[r] = vision_case_plan(w.model[r], 195, images[r / m.cp], what);
	}
	run_plans(&w);
	for (uint32_t r = 0; r < w.ranks; r++)
		k3_model_destroy(w.model[r]);
	return w.done[0];
}

Test(comm_ranks, features_and_their_gradients_of_images_on_several_ranks, .timeout = 60)
{
	static const char *const images[] = {"1x8x8@0 1x4x4@40 2x6x4@60 1x2x2@70 1x12x8@100",
					     "1x2x2@190", ""};
	struct k3_plan_options o = vision_case_options();

	o.vision_patches = 32;
	cr_expect_gt(run_images("cp=3", &o, images), 30);
	cr_expect_gt(run_images("dp_shard=3,cp=2", &o, images), 30);
	o.dtype = K3_BF16;
	o.max_patches = 400;
	o.tile_tokens = 64;
	cr_expect_gt(run_images("cp=6", &o, images), 30);
	o.mesh.forced = true;
	cr_expect_gt(run_images("cp=1", &o, images), 30);
}
