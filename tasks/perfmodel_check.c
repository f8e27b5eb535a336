/* Reads a model file line by line, as StarPU 1.3 and 1.4 write it (format 45): numbers stand on the
 * line after the comment that announces them.  The trap: the number of entries stands before the
 * entries, so a repaired file is written in a second walk over the lines. */
#include "perfmodel_check.h"

#include <errno.h>
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/ops.h"
#include "../common/status.h"

enum { FORMAT = 45, MOST_BYTES = 16 << 20, MOST_NAME = 32 };

/* Entries of one implementation on one worker: lines first .. first + n - 1. */
struct list {
	char name[MOST_NAME]; /* "cuda0_impl0" */
	int kind;	      /* device type; -1: several devices together */
	int implementation;
	size_t count_line, first, n;
};

struct entry {
	size_t list, line;
	unsigned long footprint;
	double mean_us;
	unsigned long samples;
	bool apart;
};

struct model {
	const char *path;
	char **line; /* [n_lines] into the text */
	size_t n_lines, n_lists, n_entries;
	struct list *list;
	struct entry *entry;
};

static int
refuse(const struct model *m, size_t line, const char *expected)
{
	k3_error("tasks", "%s: line %zu is \"%.60s\", expected %s", m->path, line + 1,
		 line < m->n_lines ? m->line[line] : "", expected);
	return K3_EFORMAT;
}

/* Cuts the text into lines. */
static int
cut(struct model *m, char *text)
{
	size_t cap = 1;

	for (const char *p = text; *p; p++)
		cap += *p == '\n';
	m->line = malloc(cap * sizeof(*m->line));
	m->list = malloc(cap * sizeof(*m->list));
	m->entry = malloc(cap * sizeof(*m->entry));
	if (!m->line || !m->list || !m->entry)
		return K3_ENOMEM;
	for (char *p = text; *p;) {
		char *end = strchr(p, '\n');
		m->line[m->n_lines++] = p;
		if (!end)
			break;
		*end = '\0';
		p = end + 1;
	}
	return K3_OK;
}

static bool
begins(const struct model *m, size_t line, const char *start)
{
	return line < m->n_lines && strncmp(m->line[line], start, strlen(start)) == 0;
}

static bool
integer(const struct model *m, size_t line, long *value)
{
	char *end;

	if (line >= m->n_lines)
		return false;
	errno = 0;
	*value = strtol(m->line[line], &end, 10);
	return end != m->line[line] && errno == 0 && end[strspn(end, " \t\r")] == '\0' &&
	       *value >= 0;
}

static int
read_entries(struct model *m, struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct entry *e = &m->entry[m->n_entries];
		size_t line = l->first + i;
		if (line >= m->n_lines ||
		    sscanf(m->line[line], "%lx %*u %*f %lf %*f %*f %*f %lu", &e->footprint,
			   &e->mean_us, &e->samples) != 3 ||
		    !(e->mean_us >= 0))
			return refuse(m, line, "hash, size, flops, mean, dev, sum, sum2, n");
		e->list = m->n_lists;
		e->line = line;
		e->apart = false;
		m->n_entries++;
	}
	return K3_OK;
}

/* "# Model for cuda0_impl0 (Comb1)" at *at, up to its entries. */
static int
read_list(struct model *m, size_t *at, int kind)
{
	struct list *l = &m->list[m->n_lists];
	const char *impl;
	long n;
	int ret;

	memset(l, 0, sizeof(*l));
	l->kind = kind;
	if (sscanf(m->line[*at], "# Model for %31s", l->name) != 1 ||
	    !(impl = strstr(m->line[*at], "_impl")) ||
	    sscanf(impl, "_impl%d", &l->implementation) != 1)
		return refuse(m, *at, "# Model for <worker>_impl<number>");
	l->count_line = *at + 2;
	if (!begins(m, *at + 1, "# number of entries") || !integer(m, *at + 2, &n))
		return refuse(m, *at + 2, "the number of entries");
	size_t line = *at + 3;
	while (line < m->n_lines && !begins(m, line, "# hash")) {
		if (begins(m, line, "# Model for") || begins(m, line, "# COMB_"))
			return refuse(m, line, "# hash");
		line++;
	}
	if (line == m->n_lines)
		return n == 0 ? (*at = line, m->n_lists++, K3_OK) : refuse(m, line, "# hash");
	l->first = line + 1;
	l->n = (size_t)n;
	if (l->n > m->n_lines - l->first)
		return refuse(m, l->count_line, "as many entries as follow");
	ret = read_entries(m, l);
	*at = l->first + l->n - 1;
	m->n_lists++;
	return ret;
}

static int
read_model(struct model *m)
{
	long version = -1, devices = 1, kind = -1;
	int ret;

	for (size_t i = 0; i < m->n_lines; i++) {
		if (begins(m, i, "# Performance Model Version") && !integer(m, ++i, &version))
			return refuse(m, i, "the number of the format");
		if (begins(m, i, "# number of types devices") && !integer(m, ++i, &devices))
			return refuse(m, i, "the number of devices");
		if (begins(m, i, "# device type") && !integer(m, ++i, &kind))
			return refuse(m, i, "a device type");
		if (!begins(m, i, "# Model for"))
			continue;
		ret = read_list(m, &i, devices == 1 ? (int)kind : -1);
		if (ret != K3_OK)
			return ret;
	}
	if (version != FORMAT) {
		k3_error("tasks", "%s: format %ld of StarPU's models, known is %d", m->path,
			 version, FORMAT);
		return K3_EFORMAT;
	}
	return K3_OK;
}

/* Are these measurements of the same work by workers of one kind? */
static bool
are_peers(const struct model *m, const struct entry *a, const struct entry *b)
{
	const struct list *x = &m->list[a->list], *y = &m->list[b->list];

	return a->footprint == b->footprint && x->kind >= 0 && x->kind == y->kind &&
	       x->implementation == y->implementation;
}

/* Marks the peers of the first entry among them when they are apart. */
static size_t
compare_peers(struct model *m, size_t first)
{
	const struct entry *low = &m->entry[first], *high = low;
	size_t n = 0;

	for (size_t i = first; i < m->n_entries; i++) {
		const struct entry *e = &m->entry[i];
		if (!are_peers(m, &m->entry[first], e))
			continue;
		low = e->mean_us < low->mean_us ? e : low;
		high = e->mean_us > high->mean_us ? e : high;
	}
	if (!(high->mean_us > K3_PERFMODEL_APART * low->mean_us))
		return 0;
	k3_warn("tasks",
		"%s: footprint %08lx takes %.4g us on %s (%lu samples) and %.4g us on %s (%lu "
		"samples): more than %d times apart; k3_train --calibrate measures it anew",
		m->path, low->footprint, low->mean_us, m->list[low->list].name, low->samples,
		high->mean_us, m->list[high->list].name, high->samples, K3_PERFMODEL_APART);
	for (size_t i = first; i < m->n_entries; i++)
		if (are_peers(m, &m->entry[first], &m->entry[i])) {
			m->entry[i].apart = true;
			n++;
		}
	return n;
}

/* The file without the entries that are apart. */
static int
repair_file(const struct model *m)
{
	char *text = NULL;
	size_t bytes = 0, next = 0;
	FILE *out = open_memstream(&text, &bytes);
	int ret;

	if (!out)
		return K3_ENOMEM;
	for (size_t i = 0; i < m->n_lines; i++) {
		bool is_count = false;
		for (size_t l = 0; l < m->n_lists && !is_count; l++) {
			size_t left = m->list[l].n;
			is_count = m->list[l].count_line == i;
			for (size_t e = 0; is_count && e < m->n_entries; e++)
				left -= m->entry[e].list == l && m->entry[e].apart;
			if (is_count)
				fprintf(out, "%zu\n", left);
		}
		while (next < m->n_entries && m->entry[next].line < i)
			next++;
		bool gone = next < m->n_entries && m->entry[next].line == i && m->entry[next].apart;
		if (!is_count && !gone)
			fprintf(out, "%s\n", m->line[i]);
	}
	ret = fclose(out) == 0 ? k3_fs_write_atomic(m->path, text, bytes) : K3_ENOMEM;
	free(text);
	return ret;
}

int
k3_perfmodel_check(struct k3_perfmodel_report *report, const char *path, bool repair)
{
	struct model m = {.path = path};
	char *text = NULL;
	size_t bytes, apart = 0;
	int ret;

	K3_TRY(k3_fs_read(path, MOST_BYTES, &text, &bytes));
	K3_TRY(cut(&m, text));
	K3_TRY(read_model(&m));
	report->files++;
	report->entries += m.n_entries;
	for (size_t i = 0; i < m.n_entries; i++) {
		report->few += m.entry[i].samples < K3_PERFMODEL_SAMPLES;
		if (!m.entry[i].apart)
			apart += compare_peers(&m, i);
	}
	report->apart += apart;
	if (repair && apart > 0)
		K3_TRY(repair_file(&m));
out:
	free(m.line);
	free(m.list);
	free(m.entry);
	free(text);
	return ret;
}

int
k3_perfmodel_check_all(struct k3_perfmodel_report *report, bool repair)
{
	char symbol[64], path[4096];
	int ret = K3_OK;

	for (int op = 0; op < K3_N_OPS && ret == K3_OK; op++) {
		snprintf(symbol, sizeof(symbol), "k3_%s", k3_op_name((enum k3_op)op));
		path[0] = '\0';
		starpu_perfmodel_get_model_path(symbol, path, sizeof(path));
		if (path[0] && access(path, R_OK) == 0)
			ret = k3_perfmodel_check(report, path, repair);
	}
	return ret;
}
