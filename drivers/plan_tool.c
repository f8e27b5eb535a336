/* Plans of all ranks, one at a time.
 *
 * Only the communication tasks of a rank are kept, for the proof of order.  On a mesh where that
 * would be more than MAX_TASKS tasks the proof covers the cp ranks of the first and of the last
 * data-parallel rank: ranks with the same place in their cp group differ in the names of their
 * groups and the rows of their shards alone. */
#include "plan_tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../planner/mesh.h"
#include "../planner/plan_check.h"
#include "../tasks/device.h"

enum { MAX_TASKS = 4000000 };

struct job {
	const struct k3_plan_request *rq;
	const struct k3_config *config;
	const struct k3_model *model;
	struct k3_layout layout;
	struct k3_order *order;
	struct k3_plan_result *result;
	struct k3_memory_use memory; /* of the rank at work */
	FILE *json;		     /* open while rank 0 is at work */
	size_t n_written;	     /* plans in it */
	uint32_t rank;
};

/* Closes a file that was written with status ret.  Half a file is none; a device such as
 * /dev/stdout stays. */
static int
close_file(FILE *out, const char *path, int ret)
{
	struct stat st;

	if ((!out || fclose(out) != 0) && ret == K3_OK)
		ret = K3_EIO;
	if (ret == K3_EIO)
		k3_error("drivers", "%s: %s", path, strerror(errno));
	if (ret != K3_OK && out && stat(path, &st) == 0 && S_ISREG(st.st_mode))
		unlink(path);
	return ret;
}

static int
write_dot(const struct k3_plan_request *rq, const struct k3_plan *plan)
{
	FILE *out = fopen(rq->dot, "w");
	int ret = out ? k3_plan_dot(out, plan, rq->dot_layers) : K3_EIO;

	return close_file(out, rq->dot, ret);
}

/* The file holds {"plans": [...]}: the different plans of a step, in order. */
static int
write_json(struct job *job, const struct k3_plan *plan, uint64_t times)
{
	if (!job->json)
		return K3_OK;
	fprintf(job->json, "%s{\"times\": %llu, \"plan\": ", job->n_written++ ? ",\n" : "",
		(unsigned long long)times);
	int ret = k3_plan_json(job->json, plan);
	fprintf(job->json, "}");
	return ret;
}

/* Checks a plan, counts it, and lets it go. */
static int
take(struct job *job, struct k3_plan *plan, uint64_t times, bool picture)
{
	int ret = K3_OK;

	K3_TRY(k3_plan_check(plan));
	K3_TRY(k3_order_add(job->order, plan, job->rank));
	K3_TRY(k3_memory_use_add(&job->memory, plan));
	if (job->model->options.for_gpus)
		k3_memory_add_scratch(&job->memory.memory, k3_device_scratch_bytes(plan));
	if (job->rank > 0)
		goto out;
	K3_TRY(k3_plan_stats_add(&job->result->stats, plan, times));
	if (picture && job->rq->dot)
		K3_TRY(write_dot(job->rq, plan));
	K3_TRY(write_json(job, plan, times));
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
		K3_TRY(take(job, plan, job->rq->accumulate - 1, false));
	}
	K3_TRY(k3_plan_optimizer(&plan, job->model, 0));
	*n_tasks += plan->n_tasks;
	K3_TRY(take(job, plan, 1, false));
out:
	return ret;
}

/* Plans rank 0 with what only it does: counts and files. */
static int
plan_first(struct job *job, uint64_t *n_tasks)
{
	const char *path = job->rq->json;
	int ret;

	K3_TRY(k3_plan_stats_init(&job->result->stats, job->model));
	if (path) {
		job->json = fopen(path, "w");
		if (job->json)
			fprintf(job->json, "{\"plans\": [\n");
		else
			K3_TRY(close_file(NULL, path, K3_EIO));
	}
	ret = plan_step(job, n_tasks);
	if (job->json) {
		fprintf(job->json, "\n]}\n");
		ret = close_file(job->json, path, ret);
		job->json = NULL;
	}
out:
	return ret;
}

static int
plan_rank(struct job *job, uint64_t *n_tasks)
{
	struct k3_plan_options options = *job->rq->options;
	struct k3_plan_result *res = job->result;
	struct k3_model *model;
	int ret;

	options.mesh.rank = job->rank;
	ret = k3_model_create(&model, job->config, &options);
	if (ret != K3_OK)
		return ret;
	job->model = model;
	if (job->rank == 0)
		res->model = model; /* kept for the report */
	k3_memory_use_init(&job->memory, model);
	K3_TRY(job->rank == 0 ? plan_first(job, n_tasks) : plan_step(job, n_tasks));
	res->ranks_checked++;
	if (k3_memory_bound(&job->memory.memory) > k3_memory_bound(&res->memory.memory)) {
		struct k3_memory_use least = res->memory;
		res->memory = job->memory;
		job->memory = least;
	}
out:
	k3_memory_use_fini(&job->memory);
	if (job->rank > 0)
		k3_model_destroy(model);
	return ret;
}

int
k3_plan_all(const struct k3_plan_request *request, const struct k3_config *config,
	    struct k3_plan_result *result)
{
	uint32_t ranks = k3_mesh_ranks(&request->options->mesh), cp = request->options->mesh.cp;
	struct job job = {.rq = request,
			  .config = config,
			  .layout = {.n_tokens = request->n_tokens, .doc_ids = request->doc_ids},
			  .result = result};
	uint64_t n_tasks = 0;
	bool partial = false;
	int ret = K3_OK;

	memset(result, 0, sizeof(*result));
	if (request->images)
		k3_images_place(request->images, &job.layout);
	job.order = k3_order_create(ranks, false);
	if (!job.order)
		return K3_ENOMEM;
	for (job.rank = 0; job.rank < ranks; job.rank++) {
		if (partial && job.rank >= cp && job.rank < ranks - cp)
			continue;
		K3_TRY(plan_rank(&job, &n_tasks));
		if (job.rank > 0)
			continue;
		/* the first rank says what all of them would cost */
		partial = n_tasks * ranks > MAX_TASKS;
		k3_order_set_partial(job.order, partial);
	}
	K3_TRY(k3_order_check(job.order));
out:
	k3_order_destroy(job.order);
	return ret;
}

void
k3_plan_result_fini(struct k3_plan_result *result)
{
	k3_plan_stats_fini(&result->stats);
	k3_memory_use_fini(&result->memory);
	k3_model_destroy(result->model);
	memset(result, 0, sizeof(*result));
}
