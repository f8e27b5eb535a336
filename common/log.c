/* Messages on stderr.
 *
 * A line is put together in one buffer and written with one call, so that the lines of threads and
 * of processes that share a terminal do not mix.  The trap: K3_LOG is read once, at the first
 * message; later changes of the environment have no effect.  Names and texts come from files, so
 * their line feeds and escape codes must not become lines of ours.
 */
#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 8192 /* two paths and a reason */, N_LEVELS = 4, N_AREAS = 5 };

static const char *const level_names[N_LEVELS] = { "error", "warn", "info", "debug" };
static const char *const area_names[N_AREAS] = {
	"common", "codelets", "tasks", "planner", "drivers"
};

static const char *program_name = "k3";
static enum k3_log_level default_level = K3_LOG_INFO;
static enum k3_log_level area_levels[N_AREAS];
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static int
find(const char *const *names, int n, const char *text, size_t bytes)
{
	for (int i = 0; i < n; i++)
		if (strlen(names[i]) == bytes && strncmp(names[i], text, bytes) == 0)
			return i;
	return -1;
}

/* Writes all of a line; a terminal that is gone is no reason to stop a run. */
static void
write_line(const char *line, size_t bytes)
{
	while (bytes > 0) {
		ssize_t done = write(STDERR_FILENO, line, bytes);
		if (done <= 0)
			return;
		line += done;
		bytes -= (size_t)done;
	}
}

/* One item of K3_LOG: LEVEL or AREA:LEVEL. */
static bool
item_apply(const char *item, size_t bytes, bool explicit_area[N_AREAS])
{
	const char *colon = memchr(item, ':', bytes);
	const char *level_text = colon ? colon + 1 : item;
	int level = find(level_names, N_LEVELS, level_text, bytes - (size_t)(level_text - item));

	if (level < 0)
		return false;
	if (!colon) {
		default_level = (enum k3_log_level)level;
		return true;
	}
	int area = find(area_names, N_AREAS, item, (size_t)(colon - item));
	if (area < 0)
		return false;
	area_levels[area] = (enum k3_log_level)level;
	explicit_area[area] = true;
	return true;
}

static void
environment_read(void)
{
	const char *item = getenv("K3_LOG");
	bool explicit_area[N_AREAS] = { false };

	while (item && *item) {
		size_t bytes = strcspn(item, ",");
		if (!item_apply(item, bytes, explicit_area)) {
			char line[256];
			int n = snprintf(line, sizeof(line),
			                 "%s: warning: K3_LOG holds \"%.*s\"; write LEVEL or "
			                 "AREA:LEVEL; levels are error warn info debug\n",
			                 program_name, (int)(bytes > 100 ? 100 : bytes), item);
			write_line(line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
		}
		item += bytes;
		item += *item == ',';
	}
	for (int i = 0; i < N_AREAS; i++)
		if (!explicit_area[i])
			area_levels[i] = default_level;
}

void
k3_log_program(const char *name)
{
	program_name = name;
}

static void
controls_replace(char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = '?';
}

void
k3_log(enum k3_log_level level, const char *area, const char *fmt, ...)
{
	static const char *const shown[N_LEVELS] = { "error", "warning", "info", "debug" };
	char line[LINE_BYTES];
	va_list arguments;

	pthread_once(&environment_once, environment_read);
	int at = find(area_names, N_AREAS, area, strlen(area));
	if (level > (at < 0 ? default_level : area_levels[at]))
		return;

	int head = snprintf(line, sizeof(line), "%s: %s: ", program_name, shown[level]);
	size_t used = (size_t)head < sizeof(line) / 2 ? (size_t)head : sizeof(line) / 2;
	va_start(arguments, fmt);
	int body = vsnprintf(line + used, sizeof(line) - used - 1, fmt, arguments);
	va_end(arguments);
	if (body > 0)
		used += (size_t)body < sizeof(line) - used - 1 ? (size_t)body
		                                               : sizeof(line) - used - 2;
	controls_replace(line, used);
	line[used++] = '\n';
	write_line(line, used);
}

void
k3_abort(const char *file, int line, const char *text)
{
	fprintf(stderr, "%s: bug: %s:%d: %s\n", program_name, file, line, text);
	abort();
}
