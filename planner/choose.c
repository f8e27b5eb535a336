/* Tiles and groups by looking at plans.  From coarse cuts to fine ones: a finer cut has more tasks
 * and shorter ones, so once they are too short or too many, nothing finer need be built.  The trap:
 * a fine cut must earn its tasks, so of equal estimates the coarser wins. */
#include "choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

enum {
	/* shorter tasks drown in what the runtime takes; of a GPU, most of it is hidden behind the
	 * task before */
	MEAN_TASK_US = 1000,
	GPU_MEAN_TASK_US = 50,
	MOST_PLAN_TASKS = 20000,
	MOST_TASKS = 300000,	/* of all plans, but for the one that passes it */
	MOST_VOCABULARY = 8192, /* the head is cut by its own rule, its share is not asked for */
	PROBE_EXPERT_GROUPS = 8
};

/* A cut must bring down the time to that share, or the one looked at before, coarser, stays. */
static const double worth = 0.995;

struct search {
	const struct k3_config *config; /* of the first layers */
	struct k3_plan_options options;
	struct k3_layout layout;
	uint32_t workers;
	double enough_us; /* mean length of tasks */
	struct k3_choice best;
	bool found;	   /* best has tasks that are long enough */
	bool many_experts; /* groups of experts are as small as block_bytes demands */
};

/* First layers until every kind of layer was seen. */
static uint32_t
probe_layers(const struct k3_config *c)
{
	bool kda = false, mla = false;
	uint32_t l = 0;

	while (l < c->layers && !(kda && mla && l > c->first_dense)) {
		kda |= !c->is_mla[l] && l >= c->first_dense;
		mla |= c->is_mla[l];
		l++;
	}
	return l;
}

/* Is a cut better than the best so far? Long tasks come first; then time. */
static bool
is_better(const struct search *s, const struct k3_estimate *e, bool long_enough)
{
	if (s->best.n_plans == 0 || long_enough != s->found)
		return s->best.n_plans == 0 || long_enough;
	return e->makespan_us < worth * s->best.estimate.makespan_us;
}

/* Plans a cut and keeps it if it is the best so far. */
static int
look_at(struct search *s, struct k3_choice cut, struct k3_estimate *e)
{
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_plan_options options = s->options;
	struct k3_model *model = NULL;
	struct k3_plan *plan = NULL;
	int ret;

	cut.kda_groups = options.kda_groups ? options.kda_groups : cut.kda_groups;
	cut.mla_groups = options.mla_groups ? options.mla_groups : cut.mla_groups;
	cut.expert_groups = options.expert_groups ? options.expert_groups : cut.expert_groups;
	k3_choice_apply(&cut, &options);
	/* the groups of a tile are a chain, so their number hardly counts for the time */
	if (s->many_experts)
		options.expert_groups = PROBE_EXPERT_GROUPS;
	K3_TRY(k3_model_create(&model, s->config, &options));
	K3_TRY(k3_plan_microbatch(&plan, model, &s->layout, &what));
	K3_TRY(k3_plan_estimate(e, plan, s->workers));
	bool long_enough = e->mean_task_us >= s->enough_us;
	cut.n_plans = s->best.n_plans + 1;
	cut.n_tasks = s->best.n_tasks + e->n_tasks;
	if (is_better(s, e, long_enough)) {
		cut.estimate = *e;
		s->found = long_enough;
		s->best = cut;
	}
	s->best.n_plans = cut.n_plans;
	s->best.n_tasks = cut.n_tasks;
out:
	k3_plan_destroy(plan);
	k3_model_destroy(model);
	return ret;
}

static uint32_t
least_of(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Head groups 1, 2, 4, ... of one tile size, while they bring something; *finer tells whether a
 * finer tile is worth a look. */
static int
look_at_heads(struct search *s, uint32_t tile_tokens, bool *finer)
{
	const struct k3_config *c = s->config;
	uint32_t heads = c->kda_heads > c->heads ? c->kda_heads : c->heads;
	struct k3_estimate e = {0};
	double before_us = INFINITY;
	int ret = K3_OK;

	*finer = false;
	for (uint32_t g = 1; g <= least_of(heads, 2 * s->workers); g *= 2) {
		struct k3_choice cut = {.tile_tokens = tile_tokens,
					.kda_groups = least_of(g, c->kda_heads),
					.mla_groups = least_of(g, c->heads)};
		K3_TRY(look_at(s, cut, &e));
		/* the next size has half as many tiles more at least */
		*finer |= e.mean_task_us >= s->enough_us &&
			  1.5 * (double)e.n_tasks <= MOST_PLAN_TASKS;
		/* a model whose tasks are short in any cut has one tile, and groups that pay */
		if ((s->found && e.mean_task_us < s->enough_us) ||
		    e.makespan_us >= worth * before_us || 2 * e.n_tasks > MOST_PLAN_TASKS ||
		    s->best.n_tasks > MOST_TASKS)
			break;
		before_us = e.makespan_us;
	}
	*finer &= s->best.n_tasks <= MOST_TASKS;
out:
	return ret;
}

static int
look_at_tiles(struct search *s)
{
	static const uint32_t counts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
	const struct k3_mesh *mesh = &s->options.mesh;
	size_t cp = mesh->cp ? mesh->cp : 1, rows = (s->layout.n_tokens + cp - 1) / cp, last = 0;
	bool finer = true;
	int ret = K3_OK;

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) && finer; i++) {
		size_t each = (rows + counts[i] - 1) / counts[i], tile = (each + 63) / 64 * 64;
		if (tile == last || (i > 0 && tile >= rows))
			continue;
		last = tile;
		K3_TRY(look_at_heads(s, i > 0 ? (uint32_t)tile : 0, &finer));
	}
out:
	return ret;
}

/* Groups of so many experts that a row block holds them. */
static bool
experts_fit(const struct search *s, uint32_t groups)
{
	const struct k3_config *c = s->config;
	size_t each = (c->experts + groups - 1) / groups;
	size_t block_bytes = s->options.block_bytes ? s->options.block_bytes : K3_BLOCK_BYTES;

	return each * 2 * c->expert_ffn * c->latent * sizeof(float) <= block_bytes;
}

/* The groups of the best cut one by one: MLA heads apart from KDA's, then experts. */
static int
refine(struct search *s)
{
	const struct k3_config *c = s->config;
	uint32_t most = 2 * s->workers;
	struct k3_choice cut = s->best;
	struct k3_estimate e;
	int ret = K3_OK;

	for (uint32_t g = 1; g <= least_of(most, c->heads) && s->best.n_tasks <= MOST_TASKS;
	     g *= 2) {
		if (g == cut.kda_groups)
			continue;
		cut.mla_groups = g;
		K3_TRY(look_at(s, cut, &e));
	}
	cut = s->best;
	for (uint32_t g = 1; g <= least_of(most, c->experts) && s->best.n_tasks <= MOST_TASKS;
	     g *= 2) {
		if (s->many_experts || !experts_fit(s, g))
			continue;
		cut.expert_groups = g;
		K3_TRY(look_at(s, cut, &e));
	}
out:
	return ret;
}

int
k3_choose(struct k3_choice *choice, const struct k3_config *config,
	  const struct k3_plan_options *options, size_t tokens)
{
	struct k3_config probe = *config;
	struct k3_machine machine;
	int32_t *docs = NULL;
	struct search s = {.config = &probe, .options = *options};
	int ret = K3_OK;

	if (tokens > K3_MAX_TOKENS) {
		k3_error("planner", "%zu tokens: a microbatch has %d at most", tokens,
			 K3_MAX_TOKENS);
		K3_TRY(K3_ELIMIT);
	}
	docs = malloc(tokens * sizeof(*docs));
	K3_TRY(docs ? K3_OK : K3_ENOMEM);
	s.layout = (struct k3_layout){.n_tokens = tokens, .doc_ids = docs};
	for (size_t i = 0; i < tokens; i++)
		docs[i] = 1;
	if (!options->machine) {
		k3_machine_init(&machine, "", 1);
		s.options.machine = &machine;
	}
	s.workers = options->for_gpus ? 1 : s.options.machine->cores;
	s.enough_us = options->for_gpus ? GPU_MEAN_TASK_US : MEAN_TASK_US;
	/* the text alone decides: the tower is cut by vision_patches, and the order of text
	 * tiles in time is the same beside it */
	probe.vision.present = false;
	s.options.vision = false;
	K3_TRY(k3_config_set_layers(&probe, probe_layers(config)));
	if (probe.vocab > MOST_VOCABULARY)
		K3_TRY(k3_config_set_vocab(&probe, MOST_VOCABULARY));
	s.many_experts = probe.experts > PROBE_EXPERT_GROUPS && !options->expert_groups &&
			 !experts_fit(&s, PROBE_EXPERT_GROUPS);
	K3_TRY(look_at_tiles(&s));
	K3_TRY(refine(&s));
	*choice = s.best;
	choice->layers = probe.layers;
out:
	free(docs);
	return ret;
}

void
k3_choice_apply(const struct k3_choice *choice, struct k3_plan_options *options)
{
	options->tile_tokens = choice->tile_tokens;
	options->kda_groups = choice->kda_groups;
	options->mla_groups = choice->mla_groups;
	options->expert_groups = choice->expert_groups;
}
