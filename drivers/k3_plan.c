/* k3_plan: builds and checks the plan of a step without running it; prints numbers, exports the
 * graph.
 *
 * Every rank's plans are built one at a time, checked, and only their communication tasks are kept
 * for the proof of order.  On a mesh where that is more than MAX_TASKS tasks the proof covers the
 * cp ranks of the first and of the last data-parallel rank: ranks with the same place in their cp
 * group differ in the names of their groups and the rows of their shards alone.  The row `ranks
 * checked` says how many it were. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/config.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../planner/mesh.h"
#include "../planner/plan_check.h"
#include "../planner/plan_print.h"

enum { MAX_TASKS = 4000000, EXIT_USAGE = 2, NOTHING_TO_DO = -1 };

struct request {
	const char *model, *documents, *mesh_text, *dot, *json;
	long long layers, vocab, tokens, tile_tokens, accumulate;
	double memory_gib;
	struct k3_mesh mesh;
};

struct result {
	struct k3_plan_stats stats; /* of rank 0 */
	struct k3_memory memory;    /* of the rank that needs most */
	uint64_t bound_bytes;
	uint32_t checked;
};

/* 0, EXIT_USAGE or NOTHING_TO_DO. */
static int
parse(int argc, char **argv, struct request *rq)
{
	struct k3_option table[] = {
		{"model", "NAME", K3_OPT_STRING, &rq->model, 0, 0,
		 "preset, config.json or its folder", false},
		{"layers", "N", K3_OPT_INT, &rq->layers, 1, K3_MAX_LAYERS,
		 "keep the first N layers", false},
		{"vocab", "V", K3_OPT_INT, &rq->vocab, 5, INT32_MAX, "another vocabulary", false},
		{"tokens", "T", K3_OPT_INT, &rq->tokens, 1, INT32_MAX,
		 "tokens of a microbatch of one data-parallel rank (the sum of --documents, or "
		 "256)",
		 false},
		{"documents", "A,B,...", K3_OPT_STRING, &rq->documents, 0, 0,
		 "their lengths; what is left of T is padding (one document)", false},
		{"tile-tokens", "N|all", K3_OPT_TILE, &rq->tile_tokens, 0, 0,
		 "rows of a token tile: a multiple of 64, or all", false},
		{"accumulate", "M", K3_OPT_INT, &rq->accumulate, 1, 1e6,
		 "microbatches of a step (1)", false},
		{"mesh", "KEY=N,...", K3_OPT_STRING, &rq->mesh_text, 0, 0,
		 "dp_replicate, dp_shard, cp in any order; missing ones are 1", false},
		{"memory", "GIB", K3_OPT_REAL, &rq->memory_gib, 1e-9, 1e9,
		 "says whether a rank needs no more than this", false},
		{"dot", "FILE", K3_OPT_STRING, &rq->dot, 0, 0,
		 "writes the first rank's microbatch as a Graphviz graph", false},
		{"json", "FILE", K3_OPT_STRING, &rq->json, 0, 0, "the same as JSON", false},
	};
	int first, ret;

	*rq = (struct request){.accumulate = 1, .mesh = {1, 1, 1, 0}};
	ret = k3_options_parse("k3_plan", "--model NAME [OPTIONS]",
			       "Builds and checks the plan of a training step without running it.\n"
			       "Output: tab-separated, numbers of rank 0 and of one step; memory "
			       "of the rank that needs most.",
			       table, sizeof(table) / sizeof(table[0]), argc, argv, &first);
	if (ret == K3_EINTR)
		return NOTHING_TO_DO;
	if (ret != K3_OK)
		return EXIT_USAGE;
	if (first < argc || !rq->model) {
		k3_error("drivers", "%s%s; --help tells more",
			 first < argc ? "no such argument: " : "--model is missing",
			 first < argc ? argv[first] : "");
		return EXIT_USAGE;
	}
	return rq->mesh_text && k3_mesh_parse(&rq->mesh, rq->mesh_text) != K3_OK ? EXIT_USAGE : 0;
}

/* Next length of a list "A,B,C"; 0 when it is no integer from 1 to 2^31-1. */
static long long
next_length(const char **at)
{
	char *end;
	long long length;

	errno = 0;
	length = strtoll(*at, &end, 10);
	if (end == *at || errno || length < 1 || length > INT32_MAX || (*end && *end != ','))
		return 0;
	*at = *end ? end + 1 : NULL;
	return length;
}

/* Document ids of the stream, malloc'ed. */
static int
make_layout(struct request *rq, int32_t **doc_ids)
{
	long long sum = 0, length;
	int32_t id = 0;

	for (const char *at = rq->documents; at; sum += length) {
		const char *word = at;
		length = next_length(&at);
		if (!length) {
			k3_error("drivers",
				 "--documents: \"%s\": allowed are integers from 1 to %d with "
				 "commas between",
				 word, INT32_MAX);
			return EXIT_USAGE;
		}
	}
	if (!rq->tokens)
		rq->tokens = sum ? sum : 256;
	if (sum > rq->tokens || rq->tokens > INT32_MAX) {
		k3_error("drivers",
			 "--documents: %lld tokens together; allowed are --tokens (%lld), %d at "
			 "most",
			 sum, rq->tokens, INT32_MAX);
		return EXIT_USAGE;
	}
	*doc_ids = calloc((size_t)rq->tokens, sizeof(**doc_ids));
	if (!*doc_ids)
		return EXIT_FAILURE;
	for (long long i = 0; !rq->documents && i < rq->tokens; i++)
		(*doc_ids)[i] = 1;
	sum = 0;
	for (const char *at = rq->documents; at;) {
		id++;
		for (length = next_length(&at); length; length--)
			(*doc_ids)[sum++] = id;
	}
	return 0;
}

static int
export_plan(const char *path, const struct k3_plan *plan,
	    int (*write)(FILE *, const struct k3_plan *))
{
	FILE *out = path ? fopen(path, "w") : NULL;
	int ret = K3_OK;

	if (!path)
		return K3_OK;
	if (out)
		ret = write(out, plan);
	if (!out || (fclose(out) && ret == K3_OK) || ret == K3_EIO) {
		k3_error("drivers", "%s: %s", path, strerror(errno));
		ret = K3_EIO;
	}
	/* half a file is none; a device such as /dev/stdout stays */
	struct stat st;
	if (ret != K3_OK && out && stat(path, &st) == 0 && S_ISREG(st.st_mode))
		unlink(path);
	return ret;
}

struct job {
	const struct request *rq;
	const struct k3_model *model;
	struct k3_layout layout;
	struct k3_order *order;
	struct result *result;
	struct k3_memory memory;
	uint32_t rank;
};

/* Checks a plan, counts it, and lets it go. */
static int
take(struct job *job, struct k3_plan *plan, uint64_t times, bool export)
{
	int ret = K3_OK;

	K3_TRY(k3_plan_check(plan));
	K3_TRY(k3_order_add(job->order, plan, job->rank));
	K3_TRY(k3_memory_add(&job->memory, plan));
	if (job->rank == 0)
		K3_TRY(k3_plan_stats_add(&job->result->stats, plan, times));
	if (job->rank == 0 && export) {
		K3_TRY(export_plan(job->rq->dot, plan, k3_plan_dot));
		K3_TRY(export_plan(job->rq->json, plan, k3_plan_json));
	}
out:
	k3_plan_destroy(plan);
	return ret;
}

/* The plans of a step: the first microbatch, the others, the end. */
static int
plan_step(struct job *job, uint64_t *n_tasks)
{
	struct k3_microbatch what = {.backward = true, .first = true, .count = true};
	struct k3_plan *plan;
	int ret = K3_OK;

	K3_TRY(k3_plan_microbatch(&plan, job->model, &job->layout, &what));
	*n_tasks = plan->n_tasks;
	K3_TRY(take(job, plan, 1, true));
	if (job->rq->accumulate > 1) {
		what.first = false;
		K3_TRY(k3_plan_microbatch(&plan, job->model, &job->layout, &what));
		K3_TRY(take(job, plan, (uint64_t)job->rq->accumulate - 1, false));
	}
	K3_TRY(k3_plan_optimizer(&plan, job->model, 0));
	*n_tasks += plan->n_tasks;
	K3_TRY(take(job, plan, 1, false));
out:
	return ret;
}

static int
plan_rank(struct job *job, const struct k3_config *config, uint64_t *n_tasks)
{
	struct k3_plan_options options;
	struct k3_model *model;
	struct result *res = job->result;
	int ret;

	k3_plan_options_init(&options);
	options.tile_tokens = (uint32_t)job->rq->tile_tokens;
	options.mesh = job->rq->mesh;
	options.mesh.rank = job->rank;
	ret = k3_model_create(&model, config, &options);
	if (ret != K3_OK)
		return ret;
	job->model = model;
	k3_memory_init(&job->memory, model);
	if (job->rank == 0)
		K3_TRY(k3_plan_stats_init(&res->stats, model));
	K3_TRY(plan_step(job, n_tasks));
	res->checked++;
	if (k3_memory_bound(&job->memory) > res->bound_bytes) {
		k3_memory_fini(&res->memory);
		res->memory = job->memory;
		memset(&job->memory, 0, sizeof(job->memory));
		res->bound_bytes = k3_memory_bound(&res->memory);
	}
out:
	k3_memory_fini(&job->memory);
	if (job->rank == 0)
		res->stats.model = model; /* kept for the report */
	else
		k3_model_destroy(model);
	return ret;
}

static int
plan_all(const struct request *rq, const struct k3_config *config, const int32_t *doc_ids,
	 struct result *res)
{
	uint32_t ranks = k3_mesh_ranks(&rq->mesh), cp = rq->mesh.cp;
	struct job job = {.rq = rq, .layout = {(size_t)rq->tokens, doc_ids}, .result = res};
	uint64_t n_tasks = 0;
	bool partial = false;
	int ret = K3_OK;

	for (job.rank = 0; job.rank < ranks; job.rank++) {
		if (partial && job.rank >= cp && job.rank < ranks - cp)
			continue;
		if (job.rank > 0) {
			K3_TRY(plan_rank(&job, config, &n_tasks));
			continue;
		}
		/* the first rank says what all of them would cost */
		job.order = k3_order_create(ranks, false);
		if (!job.order)
			K3_TRY(K3_ENOMEM);
		K3_TRY(plan_rank(&job, config, &n_tasks));
		partial = n_tasks * ranks > MAX_TASKS;
		k3_order_set_partial(job.order, partial);
	}
	K3_TRY(k3_order_check(job.order));
out:
	k3_order_destroy(job.order);
	return ret;
}

int
main(int argc, char **argv)
{
	struct request rq;
	struct k3_config config;
	struct result res = {0};
	int32_t *doc_ids = NULL;
	int ret;

	k3_log_program("k3_plan");
	ret = parse(argc, argv, &rq);
	if (ret)
		return ret == NOTHING_TO_DO ? EXIT_SUCCESS : ret;
	if (k3_config_load(&config, rq.model) != K3_OK ||
	    (rq.layers && k3_config_set_layers(&config, rq.layers) != K3_OK) ||
	    (rq.vocab && k3_config_set_vocab(&config, rq.vocab) != K3_OK) ||
	    k3_config_check(&config) != K3_OK)
		return EXIT_USAGE;
	ret = make_layout(&rq, &doc_ids);
	if (ret)
		return ret;
	ret = plan_all(&rq, &config, doc_ids, &res);
	if (ret == K3_OK) {
		k3_plan_print(stdout, &res.stats, &res.memory);
		printf("ranks\tchecked\t%u\t-\t-\t-\nranks\tall\t%u\t-\t-\t-\n", res.checked,
		       k3_mesh_ranks(&rq.mesh));
		if (rq.memory_gib > 0)
			printf("fits: %s\n",
			       k3_plan_check_memory(&res.memory,
						    (uint64_t)(rq.memory_gib * (1u << 30)),
						    res.stats.model) == K3_OK
				       ? "yes"
				       : "no");
	}
	if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	k3_model_destroy((struct k3_model *)(uintptr_t)res.stats.model);
	k3_plan_stats_fini(&res.stats);
	k3_memory_fini(&res.memory);
	free(doc_ids);
	if (fflush(stdout) || ferror(stdout))
		return EXIT_FAILURE;
	return ret == K3_OK			      ? EXIT_SUCCESS
	       : ret == K3_EINVAL || ret == K3_ESHAPE ? EXIT_USAGE
						      : EXIT_FAILURE;
}
