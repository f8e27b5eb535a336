/* Pictures beside the trace: our own SVG always, PNG when rsvg-convert is there, and the view of
 * ViTE when vite is there.  Foreign programs get a time limit and no terminal; one that is missing,
 * fails or takes too long costs its picture and a line for people, nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/log.h"
#include "../common/status.h"
#include "trace_record.h"

enum { LIMIT_MS = 60000, POLL_MS = 10 };

extern char **environ;

/* The environment with Qt drawing into memory; the strings are borrowed. */
static char **
offscreen(void)
{
	static char qt[] = "QT_QPA_PLATFORM=offscreen";
	size_t n = 0, k = 0;

	while (environ[n])
		n++;
	char **all = malloc((n + 2) * sizeof(*all));
	if (!all)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (strncmp(environ[i], "QT_QPA_PLATFORM=", 16) != 0)
			all[k++] = environ[i];
	all[k++] = qt;
	all[k] = NULL;
	return all;
}

/* Waits with a limit. @return exit status, or -1 */
static int
wait_for(pid_t child)
{
	struct timespec pause = {0, POLL_MS * 1000000};
	int status = -1; /* no exit: what waitpid leaves when it fails */

	for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms += POLL_MS) {
		if (ms >= LIMIT_MS) {
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return -1;
		}
		nanosleep(&pause, NULL);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* @return true when the program ran well; else people are told. */
static bool
spawn(char *const argv[])
{
	posix_spawn_file_actions_t files;
	char **environment = offscreen();
	pid_t child;
	int failed, status = -1;

	if (!environment)
		return false;
	posix_spawn_file_actions_init(&files);
	for (int fd = 0; fd < 3; fd++)
		posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
	failed = posix_spawnp(&child, argv[0], &files, NULL, argv, environment);
	posix_spawn_file_actions_destroy(&files);
	free(environment);
	if (!failed)
		status = wait_for(child);
	if (failed || status != 0)
		k3_info("tasks", "trace: no picture by %s: %s", argv[0],
			failed	     ? strerror(failed)
			: status < 0 ? "it crashed or took too long"
				     : "it failed");
	return !failed && status == 0;
}

/* name.svg to name.png; @return false when rsvg-convert can't. */
static bool
png(const char *svg)
{
	char *out = strdup(svg);
	size_t n = strlen(svg);
	bool done = false;

	if (out && n > 4) {
		memcpy(out + n - 4, ".png", 4);
		char *argv[] = {"rsvg-convert",		"-w", "1600", "-o", out,
				(char *)(uintptr_t)svg, NULL};
		done = spawn(argv);
	}
	free(out);
	return done;
}

/* ViTE's own drawing of a window. It writes SVG whatever the suffix. */
static bool
vite(const char *paje, struct k3i_window w, const char *svg)
{
	char window[64];

	snprintf(window, sizeof(window), "%.6f:%.6f", (double)w.from * 1e-6, (double)w.to * 1e-6);
	char *argv[] = {"vite", "-t", window, "-e", (char *)(uintptr_t)svg, (char *)(uintptr_t)paje,
			NULL};
	return spawn(argv);
}

struct picture {
	char *svg, *layer_svg, *step_paje, *vite_svg, *vite_layer_svg;
};

static bool
paths(const struct k3_trace *t, struct picture *p)
{
	p->svg = k3i_trace_path(t, "trace.svg");
	p->layer_svg = k3i_trace_path(t, "trace-layer.svg");
	p->step_paje = k3i_trace_path(t, "k3-step.paje");
	p->vite_svg = k3i_trace_path(t, "vite.svg");
	p->vite_layer_svg = k3i_trace_path(t, "vite-layer.svg");
	return p->svg && p->layer_svg && p->step_paje && p->vite_svg && p->vite_layer_svg;
}

static void
draw(struct k3_trace *t, const struct k3i_view *view, const struct picture *p)
{
	struct k3i_window step = {view->step.from, view->step.to};
	bool layer = view->forward.to > view->forward.from;
	uint64_t bytes;

	if (k3i_trace_svg_step(t, view, p->svg) != K3_OK)
		return;
	if (layer && k3i_trace_svg_layer(t, view, p->layer_svg) != K3_OK)
		return;
	bool convert = png(p->svg);
	if (convert && layer)
		png(p->layer_svg);
	/* the step alone: a whole run can be more than a viewer likes */
	while (!k3i_trace_lock())
		usleep(1000);
	int failed = k3i_trace_write_paje(t, p->step_paje, step, &bytes);
	k3i_trace_unlock();
	if (failed) {
		k3_error("tasks", "cannot write %s: %s", p->step_paje, strerror(failed));
		return;
	}
	if (!vite(p->step_paje, step, p->vite_svg))
		return;
	if (convert)
		png(p->vite_svg);
	if (layer && vite(p->step_paje, view->forward, p->vite_layer_svg) && convert)
		png(p->vite_layer_svg);
}

void
k3i_trace_render(struct k3_trace *trace)
{
	struct k3i_view view;
	struct picture p = {0};

	if (!k3i_trace_view(trace, &view))
		return;
	if (paths(trace, &p))
		draw(trace, &view, &p);
	free(p.svg);
	free(p.layer_svg);
	free(p.step_paje);
	free(p.vite_svg);
	free(p.vite_layer_svg);
	k3_info("tasks", "trace: files and pictures are in %s", trace->dir);
}
