/* k3_bench calibrate: the machine's rates into the file that the cost model reads.  The trap: rates
 * of one model's shapes serve it alone, so several widths and tiles go into one fit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef K3_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../tasks/environment.h"
#include "../tasks/runtime.h"
#include "bench.h"
#include "calibrate.h"

/* Widths 256, 512, 1024; the wider, the fewer tokens fit into a minute. */
static const struct {
	const char *preset;
	uint32_t most_tokens;
} models[] = {{"debug17", 1024}, {"mini", 512}, {"debug24", 256}};

enum { LEAST_TOKENS = 64, MOST_SIZES = 16 };

struct request {
	const char *file, *model;
	long long repeat, tokens;
};

/* Sizes 64, 128, ... up to most. */
static size_t
sizes_up_to(uint32_t most, uint32_t *tokens)
{
	size_t n = 0;

	for (uint32_t t = LEAST_TOKENS; t <= most && n < MOST_SIZES; t *= 2)
		tokens[n++] = t;
	if (n == 0)
		tokens[n++] = most;
	return n;
}

static int
measure_models(const struct request *rq, struct k3_op_samples *samples)
{
	uint32_t tokens[MOST_SIZES];
	int ret = K3_OK;

	if (rq->model) {
		size_t n = sizes_up_to((uint32_t)rq->tokens, tokens);
		return k3i_measure_model(samples, rq->model, tokens, n, (uint32_t)rq->repeat);
	}
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		uint32_t most = (uint32_t)rq->tokens < models[i].most_tokens
					? (uint32_t)rq->tokens
					: models[i].most_tokens;
		size_t n = sizes_up_to(most, tokens);
		k3_info("drivers", "calibrate: %s, up to %u tokens", models[i].preset, most);
		K3_TRY(k3i_measure_model(samples, models[i].preset, tokens, n,
					 (uint32_t)rq->repeat));
	}
out:
	return ret;
}

static int
measure_machine(struct k3_machine *m)
{
	k3_info("drivers", "calibrate: products, memory, runtime");
	for (size_t i = 0; i < K3_GEMM_SIZES; i++) {
		m->gemm_flops_per_us[i] = k3i_measure_gemm(k3_machine_gemm_size(i));
		if (!(m->gemm_flops_per_us[i] > 0))
			return K3_ENOMEM;
		printf("gemm\t%u\t-\t-\t%.9g\t-\t-\t-\n", k3_machine_gemm_size(i),
		       m->gemm_flops_per_us[i]);
	}
	m->bytes_per_us = k3i_measure_memory();
	if (!(m->bytes_per_us > 0))
		return K3_ENOMEM;
	printf("machine\tmemory\t-\t-\t-\t%.9g\t-\t-\n", m->bytes_per_us);
	int ret = k3i_measure_runtime(&m->task_us);
	if (ret == K3_OK)
		printf("machine\ttask\t-\t%.9g\t-\t-\t-\t-\n", m->task_us);
	return ret;
}

static void
put_rate(double rate)
{
	if (rate > 0)
		printf("\t%.9g", rate);
	else
		printf("\t-");
}

/* Rates from the samples; what was not seen keeps its default, communication moves bytes. */
static void
fit_operations(struct k3_machine *m, const struct k3_op_samples *samples)
{
	for (int op = 0; op < K3_N_OPS; op++) {
		struct k3_rate *rate = &m->rate[op];
		if (k3_op_is_comm((enum k3_op)op))
			rate->bytes_per_us = rate->param_bytes_per_us = m->bytes_per_us;
		double error = k3_rate_fit(rate, samples[op].sample, samples[op].n);
		if (error < 0)
			continue;
		printf("operation\t%s\t%zu\t%.9g", k3_op_name((enum k3_op)op), samples[op].n,
		       rate->call_us);
		put_rate(rate->flops_per_us);
		put_rate(rate->bytes_per_us);
		put_rate(rate->param_bytes_per_us);
		printf("\t%.9g\n", error);
	}
}

static int
parse(int argc, char **argv, struct request *rq)
{
	struct k3_option table[] = {
		{"machine", "FILE", K3_OPT_STRING, &rq->file, 0, 0,
		 "file to write (where the programs look for it)", false},
		{"model", "PRESET", K3_OPT_STRING, &rq->model, 0, 0,
		 "this model's shapes alone (debug17, mini, debug24)", false},
		{"tokens", "T", K3_OPT_INT, &rq->tokens, 1, 65536,
		 "most tokens of a tile (1024; wider models take fewer)", false},
		{"repeat", "N", K3_OPT_INT, &rq->repeat, 1, 1000,
		 "runs of which the least time counts (3)", false},
	};
	int first, ret;

	*rq = (struct request){.repeat = 3, .tokens = 1024};
	ret = k3_options_parse("k3_bench calibrate", "[OPTIONS]",
			       "Measures the rates of this machine, in about a minute, and writes "
			       "the file that names it.\nThe machine should be idle.  Output: "
			       "tab-separated.",
			       table, sizeof(table) / sizeof(table[0]), argc, argv, &first);
	if (ret == K3_OK && first < argc) {
		k3_error("drivers", "%s: k3_bench calibrate takes options only", argv[first]);
		ret = K3_EINVAL;
	}
	if (ret == K3_OK && rq->model)
		ret = k3_config_preset(&(struct k3_config){0}, rq->model);
	return ret;
}

int
k3_bench_calibrate(int argc, char **argv)
{
	struct k3_op_samples samples[K3_N_OPS] = {0};
	struct k3_machine machine;
	char *path = NULL;
	struct request rq;
	int status = 2, ret = parse(argc, argv, &rq);

	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
#ifdef K3_HAVE_OPENBLAS
	openblas_set_num_threads(1);
#endif
	k3_machine_init(&machine, k3_runtime_blas(NULL), k3_runtime_cores());
	(void)k3_device_gpu(&machine.gpu); /* what it tells of itself is enough (planner/gpu.h) */
	path = rq.file ? strdup(rq.file) : k3_machine_path(machine.host);
	if (!path) {
		k3_error("drivers", "no folder for the machine file: HOME is not set; --machine "
				    "FILE names one");
		K3_TRY(K3_ENOENT);
	}
	K3_TRY(k3_fs_check_target(path));
	K3_TRY(k3i_environment_check(0));
	printf("table\tname\tsamples\tcall_us\tflops_per_us\tbytes_per_us\tparam_bytes_per_us\trms_"
	       "error\n");
	status = 1;
	K3_TRY(measure_machine(&machine));
	K3_TRY(measure_models(&rq, samples));
	fit_operations(&machine, samples);
	K3_TRY(k3_machine_save(&machine, path));
	k3_info("drivers", "%s: host %s, processor %s, BLAS %s, %u cores", path, machine.host,
		machine.processor, machine.blas, machine.cores);
	if (fflush(stdout) != 0 || ferror(stdout))
		K3_TRY(K3_EIO);
	status = 0;
out:
	if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	for (int op = 0; op < K3_N_OPS; op++)
		free(samples[op].sample);
	free(path);
	return status;
}
