/* k3_bench step: whole training steps on random ids, one row per scheduler and number of workers.
 * The trap: figures of two rows were taken at different times, so what compares them (the speed-up)
 * is told beside the machine's own, measured in the same minutes. */
#include <starpu.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../planner/activations.h"
#include "../tasks/scheduler.h"
#include "bench.h"
#include "bench_step.h"
#include "session.h"

enum { MOST_DOCS = 4096, MOST_SCHEDULERS = 64 };

struct step_options {
	const char *model, *documents, *scheduler, *activations, *trace, *dtype, *device;
	long long layers, vocab, tokens, accumulate, workers, window, steps, rounds, warmup, seed;
	struct k3_cut cut;
	struct k3_images images;
	double memory_gib, limit_s;
	bool compare_workers, fingerprint, check;
};

struct row {
	struct k3i_step_result result;
	double speedup, machine_speedup; /* over one worker; 0: not asked for */
	const char *same;		 /* fingerprint as in the first row */
	char reason[480];
};

/* Columns that are numbers; a new one is a line here. */
static const struct {
	const char *name;
	size_t offset;
} columns[] = {
#define K3I_COLUMN(name, field)                                                                    \
	{                                                                                          \
		name, offsetof(struct row, field)                                                  \
	}
	K3I_COLUMN("median_ms", result.median_ms),
	K3I_COLUMN("min_ms", result.least_ms),
	K3I_COLUMN("max_ms", result.most_ms),
	K3I_COLUMN("tokens_per_s", result.tokens_per_s),
	K3I_COLUMN("model_gflop", result.model_gflop),
	K3I_COLUMN("plan_gflop", result.plan_gflop),
	K3I_COLUMN("gflop_per_s", result.gflop_per_s),
	K3I_COLUMN("sgemm_gflop_per_s", result.sgemm_gflop_per_s),
	K3I_COLUMN("gpu_gflop_per_s", result.gpu_gflop_per_s),
	K3I_COLUMN("ratio", result.ratio),
	K3I_COLUMN("cpu_ratio", result.cpu_ratio),
	K3I_COLUMN("kernel_share", result.kernel_share),
	K3I_COLUMN("tasks", result.tasks),
	K3I_COLUMN("mean_task_ms", result.mean_task_ms),
	K3I_COLUMN("gpus", result.cuda_workers),
	K3I_COLUMN("gpu_busy", result.gpu_busy),
	K3I_COLUMN("runtime_share", result.runtime_share),
	K3I_COLUMN("gpu_gib", result.gpu_gib),
	K3I_COLUMN("submit_us_per_task", result.submit_us),
	K3I_COLUMN("plan_s", result.plan_s),
	K3I_COLUMN("plan_share", result.plan_share),
	K3I_COLUMN("speedup", speedup),
	K3I_COLUMN("machine_speedup", machine_speedup),
	K3I_COLUMN("first_loss_nats", result.loss),
	K3I_COLUMN("expected_loss_nats", result.expected_loss),
#undef K3I_COLUMN
};
enum { N_COLUMNS = sizeof(columns) / sizeof(columns[0]) };

static void
print_header(void)
{
	printf("model\tlayers\tvocab\ttokens\taccumulate\ttile\tdtype\tdevice\tactivations\tschedul"
	       "er\t"
	       "workers\tstarpu\tblas");
	for (size_t i = 0; i < N_COLUMNS; i++)
		printf("\t%s", columns[i].name);
	printf("\tsecond_loss_nats\tfingerprint\tsame\tstatus\n");
}

static void
print_row(const struct step_options *o, const struct k3i_step_case *what, const struct row *r)
{
	const struct k3i_step_result *x = &r->result;
	char tile[24] = "all";

	if (o->cut.tile_tokens)
		snprintf(tile, sizeof(tile), "%lld", o->cut.tile_tokens);
	char *activations = k3_activations_text(what->plan.activations, what->config.layers);
	printf("%s\t%u\t%u\t%lld\t%zu\t%s\t%s\t%s\t%s\t%s\t%.9g\t%s\t%s", what->config.name,
	       what->config.layers, what->config.vocab, o->tokens, what->accumulate, tile, o->dtype,
	       o->device, activations ? activations : "?",
	       x->scheduler[0]	 ? x->scheduler
	       : what->scheduler ? what->scheduler
				 : "-",
	       x->finished ? x->workers : what->workers, x->starpu[0] ? x->starpu : "-",
	       x->blas[0] ? x->blas : "-");
	free(activations);
	for (size_t i = 0; i < N_COLUMNS; i++) {
		double value = *(const double *)((const char *)r + columns[i].offset);
		if (x->finished && value != 0)
			printf("\t%.9g", value);
		else
			printf("\t-");
	}
	if (x->finished)
		printf("\t%.17g", x->second_loss);
	else
		printf("\t-");
	if (o->fingerprint && x->finished)
		printf("\t%016llx\t%s", (unsigned long long)x->fingerprint, r->same);
	else
		printf("\t-\t-");
	printf("\t%s\n", r->reason);
	fflush(stdout);
}

/* "512,100,36": lengths of the documents; without it one of --tokens. */
static int
parse_documents(struct step_options *o, struct k3i_step_case *what)
{
	const char *at = o->documents;
	long long sum = 0;
	char *end;

	what->doc_tokens = calloc(MOST_DOCS, sizeof(*what->doc_tokens));
	if (!what->doc_tokens)
		return K3_ENOMEM;
	while (at && *at) {
		long long n = strtoll(at, &end, 10);
		if (end == at || (*end && *end != ',') || n < 2 || n > 10000000 ||
		    what->n_docs == MOST_DOCS) {
			k3_error(
				"drivers",
				"--documents %s: must be up to %d lengths from 2 to 10000000, with "
				"commas",
				o->documents, MOST_DOCS);
			return K3_EINVAL;
		}
		what->doc_tokens[what->n_docs++] = (size_t)n;
		sum += n;
		at = *end ? end + 1 : end;
	}
	if (what->n_docs == 0) {
		what->doc_tokens[what->n_docs++] = (size_t)o->tokens;
		sum = o->tokens;
	}
	o->tokens = sum;
	return K3_OK;
}

/* As k3_train does: what was asked for, or what the limit of memory needs. */
static int
choose_activations(const struct step_options *o, struct k3i_step_case *what)
{
	struct k3_run_shape shape = {.tokens = (size_t)o->tokens,
				     .accumulate = (uint32_t)o->accumulate,
				     .max_patches = what->plan.max_patches};

	if (o->activations)
		return k3_activations_parse(what->plan.activations, what->config.layers,
					    o->activations);
	if (what->limit_bytes)
		return k3_activations_choose(&what->plan, &what->config, &shape, what->limit_bytes);
	return k3_session_squeeze(&what->plan, &what->config, &shape);
}

static int
make_case(struct step_options *o, struct k3i_step_case *what)
{
	struct k3_config *c = &what->config;
	int ret;

	K3_TRY(k3_config_load(c, o->model));
	if (o->layers)
		K3_TRY(k3_config_set_layers(c, o->layers));
	if (o->vocab)
		K3_TRY(k3_config_set_vocab(c, o->vocab));
	K3_TRY(k3_images_read(&o->images, c));
	c->vision.present = o->images.text != NULL;
	K3_TRY(k3_config_check(c));
	K3_TRY(parse_documents(o, what));
	k3_plan_options_init(&what->plan);
	what->plan.offers = K3_OFFER_MODEL | K3_OFFER_TOKENS;
	k3_images_apply(&o->images, &what->plan);
	K3_TRY(k3_session_dtype(&what->plan.dtype, "dtype", o->dtype));
	K3_TRY(k3_device_parse(&what->device, o->device));
	o->cut.device = what->device;
	K3_TRY(k3_images_check(&o->images, c, &what->plan, (size_t)o->tokens));
	K3_TRY(k3_images_fill(&o->images, c, (uint64_t)o->seed));
	what->images = o->images;
	K3_TRY(k3_session_cut(&what->plan, &what->machine, &o->cut, c, (size_t)o->tokens));
	what->plan.fingerprint = o->fingerprint;
	what->limit_bytes = (uint64_t)(o->memory_gib * (1u << 30));
	K3_TRY(choose_activations(o, what));
	what->trace_dir = o->trace;
	what->check_only = o->check;
	what->accumulate = (size_t)o->accumulate;
	what->seed = (uint64_t)o->seed;
	what->steps = (uint64_t)o->steps;
	what->rounds = (uint64_t)o->rounds;
	what->warmup = (uint64_t)o->warmup;
	what->window = (uint32_t)o->window;
out:
	return ret;
}

/* Names for "all" or a list with commas; text is changed. NULL stands for the environment's. */
static int
parse_schedulers(char *text, const char **name, size_t *n)
{
	struct starpu_sched_policy **p = starpu_sched_get_predefined_policies();

	*n = 0;
	if (!text)
		name[(*n)++] = NULL;
	else if (strcmp(text, "all") == 0)
		for (; *p && *n < MOST_SCHEDULERS; p++)
			name[(*n)++] = (*p)->policy_name;
	else
		for (char *word; (word = strsep(&text, ","));) {
			/* a library may hold any */
			if (*n == MOST_SCHEDULERS || !((*word && getenv("STARPU_SCHED_LIB")) ||
						       k3_scheduler_is_known(word))) {
				char known[2048];
				k3_error("drivers",
					 "--scheduler \"%s\": must be up to %d of: all %s", word,
					 MOST_SCHEDULERS, k3_scheduler_names(known, sizeof(known)));
				return K3_EINVAL;
			}
			name[(*n)++] = word;
		}
	return K3_OK;
}

/* Workers 2 and 1 in turn, or what was asked for. */
static size_t
worker_counts(const struct step_options *o, uint32_t *count)
{
	count[0] = (uint32_t)(o->workers || !o->compare_workers ? o->workers : 2);
	count[1] = 1;
	return o->compare_workers ? 2 : 1;
}

/* @return the worst status of the rows */
static int
run_rows(const struct step_options *o, struct k3i_step_case *what, const char *const *scheduler,
	 size_t n)
{
	uint64_t first_print = 0;
	bool have_print = false;
	uint32_t count[2];
	size_t n_counts = worker_counts(o, count);
	int worst = K3_OK;

	print_header();
	for (size_t s = 0; s < n; s++) {
		struct row row[2] = {{.same = "yes"}, {.same = "yes"}};
		for (size_t w = 0; w < n_counts; w++) {
			struct row *r = &row[w];
			what->scheduler = scheduler[s];
			what->workers = count[w];
			int ret = k3i_step_child(what, o->limit_s, &r->result, r->reason,
						 sizeof(r->reason));
			if (r->result.finished && !have_print)
				first_print = r->result.fingerprint;
			have_print |= r->result.finished;
			if (r->result.finished && r->result.fingerprint != first_print) {
				r->same = "no";
				ret = K3_EDIFFER;
			}
			/* a scheduler of all of them that can't run us is a result, other bits are
			 * not */
			if (ret != K3_OK && (ret == K3_EDIFFER || !o->scheduler ||
					     strcmp(o->scheduler, "all") != 0))
				worst = ret;
		}
		if (n_counts == 2 && row[0].result.finished && row[1].result.finished) {
			row[0].speedup = row[1].result.median_ms / row[0].result.median_ms;
			row[0].machine_speedup =
				row[0].result.sgemm_gflop_per_s / row[1].result.sgemm_gflop_per_s;
		}
		for (size_t w = 0; w < n_counts; w++)
			print_row(o, what, &row[w]);
	}
	return worst == K3_OK && !have_print ? K3_ENODEV : worst;
}

static int
parse(struct step_options *o, int argc, char **argv)
{
	struct k3_option table[] = {
		{"model", "PRESET|DIR|FILE", K3_OPT_STRING, &o->model, 0, 0,
		 "preset, config.json or its folder", false},
		{"layers", "N", K3_OPT_INT, &o->layers, 1, 256, "keeps the first N layers", false},
		{"vocab", "V", K3_OPT_INT, &o->vocab, 5, 2147483647, "another vocabulary size",
		 false},
		{"tokens", "T", K3_OPT_INT, &o->tokens, 2, 1e7,
		 "tokens of a microbatch, one document (1024)", false},
		{"documents", "A,B,...", K3_OPT_STRING, &o->documents, 0, 0,
		 "lengths of a microbatch's documents, instead of --tokens", false},
		{"accumulate", "M", K3_OPT_INT, &o->accumulate, 1, 1e6,
		 "microbatches of a step (1)", false},
		{"activations", "POLICY", K3_OPT_STRING, &o->activations, 0, 0,
		 "keep, recompute, or A-B:keep,C-D:recompute by layers (keep, or what --memory or "
		 "the GPU needs)",
		 false},
		{"memory", "GIB", K3_OPT_REAL, &o->memory_gib, 1e-6, 1e9,
		 "limit of a memory node: recomputes as many layers as that needs", false},
		K3_CUT_OPTIONS(&o->cut),
		K3_IMAGES_OPTIONS(&o->images),
		{"workers", "N", K3_OPT_INT, &o->workers, 1, 4096,
		 "CPU workers (STARPU_NCPU, or all cores)", false},
		{"compare-workers", NULL, K3_OPT_SWITCH, &o->compare_workers, 0, 0,
		 "a second row with one worker, and the speed-up (first row: --workers, or 2)",
		 false},
		{"scheduler", "NAME,...|all", K3_OPT_STRING, &o->scheduler, 0, 0,
		 "a row for each (STARPU_SCHED, or StarPU's choice)", false},
		{"window", "N", K3_OPT_INT, &o->window, 0, 1e9,
		 "most tasks in flight; 0: unlimited (0)", false},
		{"steps", "N", K3_OPT_INT, &o->steps, 1, 1e6, "steps of a round (2)", false},
		{"rounds", "N", K3_OPT_INT, &o->rounds, 1, 1000,
		 "measured rounds; the median is told (5)", false},
		{"warmup", "STEPS", K3_OPT_INT, &o->warmup, 0, 1e6,
		 "steps before the first round, after the two of the check (1)", false},
		{"seed", "N", K3_OPT_INT, &o->seed, 0, 9e15, "of initial values and ids (0)",
		 false},
		{"fingerprint", NULL, K3_OPT_SWITCH, &o->fingerprint, 0, 0,
		 "compares bits of loss, gradients and parameters, twice and between rows", false},
		{"trace", "DIR", K3_OPT_STRING, &o->trace, 0, 0,
		 "records all tasks of a single row, as k3_train does", false},
		K3_DEVICE_OPTION(&o->device),
		K3_DTYPE_OPTION(&o->dtype),
		{"check", NULL, K3_OPT_SWITCH, &o->check, 0, 0, "checks and times nothing", false},
		{"limit", "SECONDS", K3_OPT_REAL, &o->limit_s, 1, 1e6,
		 "time after which a row is given up (600)", false},
	};
	int first, ret;

	K3_TRY(k3_options_parse(
		"k3_bench step", "--model MODEL [OPTIONS]",
		"Times whole training steps on random ids. stdout: a header and a row per "
		"configuration, tab-separated.\n"
		"ratio = (model_gflop / step time) / sgemm of 1024^3 on as many threads, both "
		"measured in the same round; cpu_ratio: the same by processor time, which other "
		"programs disturb less;\n"
		"model_gflop = 6 x active matrix elements x tokens + products of attention and "
		"KDA, "
		"forward and backward, with those of the tower when there are --images,\n"
		"without what is computed again; plan_gflop = estimates of all tasks of the plan.",
		table, sizeof(table) / sizeof(table[0]), argc, argv, &first));
	if (first < argc) {
		k3_error("drivers", "%s: k3_bench step takes options only", argv[first]);
		K3_TRY(K3_EINVAL);
	}
	if (!o->model) {
		k3_error("drivers", "--model is missing (--help tells more)");
		K3_TRY(K3_EINVAL);
	}
	if (o->documents && k3_option_given(table, sizeof(table) / sizeof(table[0]), "tokens")) {
		k3_error("drivers", "--documents %s: in place of --tokens %lld, not beside it",
			 o->documents, o->tokens);
		ret = K3_EINVAL;
	}
	if (o->compare_workers && o->workers == 1) {
		k3_error("drivers",
			 "--compare-workers: compares with one worker; --workers 1 is the "
			 "same");
		ret = K3_EINVAL;
	}
	if (o->trace &&
	    (o->compare_workers ||
	     (o->scheduler && (strchr(o->scheduler, ',') || strcmp(o->scheduler, "all") == 0)))) {
		k3_error("drivers", "--trace %s: takes one scheduler and no --compare-workers",
			 o->trace);
		ret = K3_EINVAL;
	}
out:
	return ret;
}

int
k3_bench_step(int argc, char **argv)
{
	struct step_options o = {.tokens = 1024,
				 .dtype = "fp32",
				 .device = "cpu",
				 .accumulate = 1,
				 .cut.tile_tokens = K3_TILE_AUTO,
				 .steps = 2,
				 .rounds = 5,
				 .warmup = 1,
				 .limit_s = 600};
	struct k3i_step_case what = {0};
	const char *scheduler[MOST_SCHEDULERS];
	char *list = NULL;
	int status = 2, ret;
	size_t n;

	ret = parse(&o, argc, argv);
	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
	list = o.scheduler ? strdup(o.scheduler) : NULL;
	if (o.scheduler && strcmp(o.scheduler, "all") == 0)
		o.fingerprint = true;
	K3_TRY(parse_schedulers(list, scheduler, &n));
	K3_TRY(make_case(&o, &what));
	ret = run_rows(&o, &what, scheduler, n);
	status = ret == K3_OK ? 0 : ret == K3_EINVAL ? 2 : 1;
out:
	free(list);
	free(what.doc_tokens);
	k3_images_fini(&o.images);
	return status;
}
