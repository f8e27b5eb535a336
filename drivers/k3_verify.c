/* k3_verify: golden cases through planner, submission and StarPU. */
#include <stdio.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "verify.h"

/* Options, and the place of the first file among the words. K3_EINTR: help was printed. */
static int
parse(struct k3_verify_options *o, int argc, char **argv, int *first)
{
	const char *device = "cpu", *dtype = "fp32", *comm = "none";
	long long tile = 0, bands = 0, window = 0, trace_tasks = 0;
	struct k3_option table[] = {
		{"weights", "DIR", K3_OPT_STRING, &o->weights, 0, 0,
		 "checkpoint for cases that hold no weights", false},
		{"tile-tokens", "N|all", K3_OPT_TILE, &tile, 0, 0,
		 "rows of a token tile: a multiple of 64, or all", false},
		{"activations", "POLICY", K3_OPT_STRING, &o->activations, 0, 0,
		 "keep, recompute, or A-B:keep,C-D:recompute by layers (keep)", false},
		{"bands", "N", K3_OPT_INT, &bands, 1, 65536,
		 "bands that each image is cut in, at most its merge rows (by its patches)", false},
		{"first-difference", NULL, K3_OPT_SWITCH, &o->first_difference, 0, 0,
		 "prints every place of the walk, in its order, and the first that differs", false},
		{"forced-routing", NULL, K3_OPT_SWITCH, &o->forced_routing, 0, 0,
		 "experts are those of the file", false},
		{"window", "N", K3_OPT_INT, &window, 0, 1e9, "most tasks in flight; 0: unlimited",
		 false},
		{"plant-fault", "TENSOR", K3_OPT_STRING, &o->plant_fault, 0, 0,
		 "for tests: spoils that result (times 1.01), so that the verdict must fail",
		 false},
		K3_DEVICE_OPTION(&device),
		K3_COMM_OPTION(&comm),
		K3_DTYPE_OPTION(&dtype),
		K3_TRACE_OPTIONS(&o->runtime.trace_dir, &trace_tasks),
	};
	int ret = k3_options_parse("k3_verify", "[OPTIONS] FILE...",
				   "Runs golden cases (safetensors with weights, inputs and "
				   "expected values) through the task graph and\n"
				   "compares; one line per class of values.",
				   table, sizeof(table) / sizeof(table[0]), argc, argv, first);

	o->tile_tokens = (uint32_t)tile;
	o->bands = (uint32_t)bands;
	o->runtime.window = (uint32_t)window;
	o->runtime.trace_most_tasks = (size_t)trace_tasks;
	if (ret != K3_OK)
		return ret;
	ret = k3_device_parse(&o->runtime.device, device);
	if (k3_transport_parse(&o->runtime.comm, comm) != K3_OK)
		ret = K3_EINVAL;
	if (k3_session_dtype(&o->dtype, "dtype", dtype) != K3_OK)
		ret = K3_EINVAL;
	if (*first == argc) {
		k3_error("drivers", "no file is given; --help tells more");
		ret = K3_EINVAL;
	}
	if (ret == K3_OK && o->dtype == K3_BF16 && !o->forced_routing)
		k3_warn("drivers", "bf16 with free routing: values behind a route that is taken "
				   "otherwise are not judged (tolerance inf); --forced-routing "
				   "judges all");
	return ret;
}

int
main(int argc, char **argv)
{
	struct k3_verify_options options = {0};
	struct k3_verify_report report;
	int first, status = 0;

	k3_log_program("k3_verify");
	int ret = parse(&options, argc, argv, &first);
	if (ret != K3_OK)
		return ret == K3_EINTR ? 0 : 2;
	k3_verify_report_init(&report, &options);
	printf("file\tclass\ttensors\tmax_abs_error\trms_ratio\ttolerance\tverdict\tworst\n");
	for (int i = first; i < argc && status == 0; i++) {
		ret = k3_verify_file(argv[i], &options, &report);
		if (ret != K3_OK) {
			k3_error("drivers", "%s could not be run: %s", argv[i],
				 k3_status_text(ret));
			status = 2;
		} else {
			k3_verify_print(&report, argv[i], stdout);
		}
	}
	printf("%zu passed, %zu failed\n", report.passed, report.failed);
	if (status == 0 && options.plant_fault && !report.planted) {
		k3_error("drivers", "--plant-fault %s: no file has a result of that name",
			 options.plant_fault);
		status = 2;
	}
	if (status == 0 && (report.failed > 0 || report.passed == 0))
		status = 1;
	if (fflush(stdout) != 0 || ferror(stdout)) {
		k3_error("drivers", "the table could not be written");
		status = status ? status : 1;
	}
	k3_verify_report_fini(&report);
	return status;
}
