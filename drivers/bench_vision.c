/* k3_bench vision: the vision tower forward and backward on random pixels, beside one-thread
 * sgemm of 512^3.  The text layers are left out (struct k3_microbatch), so that nothing else
 * fills idle workers. Ratios are made per round, and the median over the rounds is told. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/rng.h"
#include "../common/status.h"
#include "../planner/model_flops.h"
#include "../planner/plan_check.h"
#include "bench.h"
#include "bench_vision.h"
#include "median.h"

enum { VOCABULARY = 64 };

/* Random ids and pixels; the images are the whole of one document. */
static int
make_batch(struct k3i_vision_bench *b)
{
	uint64_t key = k3_rng_key("bench vision", (uint64_t)b->seed);
	size_t t = b->images.tokens;

	b->rows = malloc(3 * t * sizeof(*b->rows));
	if (!b->rows)
		return K3_ENOMEM;
	for (size_t i = 0; i < t; i++) {
		b->rows[i] = (int32_t)(k3_rng_bits(key, i) % b->config.vocab);
		b->rows[t + i] = K3_LABEL_IGNORED;
		b->rows[2 * t + i] = 1;
	}
	b->batch = (struct k3_host_batch){
		.ids = b->rows, .labels = b->rows + t, .item_pixels = b->images.pixels_of};
	b->layout = (struct k3_layout){.n_tokens = t, .doc_ids = b->rows + 2 * t};
	k3_images_place(&b->images, &b->layout);
	return K3_OK;
}

static int
open_all(struct k3i_vision_bench *b)
{
	struct k3_microbatch what = {.backward = true, .first = true, .tower = true};
	struct k3_model_flops flops;
	int ret;

	k3_plan_options_init(&b->options);
	k3_images_apply(&b->images, &b->options);
	b->options.machine = &b->machine;
	K3_TRY(k3_images_check(&b->images, &b->config, &b->options, b->images.tokens));
	K3_TRY(k3_images_fill(&b->images, &b->config, (uint64_t)b->seed));
	K3_TRY(make_batch(b));
	K3_TRY(k3_session_open(&b->session, &b->config, &b->options,
			       &(struct k3_runtime_options){.workers = (uint32_t)b->workers}));
	K3_TRY(k3_session_init(&b->session, (uint64_t)b->seed));
	K3_TRY(k3_plan_microbatch(&b->plan, b->session.model, &b->layout, &what));
	K3_TRY(k3_plan_check(b->plan));
	k3_model_flops(&flops, b->session.model, &b->layout);
	b->gflop = 1e-9 * flops.vision;
out:
	return ret;
}

static void
close_all(struct k3i_vision_bench *b)
{
	if (b->session.runtime)
		k3_runtime_drain(b->session.runtime);
	k3_plan_destroy(b->plan);
	k3_session_close(&b->session);
	k3_images_fini(&b->images);
	free(b->rows);
}

/* Median of one figure over the rounds, which lies `field` bytes into each. */
static double
median(const struct k3i_vision_round *round, size_t n, size_t field)
{
	double x[K3I_VISION_ROUNDS];

	for (size_t i = 0; i < n; i++)
		memcpy(&x[i], (const char *)&round[i] + field, sizeof(*x));
	return k3i_median(x, n);
}

static void
print(const struct k3i_vision_bench *b, const struct k3i_vision_round *round,
      const struct k3_usage *usage)
{
	const struct k3_runtime *runtime = b->session.runtime;
	size_t n = (size_t)b->rounds, patches = 0, tiles = 0;

	for (size_t i = 0; i < b->images.n; i++)
		patches += k3_grid_patches(&b->images.grid[i]);
	for (size_t i = 0; i < b->plan->n_tasks; i++)
		tiles += b->plan->task[i].op == K3_OP_VIT_LOAD;
	printf("model\timages\tpatches\ttiles\tscheduler\tworkers\tstarpu\tblas\tgflop\tplan_"
	       "gflop\t"
	       "median_ms\tsgemm512_gflop_per_s\tratio\ttask_ratio\tcpu_ratio\tidle_share\t"
	       "kernel_ratio\testimate_ms\testimate_idle\ttasks\tmean_task_ms\n");
	printf("%s\t%s\t%zu\t%zu\t%s\t%u\t%s\t%s\t%.9g\t%.9g", b->config.name, b->images.text,
	       patches, tiles, k3_runtime_scheduler(runtime), usage->workers,
	       k3_runtime_version(runtime), k3_runtime_blas(runtime), b->gflop,
	       1e-9 * b->plan->flops);
	static const size_t field[] = {offsetof(struct k3i_vision_round, ms),
				       offsetof(struct k3i_vision_round, sgemm),
				       offsetof(struct k3i_vision_round, ratio),
				       offsetof(struct k3i_vision_round, task_ratio),
				       offsetof(struct k3i_vision_round, cpu_ratio),
				       offsetof(struct k3i_vision_round, idle)};
	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		printf("\t%.9g", median(round, n, field[i]));
	printf("\t%.9g\t%.9g\t%.9g\t%zu\t%.9g\n", b->kernel_ratio, 1e-3 * b->estimate.makespan_us,
	       b->estimate.idle_share, b->plan->n_tasks, k3_usage_mean_task_ms(usage));
}

static int
time_rounds(struct k3i_vision_bench *b)
{
	struct k3i_vision_round round[K3I_VISION_ROUNDS];
	struct k3_usage usage;
	int ret;

	K3_TRY(k3i_vision_kernels(b));
	K3_TRY(k3_plan_estimate(&b->estimate, b->plan, k3_runtime_workers(b->session.runtime)));
	K3_TRY(k3i_vision_run(b, b->plan, b->warmup));
	double machine = k3i_vision_sgemm(b);
	for (long long i = 0; i < b->rounds; i++)
		K3_TRY(k3i_vision_round(b, &machine, &round[i], &usage));
	print(b, round, &usage);
out:
	return ret;
}

static int
parse(struct k3i_vision_bench *b, int argc, char **argv)
{
	struct k3_option table[] = {
		{"model", "PRESET|DIR|FILE", K3_OPT_STRING, &b->model, 0, 0,
		 "preset, config.json or its folder (mini)", false},
		K3_IMAGES_OPTIONS(&b->images),
		{"workers", "N", K3_OPT_INT, &b->workers, 1, 4096,
		 "CPU workers (STARPU_NCPU, or all cores)", false},
		{"steps", "N", K3_OPT_INT, &b->steps, 1, 1e6, "passes of a round (4)", false},
		{"rounds", "N", K3_OPT_INT, &b->rounds, 1, K3I_VISION_ROUNDS,
		 "measured rounds; the median is told (5)", false},
		{"warmup", "N", K3_OPT_INT, &b->warmup, 0, 1e6, "passes before the first round (2)",
		 false},
		{"seed", "N", K3_OPT_INT, &b->seed, 0, 9e15, "of initial values and pixels (0)",
		 false},
		K3_MACHINE_OPTION(&b->machine_file),
	};
	int first, ret;

	K3_TRY(k3_options_parse(
		"k3_bench vision", "[OPTIONS]",
		"Times the vision tower, forward and backward, on random pixels (--images "
		"1x32x32), "
		"without the text\nlayers.  stdout: a header and a row, tab-separated.\n"
		"ratio = (gflop / time) / (workers x sgemm of 512^3 on one thread); task_ratio: by "
		"the "
		"time of the kernels;\ncpu_ratio: by processor time, which other programs disturb "
		"less; kernel_ratio: one after the other on\none thread, by its processor time.  "
		"gflop: products of the model, attention included; plan_gflop: of the "
		"plan's "
		"tasks, with scores that are computed again.",
		table, sizeof(table) / sizeof(table[0]), argc, argv, &first));
	if (first < argc) {
		k3_error("drivers", "%s: k3_bench vision takes options only", argv[first]);
		K3_TRY(K3_EINVAL);
	}
	K3_TRY(k3_config_load(&b->config, b->model));
	/* the text part is not run, so as little of it as there can be */
	K3_TRY(k3_config_set_layers(&b->config, 1));
	K3_TRY(k3_config_set_vocab(&b->config, VOCABULARY));
	K3_TRY(k3_images_read(&b->images, &b->config));
	if (b->images.n == 0) {
		k3_error("drivers", "--images %s: nothing to measure", b->images.text);
		K3_TRY(K3_EINVAL);
	}
	K3_TRY(k3_session_machine(&b->machine, b->machine_file, K3_DEVICE_CPU));
out:
	return ret;
}

int
k3_bench_vision(int argc, char **argv)
{
	struct k3i_vision_bench b = {
		.model = "mini", .images.text = "1x32x32", .steps = 4, .rounds = 5, .warmup = 2};
	int status = 2, ret = parse(&b, argc, argv);

	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
	K3_TRY(open_all(&b));
	ret = k3i_vision_check(&b);
	status = ret == K3_ELIMIT ? 2 : 1; /* memory that the pass may not take */
	K3_TRY(ret);
	K3_TRY(time_rounds(&b));
	if (fflush(stdout) == 0 && !ferror(stdout))
		status = 0;
out:
	close_all(&b);
	return status;
}
