/* k3_bench op: runs the cases of one family or of all; the cases are in tests/bench.  On a CPU one
 * thread, kept on one processor, so that the case and what it is compared with meet the same
 * caches. On a device all cases are checked on few rows first, then timed on all. */
#define _GNU_SOURCE /* sched_setaffinity */
#include <cblas.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/config.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../tasks/runtime.h"
#include "../tests/bench/bench.h"
#include "bench.h"
#include "bench_device.h"
#include "session.h"

/* Rows of a check on a device: odd, and more than one block of any kernel. */
enum { CHECK_TOKENS = 291, CHECK_VOCAB = 5000 };

static const struct {
	const char *name;
	bench_family run;
} families[] = {
	{"embed", bench_embed}, {"attnres", bench_attnres}, {"kda", bench_kda},
	{"mla", bench_mla},	{"moe", bench_moe},	    {"glu", bench_glu},
	{"loss", bench_loss},	{"optim", bench_optim},	    {"vit", bench_vit},
};
static const size_t n_families = sizeof(families) / sizeof(families[0]);

/* The presets whose shapes are the targets'. */
static const char *const default_models[] = {"debug24", "debug17"};

static int
keep_on_one_processor(void)
{
	int cpu = sched_getcpu();
	cpu_set_t set;

	if (cpu < 0)
		return -1;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) == 0 ? cpu : -1;
}

static void
processor_name(char *name, size_t bytes)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[256];

	snprintf(name, bytes, "unknown");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon)
			continue;
		snprintf(name, bytes, "%s", colon + 2);
		name[strcspn(name, "\n")] = '\0';
		break;
	}
	if (f)
		fclose(f);
}

static const char columns[] =
	"family\tcase\tmodel\tshape\terror\tmedian_us\tp10_us\tp90_us\trate\tunit\t"
	"limit\tlimit_rate\tshare\ttarget\tverdict";

static void
print_device_head(const struct bench *b)
{
	char name[200];

	k3i_device_name(name, sizeof(name));
	printf("%s\tdtype\tgb_per_s\n", columns);
	printf("# device %s; times between events\n", name);
	if (!b->time)
		return;
	printf("# copy of 512 MiB %.0f GB/s, product of cuBLAS %.1f TFLOP/s in %s\n",
	       1e-9 * k3i_device_rate(b->device, K3I_DEVICE_COPY),
	       1e-12 * k3i_device_rate(b->device, K3I_DEVICE_PRODUCT), b->bf16 ? "bf16" : "fp32");
	printf("# %zu repetitions, each in turns with its limit; share is the median of their "
	       "ratios\n",
	       b->repeat);
}

static void
print_head(const struct bench *b)
{
	char processor[200];
	int cpu = keep_on_one_processor();

	processor_name(processor, sizeof(processor));
	k3_runtime_warn_blas();
	printf("%s\n", columns);
#ifdef K3_HAVE_OPENBLAS
	openblas_set_num_threads(1);
	printf("# OpenBLAS core %s; %s\n", openblas_get_corename(), openblas_get_config());
#endif
	printf("# processor %s; 1 thread on processor %d; clock of the thread\n", processor, cpu);
	printf("# %zu repetitions, each in turns with its limit; share is the median of their "
	       "ratios\n",
	       b->repeat);
}

/* Is the name a family's, or all? */
static bool
is_wanted(const char *name, size_t i)
{
	return strcmp(name, "all") == 0 || strcmp(name, families[i].name) == 0;
}

static bool
is_known(const char *name)
{
	char known[200] = "all";

	for (size_t i = 0; i < n_families; i++) {
		if (is_wanted(name, i))
			return true;
		snprintf(known + strlen(known), sizeof(known) - strlen(known), " %s",
			 families[i].name);
	}
	k3_error("drivers", "unknown family %s; known: %s", name, known);
	return false;
}

static int
run_cases(struct bench *b, const char *wanted, const char *model, long long vocab)
{
	struct k3_config config;
	int ret;

	K3_TRY(k3_config_load(&config, model));
	if (config.vocab > vocab)
		K3_TRY(k3_config_set_vocab(&config, vocab));
	if (b->heads)
		config.heads = config.kda_heads = b->heads;
	b->model = &config;
	for (size_t f = 0; f < n_families; f++)
		if (is_wanted(wanted, f)) {
			b->family = families[f].name;
			families[f].run(b);
		}
out:
	b->model = NULL;
	return ret;
}

/* On a device twice: few rows, compared; all rows, timed. */
static int
run_model(struct bench *b, const char *wanted, const char *model, long long vocab)
{
	struct bench few = *b;
	int ret;

	if (!b->device || !b->time || b->list)
		return run_cases(b, wanted, model, vocab);
	few.check = true;
	few.time = few.last = false;
	few.tokens = b->tokens < CHECK_TOKENS ? b->tokens : CHECK_TOKENS;
	few.sequence = b->sequence < CHECK_TOKENS ? b->sequence : CHECK_TOKENS;
	K3_TRY(run_cases(&few, wanted, model, vocab < CHECK_VOCAB ? vocab : CHECK_VOCAB));
	b->checked = few.checked;
	b->n_checked = few.n_checked;
	b->planted = few.planted;
	K3_TRY(run_cases(b, wanted, model, vocab));
out:
	return ret;
}

static int
run_models(struct bench *b, const char *wanted, const char *model, long long vocab)
{
	const char *const *models = model ? &model : default_models;
	size_t n = model ? 1 : sizeof(default_models) / sizeof(default_models[0]);
	int ret = K3_OK;

	for (size_t i = 0; ret == K3_OK && i < n; i++)
		ret = run_model(b, wanted, models[i], vocab);
	return ret;
}

static int
verdict(const struct bench *b)
{
	if (fflush(stdout) != 0 || ferror(stdout)) {
		k3_error("drivers", "the table could not be written");
		return 1;
	}
	if (b->list)
		return 0;
	if (b->fault && !b->planted) {
		k3_error("drivers", "--plant-fault %s: no case has an output of that name",
			 b->fault);
		return 2;
	}
	if (b->cases == 0) {
		if (b->filter)
			k3_error("drivers", "--filter %s leaves no case", b->filter);
		else
			k3_error("drivers", "no case: vit needs a model with a vision tower");
		return 2;
	}
	if (b->wrong)
		k3_error("drivers", "%zu of %zu cases are wrong and were not timed", b->wrong,
			 b->cases);
	return b->wrong ? 1 : 0;
}

static int
open_device(struct bench *b, const char *device, const char *dtype, bool check)
{
	enum k3_device where;
	enum k3_dtype type;
	int ret;

	K3_TRY(k3_device_parse(&where, device));
	K3_TRY(k3_session_dtype(&type, "dtype", dtype));
	b->check = where == K3_DEVICE_CPU || check;
	b->time = !check;
	b->last = true;
	b->bf16 = type == K3_BF16;
	if (where == K3_DEVICE_ALL) {
		k3_error("drivers", "--device %s: k3_bench op takes one: cpu or cuda", device);
		K3_TRY(K3_EINVAL);
	}
	if (where == K3_DEVICE_CPU && b->bf16) {
		k3_error("drivers", "--dtype %s: needs --device cuda; cores compute in fp32",
			 dtype);
		K3_TRY(K3_EINVAL);
	}
	if (where == K3_DEVICE_CUDA)
		K3_TRY(k3i_device_open(&b->device, b->bf16, 0));
out:
	return ret;
}

int
k3_bench_op(int argc, char **argv)
{
	struct bench b = {0};
	bool check = false;
	const char *model = NULL, *device = "cpu", *dtype = "fp32";
	long long tokens = 1024, sequence = 2048, repeat = 9, vocab = 16384, heads = 0,
		  payloads = 0;
	struct k3_option table[] = {
		{"model", "PRESET|DIR", K3_OPT_STRING, &model, 0, 0,
		 "shapes of this model (debug24, then debug17)", false},
		{"tokens", "N", K3_OPT_INT, &tokens, 1, 1 << 20, "rows of a tile (1024)", false},
		{"sequence", "N", K3_OPT_INT, &sequence, 1, 1 << 20,
		 "rows of the KDA chunk case (2048)", false},
		{"vocab", "N", K3_OPT_INT, &vocab, 5, 1 << 20,
		 "most entries of the vocabulary (16384)", false},
		{"heads", "N", K3_OPT_INT, &heads, 1, 1024,
		 "heads of attention and KDA (the model's)", false},
		{"payloads", "N", K3_OPT_INT, &payloads, 0, 10,
		 "block payloads that are mixed (as many as the model's last layer has)", false},
		{"repeat", "N", K3_OPT_INT, &repeat, 1, 1000, "repetitions, after a warm-up (9)",
		 false},
		{"device", "cpu|cuda", K3_OPT_STRING, &device, 0, 0,
		 "one thread, or CUDA kernels on the first GPU (cpu)", false},
		{"dtype", "fp32|bf16", K3_OPT_STRING, &dtype, 0, 0,
		 "of activations and matrices on a GPU (fp32)", false},
		{"filter", "TEXT", K3_OPT_STRING, &b.filter, 0, 0,
		 "only cases with this text in MODEL/CASE", false},
		{"check", NULL, K3_OPT_SWITCH, &check, 0, 0, "checks and times nothing", false},
		{"list", NULL, K3_OPT_SWITCH, &b.list, 0, 0,
		 "prints cases and outputs, runs nothing", false},
		{"plant-fault", "CASE/OUTPUT", K3_OPT_STRING, &b.fault, 0, 0,
		 "for tests: spoils one element of that result, so that the case is wrong", false},
	};
	int first,
		ret = k3_options_parse(
			"k3_bench op", "[OPTIONS] FAMILY|all",
			"Checks each operation against a plain form, then times it on one "
			"thread, or on a GPU, in turns with a limit of the machine.\n"
			"Families: embed attnres kda mla moe glu loss optim vit. Targets "
			"are the shares that are asked for; a share below does not change the exit "
			"status.",
			table, sizeof(table) / sizeof(table[0]), argc, argv, &first);

	if (ret == K3_EINTR)
		return 0;
	if (ret != K3_OK)
		return 2;
	if (argc - first != 1) {
		k3_error("drivers", "%d families are given, 1 is needed; --help tells more",
			 argc - first);
		return 2;
	}
	if (!is_known(argv[first]))
		return 2;
	b.tokens = (size_t)tokens;
	b.sequence = (size_t)sequence;
	b.repeat = (size_t)repeat;
	b.heads = (uint32_t)heads;
	b.payloads = (size_t)payloads;
	if (open_device(&b, device, dtype, check) != K3_OK)
		return 2;
	if (b.device && !b.list)
		print_device_head(&b);
	else if (!b.list)
		print_head(&b);
	ret = run_models(&b, argv[first], model, vocab);
	free(b.checked);
	k3i_device_close(b.device);
	return ret == K3_OK ? verdict(&b) : 2;
}
