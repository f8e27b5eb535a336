/* Start-up and drain.  The trap: StarPU's buffers are aligned to 16 bytes unless told otherwise
 * before it starts, and BLAS results depend on alignment; a BLAS with threads of its own fights
 * StarPU's workers. */
#include "runtime.h"

#include <hwloc.h>
#include <starpu.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>
#ifdef K3_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "../common/log.h"
#include "../common/status.h"
#include "codelets.h"
#include "convert.h"
#include "environment.h"
#include "perfmodel_check.h"
#include "room.h"
#include "scheduler.h"
#include "trace_starpu.h"
#include "watchdog.h"

struct k3_runtime {
	struct k3_trace *trace;
	int32_t step;
	uint32_t window, own_window, workers; /* own: what a part of the program asks for */
	bool calibrate;
	char version[32];
	const char *scheduler;
};

uint32_t
k3_runtime_cores(void)
{
	hwloc_topology_t topology;
	int n = 0;

	if (hwloc_topology_init(&topology) == 0) {
		if (hwloc_topology_load(topology) == 0)
			n = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
		hwloc_topology_destroy(topology);
	}
	if (n <= 0)
		n = (int)sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (uint32_t)n : 1;
}

static void
report_cores(const struct k3_runtime *r)
{
	uint32_t cores = k3_runtime_cores();

	k3_info("tasks", "StarPU %s, scheduler %s, %u CPU workers on %u cores, %u CUDA workers",
		r->version, r->scheduler, r->workers, cores, starpu_cuda_worker_get_count());
	if (r->workers < cores && r->workers >= STARPU_MAXCPUS)
		k3_warn("tasks",
			"this StarPU was built for at most %d CPU workers: contrib/build-starpu.sh "
			"builds one without that limit",
			STARPU_MAXCPUS);
}

/* Older OpenBLAS builds do not know newer processors and fall back to kernels that are many times
 * slower. */
void
k3_runtime_warn_blas(void)
{
#ifdef K3_HAVE_OPENBLAS
	const char *core = openblas_get_corename();
	bool wide = false;

#ifdef __x86_64__
	wide = __builtin_cpu_supports("avx2");
#endif
	k3_debug("tasks", "OpenBLAS uses its kernels for %s", core);
	if (wide && (strcasecmp(core, "Prescott") == 0 || strcasecmp(core, "Core2") == 0 ||
		     strcasecmp(core, "Generic") == 0))
		k3_warn("tasks",
			"this OpenBLAS does not know the processor and uses its slow kernels for "
			"%s: "
			"set OPENBLAS_CORETYPE=%s",
			core, __builtin_cpu_supports("avx512dq") ? "SkylakeX" : "Haswell");
#endif
}

/* The library found at run time, which need not be the one that configure found. */
static int
check_version(struct k3_runtime *r)
{
	int major, minor, release, refuse;

	starpu_get_version(&major, &minor, &release);
	snprintf(r->version, sizeof(r->version), "%d.%d.%d", major, minor, release);
	const char *fault = k3_starpu_fault(major, minor, release, &refuse);
	if (!refuse)
		return K3_OK;
	k3_error("tasks", "StarPU %s: %s; 1.3.10 or later is needed", r->version, fault);
	return K3_ENODEV;
}

/* What StarPU's models know of our operations; entries that contradict each other are taken out. */
static int
report_models(const char *when, bool repair)
{
	struct k3_perfmodel_report report = {0};
	int ret = k3_perfmodel_check_all(&report, repair);

	if (ret == K3_OK)
		k3_info("tasks",
			"StarPU's models %s: %zu entries of %zu operations, %zu of fewer than %d "
			"samples, %zu %s as workers disagree",
			when, report.entries, report.files, report.few, K3_PERFMODEL_SAMPLES,
			report.apart, repair ? "measured anew" : "doubtful");
	return ret;
}

/* StarPU counts what it takes of main memory up to nine tenths of what hwloc saw when it started,
 * and waits for ever when data do not fit; memory that a machine adds as it is used is not in that.
 * Plans are checked against the machine's memory (room.h), so unless the user sets a limit nothing
 * is counted. */
static void
leave_main_memory_uncounted(void)
{
	for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++)
		if (starpu_node_get_kind(node) == STARPU_CPU_RAM && !k3_room_is_limited())
			starpu_malloc_on_node_set_default_flags(node, STARPU_MALLOC_PINNED);
}

static void
configure(struct starpu_conf *conf, const struct k3_runtime_options *options)
{
	starpu_conf_init(conf);
	if (options->device == K3_DEVICE_CPU) {
		if (conf->ncuda > 0)
			k3_warn("tasks",
				"STARPU_NCUDA=%d (environment): no GPU is used with --device cpu",
				conf->ncuda);
		/* the environment was read above, and must not bring them back */
		conf->precedence_over_environment_variables = 1;
		conf->ncuda = 0;
	}
	/* what cannot run on a GPU is loading; more workers would look for it all the time, in
	 * queues that the GPU's worker needs */
	if (options->device == K3_DEVICE_CUDA)
		conf->ncpus = 1;
	/* StarPU has only measurements to calibrate: not the plan's costs, whatever its environment
	 * says */
	if (options->calibrate && conf->calibrate != 2)
		conf->calibrate = 1;
}

/* What begins when StarPU has started; nothing is left of it after a failure. */
static int
start_parts(struct k3_runtime *r, const struct k3_runtime_options *options)
{
	int ret;

	K3_TRY(k3i_lane_choose());
	K3_TRY(k3i_device_start(options->device));
	K3_TRY(k3i_lane_start(options->mesh));
	if (r->calibrate)
		K3_TRY(report_models("to go by", true));
	if (options->trace_dir)
		K3_TRY(k3i_trace_starpu_create(&r->trace, options->trace_dir,
					       options->trace_most_tasks));
out:
	if (ret != K3_OK) {
		k3i_lane_stop();
		k3i_device_stop();
	}
	return ret;
}

int
k3_runtime_create(struct k3_runtime **runtime, const struct k3_runtime_options *options)
{
	struct k3_runtime *r = calloc(1, sizeof(*r));
	struct starpu_conf conf;
	int ret;

	*runtime = NULL;
	if (!r)
		return K3_ENOMEM;
	ret = check_version(r);
	if (ret == K3_OK)
		ret = k3i_environment_check(options->workers);
	if (ret == K3_OK)
		ret = k3i_device_choose(options->device);
	if (ret == K3_OK)
		ret = k3i_lane_prepare(options->comm, options->device);
	if (ret != K3_OK) {
		free(r);
		return ret;
	}
	k3i_watchdog_prepare();
	starpu_malloc_set_align(256);
	configure(&conf, options);
	k3_codelets_use_history(options->calibrate);
	ret = starpu_init(&conf);
	if (ret != 0) {
		k3_error("tasks", "StarPU does not start: %s",
			 ret == -ENODEV ? "no worker (is STARPU_NCPU 0?)" : "see its messages");
		free(r);
		return K3_ENODEV;
	}
	leave_main_memory_uncounted();
#ifdef K3_HAVE_OPENBLAS
	openblas_set_num_threads(1);
#endif
	k3i_watchdog_start();
	r->workers = starpu_cpu_worker_get_count();
	r->window = options->window;
	r->scheduler = starpu_sched_ctx_get_sched_policy(0)->policy_name;
	if (r->workers == 0) {
		k3_error("tasks",
			 "StarPU has no CPU worker (STARPU_NCPU is %s): at least 1 is needed",
			 getenv("STARPU_NCPU") ? getenv("STARPU_NCPU") : "not set");
		starpu_shutdown();
		free(r);
		return K3_ENODEV;
	}
	r->step = -1;
	r->calibrate = options->calibrate;
	ret = k3i_scheduler_check_taken(r->scheduler);
	if (ret == K3_OK)
		ret = start_parts(r, options);
	if (ret != K3_OK) {
		starpu_shutdown();
		free(r);
		return ret;
	}
	report_cores(r);
	k3_runtime_warn_blas();
	*runtime = r;
	return K3_OK;
}

void
k3_runtime_drain(struct k3_runtime *runtime)
{
	(void)runtime;
	starpu_task_wait_for_all();
}

void
k3_runtime_pause(struct k3_runtime *runtime)
{
	k3_runtime_drain(runtime);
	starpu_pause();
}

void
k3_runtime_resume(struct k3_runtime *runtime)
{
	(void)runtime;
	starpu_resume();
}

void
k3_runtime_destroy(struct k3_runtime *runtime)
{
	if (!runtime)
		return;
	k3_runtime_drain(runtime);
	(void)k3_runtime_trace_finish(runtime);
	k3i_lane_stop();
	k3i_device_stop();
	k3i_convert_release();
	starpu_shutdown(); /* writes the models */
	if (runtime->calibrate)
		(void)report_models("after this run", false);
	free(runtime);
}

void
k3_runtime_step(struct k3_runtime *runtime, int32_t step, int32_t microbatch)
{
	runtime->step = step;
	k3_trace_step(runtime->trace, step, microbatch);
}

int32_t
k3_runtime_step_now(const struct k3_runtime *runtime)
{
	return runtime->step;
}

struct k3_trace *
k3_runtime_trace(const struct k3_runtime *runtime)
{
	return runtime->trace;
}

int
k3_runtime_trace_start(struct k3_runtime *runtime, const char *dir)
{
	int ret;

	k3_runtime_drain(runtime);
	K3_TRY(runtime->trace ? K3_EEXIST : K3_OK);
	K3_TRY(k3i_trace_starpu_create(&runtime->trace, dir, 0));
out:
	return ret;
}

int
k3_runtime_trace_share(struct k3_runtime *runtime, bool device, struct k3_trace_share *share)
{
	k3_runtime_drain(runtime);
	k3i_trace_starpu_end(runtime->trace);
	return k3_trace_share(runtime->trace, device, share);
}

int
k3_runtime_trace_finish(struct k3_runtime *runtime)
{
	int ret = K3_OK;

	if (!runtime->trace)
		return K3_OK;
	k3_runtime_drain(runtime);
	k3i_trace_starpu_end(runtime->trace);
	starpu_pause(); /* idle workers spin: the pictures would wait for a core */
	ret = k3_trace_finish(runtime->trace);
	starpu_resume();
	k3i_trace_starpu_destroy(runtime->trace);
	runtime->trace = NULL;
	return ret;
}

void
k3_runtime_set_window(struct k3_runtime *runtime, uint32_t window)
{
	runtime->own_window = window;
}

void
k3_runtime_throttle(struct k3_runtime *runtime)
{
	uint32_t most = runtime->window, own = runtime->own_window;

	if (own && (!most || own < most))
		most = own;
	if (most && (uint32_t)starpu_task_nsubmitted() >= most)
		starpu_task_wait_for_n_submitted(most / 2);
}

uint32_t
k3_runtime_workers(const struct k3_runtime *runtime)
{
	return runtime->workers;
}

uint32_t
k3_runtime_cuda_workers(const struct k3_runtime *runtime)
{
	(void)runtime;
	return starpu_cuda_worker_get_count();
}

const char *
k3_runtime_scheduler(const struct k3_runtime *runtime)
{
	return runtime->scheduler;
}

const char *
k3_runtime_version(const struct k3_runtime *runtime)
{
	return runtime->version;
}

const char *
k3_runtime_blas(const struct k3_runtime *runtime)
{
	(void)runtime;
#ifdef K3_HAVE_OPENBLAS
	return openblas_get_corename();
#else
	return "";
#endif
}
