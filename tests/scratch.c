/* Criterion runs each test in a process of its own, so the folder and the redirected stderr belong
 * to one test. */
#include "scratch.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[3000];
static int log_fd = -1, stderr_copy = -1;
static off_t log_read;

void
scratch_start(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(folder, sizeof(folder), "%s/k3-test-XXXXXX", tmp ? tmp : P_tmpdir);
	cr_assert_not_null(mkdtemp(folder));
	log_fd = open(scratch_path(".log"), O_RDWR | O_CREAT | O_APPEND, 0600);
	cr_assert_geq(log_fd, 0);
	stderr_copy = dup(STDERR_FILENO);
	dup2(log_fd, STDERR_FILENO);
}

void
scratch_stop(void)
{
	char *const roots[] = { folder, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);

	dup2(stderr_copy, STDERR_FILENO);
	for (FTSENT *e = tree ? fts_read(tree) : NULL; e; e = fts_read(tree))
		if (e->fts_info != FTS_D)
			remove(e->fts_path);
	if (tree)
		fts_close(tree);
}

const char *
scratch_path(const char *name)
{
	static char paths[16][4096];
	static unsigned int turn;
	char *path = paths[turn++ % 16];

	snprintf(path, sizeof(paths[0]), "%s%s%s", folder, *name ? "/" : "", name);
	return path;
}

void
scratch_write(const char *name, const void *data, size_t bytes)
{
	FILE *f = fopen(scratch_path(name), "wb");

	cr_assert_not_null(f, "cannot create %s", name);
	cr_assert_eq(fwrite(data, 1, bytes, f), bytes);
	cr_assert_eq(fclose(f), 0);
}

unsigned char *
scratch_read(const char *name, size_t *bytes)
{
	FILE *f = fopen(scratch_path(name), "rb");

	cr_assert_not_null(f, "no file %s", name);
	fseek(f, 0, SEEK_END);
	*bytes = (size_t)ftell(f);
	rewind(f);
	unsigned char *data = malloc(*bytes + 1);
	cr_assert_eq(fread(data, 1, *bytes, f), *bytes);
	data[*bytes] = '\0';
	fclose(f);
	return data;
}

size_t
scratch_files(void)
{
	char *const roots[] = { folder, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	size_t n = 0;

	for (FTSENT *e = fts_read(tree); e; e = fts_read(tree))
		n += e->fts_info == FTS_F && strcmp(e->fts_name, ".log") != 0;
	fts_close(tree);
	return n;
}

const char *
scratch_log(void)
{
	static char text[16384];
	ssize_t n = pread(log_fd, text, sizeof(text) - 1, log_read);

	text[n > 0 ? n : 0] = '\0';
	log_read += n > 0 ? n : 0;
	return text;
}

void
scratch_expect_logged(const char *part)
{
	const char *log = scratch_log();

	cr_expect_not_null(strstr(log, part), "\"%s\" is not in the log: %s", part, log);
}
