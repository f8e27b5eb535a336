/* k3_plan: builds and checks the plan of a step without running it; prints its report, exports the
 * graph.  The trap: what was asked may be larger than the planner can hold, so sizes are checked
 * before a table of tokens is made. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/config.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../planner/activations.h"
#include "../planner/mesh.h"
#include "../planner/plan_check.h"
#include "../planner/vision_split.h"
#include "images.h"
#include "plan_tool.h"
#include "session.h"

enum { EXIT_USAGE = 2, NOTHING_TO_DO = -1 };

struct arguments {
	const char *device, *dtype, *optimizer_dtype, *comm, *model, *documents, *mesh_text,
		*activations, *dot, *dot_layers, *json, *vision_table;
	long long layers, vocab, tokens, accumulate;
	struct k3_cut cut;
	struct k3_images images;
	double memory_gib;
	bool tsv, critical_path;
	struct k3_mesh mesh;
	struct k3_machine machine;
	struct k3_plan_options options; /* of every rank */
	struct k3_dot_layers shown;
};

/* 0, EXIT_USAGE or NOTHING_TO_DO. */
static int
parse(int argc, char **argv, struct arguments *a)
{
	struct k3_option table[] = {
		{"model", "NAME", K3_OPT_STRING, &a->model, 0, 0,
		 "preset, config.json or its folder", false},
		{"layers", "N", K3_OPT_INT, &a->layers, 1, K3_MAX_LAYERS, "keep the first N layers",
		 false},
		{"vocab", "V", K3_OPT_INT, &a->vocab, 5, INT32_MAX, "another vocabulary", false},
		{"tokens", "T", K3_OPT_INT, &a->tokens, 1, INT32_MAX,
		 "tokens of a microbatch of one data-parallel rank (the sum of --documents, or "
		 "256, or what --images take)",
		 false},
		{"documents", "A,B,...", K3_OPT_STRING, &a->documents, 0, 0,
		 "their lengths; what is left of T is padding (one document)", false},
		K3_CUT_OPTIONS(&a->cut),
		K3_IMAGES_OPTIONS(&a->images),
		K3_DEVICE_OPTION(&a->device),
		K3_DTYPE_OPTION(&a->dtype),
		K3_OPTIMIZER_DTYPE_OPTION(&a->optimizer_dtype),
		{"accumulate", "M", K3_OPT_INT, &a->accumulate, 1, 1e6,
		 "microbatches of a step (1)", false},
		{"mesh", "KEY=N,...", K3_OPT_STRING, &a->mesh_text, 0, 0,
		 "dp_replicate, dp_shard, cp in any order; missing ones are 1", false},
		K3_COMM_OPTION(&a->comm),
		{"memory", "GIB", K3_OPT_REAL, &a->memory_gib, 1e-9, 1e9,
		 "limit of each memory node: says \"fits: yes\" or \"fits: no\", then with status "
		 "1",
		 false},
		{"activations", "POLICY", K3_OPT_STRING, &a->activations, 0, 0,
		 "keep, recompute, or A-B:keep,C-D:recompute by layers (keep, or what --memory "
		 "needs)",
		 false},
		{"tsv", NULL, K3_OPT_SWITCH, &a->tsv, 0, 0,
		 "the report as a tab-separated table for programs", false},
		{"critical-path", NULL, K3_OPT_SWITCH, &a->critical_path, 0, 0,
		 "lists the tasks of the longest chain", false},
		{"dot", "FILE", K3_OPT_STRING, &a->dot, 0, 0,
		 "writes rank 0's first microbatch as a Graphviz graph", false},
		{"dot-layers", "A-B", K3_OPT_STRING, &a->dot_layers, 0, 0,
		 "of these layers alone, 0-based; edges that leave them end in stubs", false},
		{"json", "FILE", K3_OPT_STRING, &a->json, 0, 0, "writes all plans of rank 0's step",
		 false},
		{"check-vision", "FILE.tsv", K3_OPT_STRING, &a->vision_table, 0, 0,
		 "compares the split of images among cp ranks with a table of plans, and ends",
		 false},
	};
	enum k3_transport comm;
	int first, ret, bad = 0;

	*a = (struct arguments){.device = "cpu",
				.dtype = "fp32",
				.comm = "none",
				.optimizer_dtype = "fp32",
				.accumulate = 1,
				.cut.tile_tokens = K3_TILE_AUTO,
				.mesh = {1, 1, 1, 0, false}};
	ret = k3_options_parse("k3_plan", "--model NAME [OPTIONS] | --check-vision FILE.tsv",
			       "Builds and checks the plan of a training step without running it.\n"
			       "Counts are those of rank 0 and of one step; memory is that of the "
			       "rank that needs most.",
			       table, sizeof(table) / sizeof(table[0]), argc, argv, &first);
	if (ret == K3_EINTR)
		return NOTHING_TO_DO;
	if (ret != K3_OK)
		return EXIT_USAGE;
	if (first < argc || (!a->model && !a->vision_table)) {
		k3_error("drivers", "%s%s; --help tells more",
			 first < argc ? "no such argument: " : "--model is missing",
			 first < argc ? argv[first] : "");
		return EXIT_USAGE;
	}
	if (a->dot_layers && !a->dot) {
		k3_error("drivers", "--dot-layers %s: needs --dot FILE", a->dot_layers);
		return EXIT_USAGE;
	}
	k3_plan_options_init(&a->options);
	bad += a->mesh_text && k3_mesh_parse(&a->mesh, a->mesh_text) != K3_OK;
	bad += k3_transport_parse(&comm, a->comm) != K3_OK;
	bad += k3_device_parse(&a->cut.device, a->device) != K3_OK;
	bad += k3_session_dtype(&a->options.dtype, "dtype", a->dtype) != K3_OK;
	bad += k3_session_dtype(&a->options.optimizer_dtype, "optimizer-dtype",
				a->optimizer_dtype) != K3_OK;
	if (bad)
		return EXIT_USAGE;
	a->mesh.forced = comm != K3_TRANSPORT_NONE;
	return 0;
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

/* Sum of --documents, and with it --tokens when that was not given. */
static int
count_tokens(struct arguments *a)
{
	long long sum = 0, length;

	for (const char *at = a->documents; at; sum += length) {
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
	if (!a->tokens)
		a->tokens = sum ? sum : a->images.tokens > 256 ? a->images.tokens : 256;
	if (sum > a->tokens || a->tokens > INT32_MAX) {
		k3_error("drivers",
			 "--documents: %lld tokens together; allowed are --tokens (%lld), %d at "
			 "most",
			 sum, a->tokens, INT32_MAX);
		return EXIT_USAGE;
	}
	return 0;
}

/* "A-B" or "A": layers of the model. */
static int
read_dot_layers(struct arguments *a, const struct k3_config *config)
{
	const char *text = a->dot_layers;
	long first, last;
	char *end;

	if (!text)
		return 0;
	errno = 0;
	first = last = strtol(text, &end, 10);
	if (*text >= '0' && *text <= '9' && *end == '-' && end[1] >= '0' && end[1] <= '9')
		last = strtol(end + 1, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || first > last ||
	    last >= (long)config->layers) {
		k3_error("drivers", "--dot-layers %s: allowed is A-B with 0 <= A <= B <= %u", text,
			 config->layers - 1);
		return EXIT_USAGE;
	}
	a->shown = (struct k3_dot_layers){(int)first, (int)last};
	return 0;
}

/* Document ids of the stream, malloc'ed; NULL when memory is out. */
static int32_t *
make_layout(const struct arguments *a)
{
	int32_t *doc_ids = calloc((size_t)a->tokens, sizeof(*doc_ids)), id = 0;
	size_t at_token = 0;

	for (long long i = 0; doc_ids && !a->documents && i < a->tokens; i++)
		doc_ids[i] = 1;
	for (const char *at = a->documents; doc_ids && at;) {
		id++;
		for (long long length = next_length(&at); length; length--)
			doc_ids[at_token++] = id;
	}
	return doc_ids;
}

/* Refuses sizes that no plan can have, for the smallest plans of the mesh: those of rank 0. */
static int
check_size(const struct arguments *a, const struct k3_config *config)
{
	struct k3_model *model;
	int ret = k3_model_create(&model, config, &a->options);

	if (ret == K3_OK)
		ret = k3_plan_check_tokens(model, (size_t)a->tokens, true);
	k3_model_destroy(model);
	/* told beside what else is wrong */
	if (config->vision.present && a->images.n > 0) {
		int fit = k3_images_check(&a->images, config, &a->options, (size_t)a->tokens);
		ret = ret == K3_OK ? fit : ret;
	}
	return ret;
}

static uint64_t
limit_bytes(const struct arguments *a)
{
	return (uint64_t)(a->memory_gib * (1u << 30));
}

/* What was asked for, or what the limit needs on the cp rank with the most keys.  *refused: no
 * policy fits, which was logged; then all layers recompute. */
static int
choose_activations(struct arguments *a, const struct k3_config *config, bool *refused)
{
	struct k3_run_shape shape = {.tokens = (size_t)a->tokens,
				     .accumulate = (uint32_t)a->accumulate,
				     .max_patches = a->options.max_patches};
	int ret;

	if (a->activations)
		return k3_activations_parse(a->options.activations, config->layers, a->activations);
	if (!limit_bytes(a))
		return K3_OK;
	a->options.mesh.rank = a->mesh.cp - 1;
	ret = k3_activations_choose(&a->options, config, &shape, limit_bytes(a));
	if (ret == K3_ELIMIT) {
		*refused = true;
		memset(a->options.activations, K3_RECOMPUTE, sizeof(a->options.activations));
		ret = K3_OK;
	}
	a->options.mesh.rank = 0;
	return ret;
}

/* Prints the report; K3_ELIMIT when the step does not fit. */
static int
report(const struct arguments *a, const struct k3_plan_result *res, bool refused)
{
	struct k3_plan_report r = {
		.stats = &res->stats,
		.memory = &res->memory,
		.ranks_checked = res->ranks_checked,
		.limit_bytes = limit_bytes(a),
		.critical_path = a->critical_path,
	};
	int ret = a->tsv ? k3_plan_tsv(stdout, &r) : k3_plan_print(stdout, &r);

	if (fflush(stdout) || ret != K3_OK) {
		k3_error("drivers", "stdout: %s", strerror(errno));
		return K3_EIO;
	}
	if (refused || !r.limit_bytes)
		return refused ? K3_ELIMIT : K3_OK;
	return k3_plan_check_memory(&res->memory.memory, r.limit_bytes, res->model);
}

/* Exit status of the program. */
static int
run(struct arguments *a, const struct k3_config *config)
{
	struct k3_plan_result res = {0};
	struct k3_plan_request rq;
	int32_t *doc_ids = NULL;
	bool refused = false;
	int ret, status = EXIT_FAILURE;

	a->options.offers = K3_OFFER_MODEL | K3_OFFER_TYPES | K3_OFFER_TOKENS | K3_OFFER_MESH;
	a->options.mesh = a->mesh;
	k3_images_apply(&a->images, &a->options);
	ret = k3_session_cut(&a->options, &a->machine, &a->cut, config, (size_t)a->tokens);
	if (ret != K3_OK)
		return EXIT_USAGE;
	ret = check_size(a, config);
	if (ret == K3_OK)
		ret = choose_activations(a, config, &refused);
	if (ret == K3_OK) {
		doc_ids = make_layout(a);
		rq = (struct k3_plan_request){
			.options = &a->options,
			.n_tokens = (size_t)a->tokens,
			.doc_ids = doc_ids,
			.images = &a->images,
			.accumulate = (uint64_t)a->accumulate,
			.dot = a->dot,
			.json = a->json,
			.dot_layers = a->dot_layers ? &a->shown : NULL,
		};
		ret = doc_ids ? k3_plan_all(&rq, config, &res) : K3_ENOMEM;
	}
	if (ret == K3_OK)
		status = report(a, &res, refused) == K3_OK ? EXIT_SUCCESS : EXIT_FAILURE;
	else if (ret == K3_EINVAL || ret == K3_ESHAPE || ret == K3_ELIMIT)
		status = EXIT_USAGE;
	else if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	k3_plan_result_fini(&res);
	free(doc_ids);
	return status;
}

/* Ends with "N passed, N failed". */
static int
check_vision(const char *path)
{
	size_t passed, failed;
	int ret = k3_vision_table_check(path, &passed, &failed);

	if (ret != K3_OK)
		return ret == K3_ENOMEM ? EXIT_FAILURE : EXIT_USAGE;
	printf("%zu passed, %zu failed\n", passed, failed);
	if (fflush(stdout) || ferror(stdout))
		return EXIT_FAILURE;
	return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int
main(int argc, char **argv)
{
	struct arguments a;
	struct k3_config config;
	int ret, status = EXIT_USAGE;

	k3_log_program("k3_plan");
	ret = parse(argc, argv, &a);
	if (ret)
		return ret == NOTHING_TO_DO ? EXIT_SUCCESS : ret;
	if (a.vision_table)
		return check_vision(a.vision_table);
	if (k3_config_load(&config, a.model) == K3_OK &&
	    (!a.layers || k3_config_set_layers(&config, a.layers) == K3_OK) &&
	    (!a.vocab || k3_config_set_vocab(&config, a.vocab) == K3_OK) &&
	    k3_config_check(&config) == K3_OK && k3_images_read(&a.images, &config) == K3_OK &&
	    count_tokens(&a) == 0 && read_dot_layers(&a, &config) == 0)
		status = run(&a, &config);
	k3_images_fini(&a.images);
	return status;
}
