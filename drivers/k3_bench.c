/* k3_bench: one program, several measurements; each is a part with options of its own (bench.h). */
#include <stdio.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "bench.h"

/* A new part is a row here. */
static const struct {
	const char *name;
	k3_bench_part run;
	const char *about;
} parts[] = {
	{"op", k3_bench_op, "checks operations against plain forms, then times them"},
	{"step", k3_bench_step, "times whole training steps on random ids"},
	{"vision", k3_bench_vision, "times the vision tower, forward and backward"},
	{"calibrate", k3_bench_calibrate,
	 "measures the rates that the planner's costs are made of"},
};
static const size_t n_parts = sizeof(parts) / sizeof(parts[0]);

static int
help_or_version(int argc, char **argv)
{
	char about[600];
	size_t at = 0;
	int first;

	for (size_t i = 0; i < n_parts; i++)
		at += (size_t)snprintf(about + at, sizeof(about) - at, "%s  %-10s %s",
				       i ? "\n" : "", parts[i].name, parts[i].about);
	int ret = k3_options_parse("k3_bench", "PART [OPTIONS] ... (PART --help tells more)", about,
				   NULL, 0, argc, argv, &first);
	return ret == K3_EINTR ? 0 : 2;
}

int
main(int argc, char **argv)
{
	k3_log_program("k3_bench");
	if (argc >= 2 && argv[1][0] == '-')
		return help_or_version(argc, argv);
	for (size_t i = 0; argc >= 2 && i < n_parts; i++)
		if (strcmp(argv[1], parts[i].name) == 0)
			return parts[i].run(argc - 1, argv + 1);
	char known[200] = "";
	for (size_t i = 0; i < n_parts; i++)
		snprintf(known + strlen(known), sizeof(known) - strlen(known), " %s",
			 parts[i].name);
	if (argc < 2)
		k3_error("drivers", "no part is given; known:%s", known);
	else
		k3_error("drivers", "unknown part %s; known:%s", argv[1], known);
	return 2;
}
