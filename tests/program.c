#include "program.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "fixture.h"
#include "scratch.h"

const char *
program_path(const char *name)
{
	static char path[4096];
	const char *bin = getenv("K3_TEST_BIN");

	snprintf(path, sizeof(path), "%s/%s", bin ? bin : ".", name);
	return path;
}

struct program_result
program_run(const char *environment, const char *name, const char *args_format, ...)
{
	struct program_result r = {-1, NULL};
	char args[4096], command[9000], part[4096];
	size_t bytes, got;
	va_list ap;

	va_start(ap, args_format);
	vsnprintf(args, sizeof(args), args_format, ap);
	va_end(ap);
	snprintf(command, sizeof(command), "%s timeout 100 %s %s", environment, program_path(name),
		 args);
	FILE *memory = open_memstream(&r.out, &bytes), *pipe = popen(command, "r");
	cr_assert(memory && pipe, "cannot run %s", command);
	while ((got = fread(part, 1, sizeof(part), pipe)) > 0)
		fwrite(part, 1, got, memory);
	int status = pclose(pipe);
	fclose(memory);
	r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	return r;
}

void
program_free(struct program_result *result)
{
	free(result->out);
	result->out = NULL;
}

const char *
program_dataset(void)
{
	static const char *const words[] = {"the ",    "graph ", "of ",	    "tasks ", "runs ",
					    "in ",     "any ",	 "order\n", "that ",  "edges ",
					    "allow. ", "A ",	 "tile ",   "waits "};

	for (int doc = 0; doc < 4; doc++) {
		char text[6000], name[16];
		size_t n = 0;
		for (uint64_t i = 0; n < 900 + 300 * (size_t)doc; i++)
			n += (size_t)snprintf(
				text + n, sizeof(text) - n, "%s",
				words[(size_t)fixture_uniform((uint64_t)doc, i, 0, 14)]);
		snprintf(name, sizeof(name), "doc%d", doc);
		scratch_write(name, text, n);
	}
	struct program_result r =
		program_run("", "k3_data", "tokens --bytes %s %s %s %s -o %s", scratch_path("doc0"),
			    scratch_path("doc1"), scratch_path("doc2"), scratch_path("doc3"),
			    scratch_path("text.k3t"));
	cr_assert_eq(r.status, 0, "k3_data failed: %s", scratch_log());
	program_free(&r);
	return scratch_path("text.k3t");
}

/* Number of a column in the header, -1 when it is not there. */
static int
column_number(const char *table, const char *column)
{
	size_t n = strlen(column);
	int number = 0;

	for (const char *p = table; *p && *p != '\n'; p++) {
		if ((p == table || p[-1] == '\t') && strncmp(p, column, n) == 0 &&
		    (p[n] == '\t' || p[n] == '\n' || !p[n]))
			return number;
		number += *p == '\t';
	}
	return -1;
}

/* Field `number` of the line at p, malloc'ed. */
static char *
field(const char *p, int number)
{
	while (number > 0 && *p && *p != '\n')
		number -= *p++ == '\t';
	return number ? NULL : strndup(p, strcspn(p, "\t\n"));
}

double
program_number(const char *table, const char *column)
{
	char *text = program_column(table, column);

	cr_assert_not_null(text, "no column %s in:\n%s", column, table);
	double x = strtod(text, NULL);
	free(text);
	return x;
}

char *
program_all(const char *table, const char *column)
{
	int number = column_number(table, column);
	char *all;
	size_t bytes;
	FILE *f = open_memstream(&all, &bytes);
	const char *line = strchr(table, '\n');

	for (; number >= 0 && line && line[1]; line = strchr(line + 1, '\n')) {
		char *one = field(line + 1, number);
		fprintf(f, "%s%s", ftell(f) > 0 ? " " : "", one ? one : "?");
		free(one);
	}
	fclose(f);
	return all;
}

double
program_logged(const char *log, const char *before)
{
	const char *at = strstr(log, before);

	cr_assert(at, "%s: not in the log:\n%s", before, log);
	return atof(at + strlen(before));
}

char *
program_column(const char *table, const char *column)
{
	char *all = program_all(table, column), *last = strrchr(all, ' ');
	char *copy = *all ? strdup(last ? last + 1 : all) : NULL;

	free(all);
	return copy;
}
