/* The trap: StarPU aborts at what is no number, and under STARPU_SILENT it does not say why; a
 * scheduler that it does not know it replaces, a place that the machine does not have ends in a
 * signal, and more workers than the cores can serve look like a run that hangs. */
#include "environment.h"

#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <math.h>
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"
#include "runtime.h"
#include "scheduler.h"

extern char **environ;

/* Idle workers look for tasks all the time: that many on a core still get on. */
enum { WORKERS_OF_A_CORE = 16 };

static const struct {
	const char *name;
	long least, most;
} ranges[] = {
	{"STARPU_NCPU", 0, 65536},
	{"STARPU_NCPUS", 0, 65536},
	{"STARPU_NCUDA", 0, 65536},
	{"STARPU_NWORKER_PER_CUDA", 1, 65536},
	{"STARPU_CUDA_THREAD_PER_WORKER", 0, 1},
	{"STARPU_WATCHDOG_TIMEOUT", 1, LONG_MAX}, /* 0 is a silence at once, for ever */
	/* turns of a loop between two looks for work: beyond a million nothing gets on */
	{"STARPU_BACKOFF_MIN", 0, 1000000},
	{"STARPU_BACKOFF_MAX", 0, 1000000},
};

/* Integers from 0 that StarPU 1.3 and 1.4 read when they start, or a scheduler of theirs does;
 * without STARPU_. */
static const char integers[] =
	"AUTOHETEROPRIO_FREEZE_GATHERING AUTOHETEROPRIO_ORDERING_INTERVAL "
	"AUTOHETEROPRIO_PRINT_AFTER_ORDERING AUTOHETEROPRIO_PRINT_DATA_ON_UPDATE "
	"AUTOHETEROPRIO_PRIORITY_ORDERING_POLICY AUTOHETEROPRIO_TIME_ESTIMATION_POLICY "
	"BUS_CALIBRATE CALIBRATE CALIBRATE_MINIMUM CATCH_SIGNALS "
	"CODELET_PROFILING CUDA_ONLY_FAST_ALLOC_OTHER_MEMNODES CUDA_PIPELINE "
	"CUDA_THREAD_PER_DEV DATA_LOCALITY_ENFORCE DISABLE_ASYNCHRONOUS_COPY "
	"DISABLE_ASYNCHRONOUS_CUDA_COPY DISABLE_KERNELS DISABLE_PINNING DISK_SWAP_SIZE "
	"DISPLAY_BINDINGS ENABLE_CUDA_GPU_GPU_DIRECT ENABLE_MAP ENERGY_PROFILING "
	"EXPECTED_TRANSFER_TIME_WRITEBACK FXT_TRACE GENERATE_TRACE GLOBAL_ARBITER "
	"HETEROPRIO_CODELET_GROUPING_STRATEGY HETEROPRIO_USE_AUTO_CALIBRATION "
	"HETEROPRIO_USE_LA HISTORY_MAX_ERROR LIMIT_BANDWIDTH LIMIT_MAX_SUBMITTED_TASKS "
	"LIMIT_MIN_SUBMITTED_TASKS MAIN_THREAD_BIND MAX_MEMORY_USE MAX_PRIO MAX_WORKERSIZE "
	"MEMORY_STATS MINIMUM_AVAILABLE_MEM MINIMUM_CLEAN_BUFFERS MIN_PRIO MIN_WORKERSIZE "
	"NHIP NOPENCL NTASKS_THRESHOLD NTHREADS_PER_CORE OPENCL_ONLY_ON_CPUS OPENCL_ON_CPUS "
	"OPENCL_PIPELINE PCI_FLAT PERF_MODEL_HOMOGENEOUS_CPU PREFETCH RAND_SEED RESERVE_NCPU "
	"SCHED_READY SCHED_SORTED_ABOVE SCHED_SORTED_BELOW SILENT SINGLE_COMBINED_WORKER "
	"STATS SUBALLOCATOR SYNTHESIZE_ARITY_COMBINED_WORKER TARGET_AVAILABLE_MEM "
	"TARGET_CLEAN_BUFFERS TASK_BREAK_ON_EXEC TASK_BREAK_ON_POP TASK_BREAK_ON_PUSH "
	"TASK_BREAK_ON_SCHED TASK_PROGRESS TRACE_BUFFER_SIZE USE_NUMA WATCHDOG_CRASH "
	"WATCHDOG_DELAY WORKERS_GETBIND WORKERS_NOBIND WORKER_TREE";

static const char reals[] = "EXP_LEN_THRESHOLD IDLE_POWER SCHED_ALPHA SCHED_BETA SCHED_GAMMA "
			    "WINDOW_TIME_SIZE";

/* Is text a decimal integer of these bounds, all of it? */
static bool
is_integer(const char *text, long least, long most)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	return end != text && !*end && !errno && value >= least && value <= most;
}

static int
check_integer(const char *name, const char *text, long least, long most)
{
	if (!text || is_integer(text, least, most))
		return K3_OK;
	k3_error("tasks", "%s=%s (environment): must be an integer from %ld to %ld", name, text,
		 least, most);
	return K3_EINVAL;
}

static int
check_count(const char *name)
{
	return check_integer(name, getenv(name), 0, INT_MAX);
}

static int
check_real(const char *name)
{
	const char *text = getenv(name);
	char *end;

	if (!text || (strtof(text, &end), end != text && !*end && isfinite(strtof(text, NULL))))
		return K3_OK;
	k3_error("tasks", "%s=%s (environment): must be a number", name, text);
	return K3_EINVAL;
}

/* Each of the names, which stand without STARPU_ and with blanks between. */
static int
check_each(const char *names, int (*check)(const char *name))
{
	int ret = K3_OK;

	for (size_t n; *names; names += n + (names[n] == ' ')) {
		char name[64];
		n = strcspn(names, " ");
		snprintf(name, sizeof(name), "STARPU_%.*s", (int)n, names);
		if (check(name) != K3_OK)
			ret = K3_EINVAL;
	}
	return ret;
}

/* STARPU_LIMIT_CPU_MEM, _CPU_NUMA_MEM, _CPU_NUMA_0_MEM, _CUDA_MEM, _CUDA_0_MEM and others, in MiB.
 */
static int
check_limits(void)
{
	static const char first[] = "STARPU_LIMIT_", last[] = "_MEM";
	char name[64];
	int ret = K3_OK;

	for (char **e = environ; *e; e++) {
		size_t n = strcspn(*e, "=");
		if (strncmp(*e, first, sizeof(first) - 1) != 0 || n >= sizeof(name) ||
		    n < sizeof(last) || strncmp(*e + n - 4, last, 4) != 0 || !(*e)[n])
			continue;
		memcpy(name, *e, n);
		name[n] = 0;
		if (check_integer(name, *e + n + 1, 0, 1000000000) != K3_OK)
			ret = K3_EINVAL;
	}
	return ret;
}

/* Processors (hardware threads) and cores, as StarPU numbers them. */
static void
count_places(long *processors, long *cores)
{
	hwloc_topology_t topology;
	int n = 0, k = 0;

	if (hwloc_topology_init(&topology) == 0) {
		if (hwloc_topology_load(topology) == 0) {
			n = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
			k = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
		}
		hwloc_topology_destroy(topology);
	}
	*processors = n > 0 ? n : 1;
	*cores = k > 0 ? k : *processors;
}

/* Numbers and ranges A-B or A- of places, with commas or blanks between. */
static int
check_list(const char *name, long places)
{
	const char *text = getenv(name), *at = text;
	bool good = text && *text;

	while (good && *at) {
		char *end;
		at += strspn(at, " ,");
		if (!*at)
			break;
		long value = strtol(at, &end, 10), last = value;
		good = *at >= '0' && *at <= '9';
		at = end;
		if (*at == '-' && *++at >= '0' && *at <= '9') {
			last = strtol(at, &end, 10);
			at = end;
		}
		good = good && value <= last && last < places && strchr(" ,", *at);
	}
	if (!text || good)
		return K3_OK;
	k3_error("tasks",
		 "%s=%s (environment): must be numbers or ranges A-B from 0 to %ld, with commas or "
		 "blanks",
		 name, text, places - 1);
	return K3_EINVAL;
}

/* Where workers and the program are bound. */
static int
check_places(void)
{
	static const struct {
		const char *name;
		bool cores, list;
	} places[] = {
		{"STARPU_WORKERS_CPUID", false, true},
		{"STARPU_WORKERS_COREID", true, true},
		{"STARPU_MAIN_THREAD_CPUID", false, false},
		{"STARPU_MAIN_THREAD_COREID", true, false},
	};
	long processors = 0, cores = 0;
	int ret = K3_OK;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		const char *text = getenv(places[i].name);
		if (!text)
			continue;
		if (!processors)
			count_places(&processors, &cores);
		long n = places[i].cores ? cores : processors;
		if ((places[i].list ? check_list(places[i].name, n)
				    : check_integer(places[i].name, text, 0, n - 1)) != K3_OK)
			ret = K3_EINVAL;
	}
	return ret;
}

/* More workers than StarPU has room for, or than anything is done by. */
static int
check_workers(uint32_t asked)
{
	const char *name = getenv("STARPU_NCPU") ? "STARPU_NCPU" : "STARPU_NCPUS";
	const char *text = getenv(name);
	char whose[96];
	long cores, most;

	if (!text || is_integer(text, 0, 1))
		return K3_OK;
	cores = (long)k3_runtime_cores();
	most = cores * WORKERS_OF_A_CORE < STARPU_MAXCPUS ? cores * WORKERS_OF_A_CORE
							  : STARPU_MAXCPUS;
	/* blame is for what the user wrote */
	if (asked)
		snprintf(whose, sizeof(whose), "--workers %u", asked);
	else
		snprintf(whose, sizeof(whose), "%s=%.60s (environment)", name, text);
	if (!is_integer(text, 0, most)) {
		k3_error("tasks",
			 "%s: at most %ld CPU workers are possible here: %d a "
			 "core with %ld cores, and this StarPU has room for %d",
			 whose, most, WORKERS_OF_A_CORE, cores, STARPU_MAXCPUS);
		return K3_EINVAL;
	}
	if (!is_integer(text, 0, cores))
		k3_warn("tasks",
			"%s: this process may use %ld cores; workers that share one are in each "
			"other's way",
			whose, cores);
	return K3_OK;
}

/* StarPU keeps what it measures of the machine, and aborts where it cannot make the folder. */
static int
check_home(void)
{
	static const char *const names[] = {"XDG_CACHE_HOME", "STARPU_HOME", "HOME",
					    "TMPDIR",	      "TEMP",	     "TMP"};
	const char *own = getenv("STARPU_PERF_MODEL_DIR"), *home = NULL, *name = "";
	char path[4096];
	int n;

	for (size_t i = 0; !home && i < sizeof(names) / sizeof(names[0]); i++)
		home = getenv(name = names[i]);
	if (own)
		n = snprintf(path, sizeof(path), "%s", own);
	else
		n = snprintf(path, sizeof(path), "%s/.starpu/sampling", home ? home : "/tmp");
	bool named = !(own && !*own) && !(home && !*home);
	if (named && n > 0 && (size_t)n < sizeof(path) && k3_fs_mkdirs(path) == K3_OK)
		return K3_OK;
	k3_error("tasks",
		 "%s=%s (environment): StarPU needs a folder there that it can write; STARPU_HOME "
		 "names another",
		 own ? "STARPU_PERF_MODEL_DIR" : name,
		 own	? own
		 : home ? home
			: "");
	return K3_EIO;
}

int
k3i_environment_check(uint32_t workers)
{
	int (*const checks[])(void) = {check_limits, check_places, k3i_scheduler_check};
	char text[16];
	int ret = K3_OK;

	snprintf(text, sizeof(text), "%u", workers);
	if (workers)
		setenv("STARPU_NCPU", text, 1);

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		if (check_integer(ranges[i].name, getenv(ranges[i].name), ranges[i].least,
				  ranges[i].most) != K3_OK)
			ret = K3_EINVAL;
	if (check_each(integers, check_count) != K3_OK || check_each(reals, check_real) != K3_OK)
		ret = K3_EINVAL;
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		if (checks[i]() != K3_OK)
			ret = K3_EINVAL;
	if (ret == K3_OK)
		ret = check_workers(workers);
	return ret == K3_OK ? check_home() : ret;
}
