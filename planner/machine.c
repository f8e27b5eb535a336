/* Names, default rates, the file's place, the cost of a task.  The trap: the file's number of cores
 * and rates decide what --tile-tokens auto chooses, so a run never looks at how many workers it
 * happens to have. */
#include "machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../common/log.h"
#include "../common/status.h"

/* Processor's name, without blanks at its ends and bytes that are no ASCII. */
static void
processor_name(char *out, size_t out_bytes)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[512] = "", *name = NULL;
	struct utsname u;
	size_t n = 0;

	while (!name && f && fgets(line, sizeof(line), f))
		if (strncmp(line, "model name", 10) == 0)
			name = strchr(line, ':');
	if (f)
		fclose(f);
	if (name)
		name++;
	else
		name = uname(&u) == 0 ? u.machine : line;
	while (*name == ' ')
		name++;
	for (; *name && n + 1 < out_bytes; name++)
		if (isprint((unsigned char)*name))
			out[n++] = *name;
	while (n > 0 && out[n - 1] == ' ')
		n--;
	out[n] = '\0';
}

/* Kinds of operations as the defaults tell them apart. */
enum rate_kind {
	RATE_PRODUCT,
	RATE_CHUNK,
	RATE_ATTENTION,
	RATE_MIX,
	RATE_CONV,
	RATE_UPDATE,
	RATE_RANDOM,
	RATE_COPY
};

static enum rate_kind
kind_of(enum k3_op op)
{
	switch (op) {
	case K3_OP_KDA_CHUNK_FWD:
	case K3_OP_KDA_CHUNK_BWD:
	case K3_OP_KDA_STATE_LOCAL:
		return RATE_CHUNK;
	case K3_OP_MLA_ATTN_FWD:
	case K3_OP_MLA_ATTN_BWD:
	case K3_OP_VIT_ATTN_FWD:
	case K3_OP_VIT_ATTN_BWD:
		return RATE_ATTENTION;
	case K3_OP_MIX_NORM_FWD:
	case K3_OP_MIX_NORM_BWD:
		return RATE_MIX;
	case K3_OP_KDA_CONV_FWD:
	case K3_OP_KDA_CONV_BWD:
	case K3_OP_VIT_MERGE_FWD:
	case K3_OP_VIT_MERGE_BWD:
	case K3_OP_MOE_ROUTE_FWD:
		return RATE_CONV;
	case K3_OP_GRAD_NORM:
	case K3_OP_ADAMW_STEP:
	case K3_OP_CAST_PARAMS:
	case K3_OP_HASH_DATA:
		return RATE_UPDATE;
	case K3_OP_PARAM_INIT:
		return RATE_RANDOM;
	case K3_OP_EMBED_FWD:
	case K3_OP_EMBED_BWD:
	case K3_OP_MOE_COUNT:
	case K3_OP_LOSS_SUM:
	case K3_OP_CLIP_FACTOR:
	case K3_OP_ROUTER_BIAS_UPDATE:
	case K3_OP_BATCH_LOAD:
	case K3_OP_STEP_LOAD:
	case K3_OP_VIT_LOAD:
	case K3_OP_VISION_SCATTER_FWD:
	case K3_OP_VISION_SCATTER_BWD:
	case K3_OP_ZERO_GRADS:
		return RATE_COPY;
	default:
		return k3_op_is_comm(op) ? RATE_COPY : RATE_PRODUCT;
	}
}

void
k3_machine_init(struct k3_machine *m, const char *blas, uint32_t cores)
{
	/* one core of a server with AVX-512, rounded from what k3_bench calibrate measured there */
	static const struct k3_rate rate[] = {
		[RATE_PRODUCT] = {10, 150e3, 9e3, 8e3}, [RATE_CHUNK] = {0, 65e3, 25e3, 0},
		[RATE_ATTENTION] = {0, 130e3, 12e3, 0}, [RATE_MIX] = {0, 15e3, 0, 0},
		[RATE_CONV] = {0, 0, 6e3, 6e3},		[RATE_UPDATE] = {5, 0, 0, 10e3},
		[RATE_RANDOM] = {0, 1e3, 0, 10e3},	[RATE_COPY] = {1, 0, 6e3, 12e3},
	};

	memset(m, 0, sizeof(*m));
	if (gethostname(m->host, sizeof(m->host) - 1) != 0)
		snprintf(m->host, sizeof(m->host), "localhost");
	processor_name(m->processor, sizeof(m->processor));
	snprintf(m->blas, sizeof(m->blas), "%s", blas);
	m->cores = cores;
	m->task_us = 10;
	m->bytes_per_us = 10e3;
	for (int op = 0; op < K3_N_OPS; op++)
		m->rate[op] = rate[kind_of((enum k3_op)op)];
	k3_gpu_init(&m->gpu);
}

double
k3_machine_cost_us(const struct k3_machine *m, enum k3_op op, double flops, double bytes,
		   double param_bytes)
{
	const struct k3_rate *r = &m->rate[op];
	const double least_us = 1e-3; /* a chain must grow with each task */
	double us = m->task_us + r->call_us;

	if (r->flops_per_us > 0)
		us += flops / r->flops_per_us;
	if (r->bytes_per_us > 0)
		us += (bytes - param_bytes) / r->bytes_per_us;
	if (r->param_bytes_per_us > 0)
		us += param_bytes / r->param_bytes_per_us;
	return us > least_us ? us : least_us;
}

char *
k3_machine_path(const char *host)
{
	const char *named = getenv("K3_MACHINE"), *config = getenv("XDG_CONFIG_HOME"),
		   *home = getenv("HOME");
	bool own = config && *config;

	if (named && *named)
		return strdup(named);
	if (!own && !(home && *home))
		return NULL;
	size_t bytes = strlen(own ? config : home) + strlen(host) + 64;
	char *path = malloc(bytes);
	if (path)
		snprintf(path, bytes, "%s%s/starpu-k3/machine-%s.json", own ? config : home,
			 own ? "" : "/.config", host);
	return path;
}

static void
warn_other(const char *path, const char *what, const char *in_file, const char *here)
{
	if (strcmp(in_file, here) != 0)
		k3_warn("planner",
			"%s is of another machine: its %s is \"%s\", here it is \"%s\"; k3_bench "
			"calibrate measures this one",
			path, what, in_file, here);
}

int
k3_machine_open(struct k3_machine *machine, const char *file, const char *blas, uint32_t cores)
{
	const char *named = getenv("K3_MACHINE");
	struct k3_machine here;
	char *path = NULL;
	struct stat st;
	int ret = K3_OK;

	k3_machine_init(&here, blas, cores);
	*machine = here;
	path = file ? strdup(file) : k3_machine_path(here.host);
	if (!path || (!file && !(named && *named) && stat(path, &st) != 0)) {
		k3_debug("planner", "no machine file: costs are this build's defaults");
		goto out;
	}
	K3_TRY(k3_machine_load(machine, path));
	warn_other(path, "host", machine->host, here.host);
	warn_other(path, "processor", machine->processor, here.processor);
	warn_other(path, "BLAS kernel", machine->blas, here.blas);
	k3_debug("planner", "costs from %s", path);
out:
	free(path);
	return ret;
}
