/* Plans of the vision split against a table of them.  Inputs (first two fields) are read strictly;
 * results are written in the table's own form and compared as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"
#include "vision_split.h"

enum { FIELDS = 6, MOST_BYTES = 1 << 28, MOST_CP = 1 << 16, MOST_RUNS = 1 << 22 };

struct row {
	const char *path;
	size_t line;
	char *field[FIELDS];
	uint32_t cp, merge_h;
	uint64_t min_patches;
	struct k3_grid *grid;
	size_t n;
};

static int
refuse(const struct row *r, const char *what, const char *value)
{
	k3_error("planner", "%s: line %zu: %s: \"%.60s\"", r->path, r->line, what, value);
	return K3_EFORMAT;
}

/* An integer from lo to hi and the character behind it; 0 is no such number. */
static uint64_t
number(char **at, char behind, uint64_t lo, uint64_t hi)
{
	char *end;
	unsigned long long value;

	if (**at < '0' || **at > '9')
		return 0;
	errno = 0;
	value = strtoull(*at, &end, 10);
	if (errno || *end != behind || value < lo || value > hi)
		return 0;
	*at = end + (behind != 0);
	return value;
}

static int
read_grids(struct row *r)
{
	char *at = r->field[1];

	for (r->n = 1; *at; at++)
		r->n += *at == ';';
	r->grid = malloc(r->n * sizeof(*r->grid));
	if (!r->grid)
		return K3_ENOMEM;
	at = r->field[1];
	for (size_t i = 0; i < r->n; i++) {
		struct k3_grid *g = &r->grid[i];
		g->t = (uint32_t)number(&at, ',', 1, UINT16_MAX);
		g->h = g->t ? (uint32_t)number(&at, ',', 1, UINT16_MAX) : 0;
		g->w = g->h ? (uint32_t)number(&at, i + 1 < r->n ? ';' : 0, 1, UINT16_MAX) : 0;
		if (!g->w || k3_grid_patches(g) > K3_VISION_MOST_PATCHES)
			return refuse(
				r,
				"grids are t,h,w;... with numbers from 1 to 65535 and at most "
				"2^30 patches",
				r->field[1]);
	}
	return K3_OK;
}

static int
read_row(struct row *r, char *line)
{
	size_t n = 0;

	for (char *at = line; at && n < FIELDS; n++) {
		r->field[n] = at;
		at = strchr(at, '\t');
		if (at)
			*at++ = 0;
		if (n + 1 == FIELDS && at)
			return refuse(r, "six fields are allowed, there are more", at);
	}
	if (n < FIELDS)
		return refuse(r, "six fields with tabs between are needed", line);
	char *at = r->field[0];
	r->cp = (uint32_t)number(&at, ' ', 1, MOST_CP);
	r->merge_h = r->cp ? (uint32_t)number(&at, ' ', 1, UINT16_MAX) : 0;
	r->min_patches = r->merge_h ? number(&at, 0, 1, UINT32_MAX) : 0;
	if (!r->min_patches)
		return refuse(r,
			      "the first field is \"cp merge_h min_patches\", cp from 1 to 65536, "
			      "the others at least 1",
			      r->field[0]);
	return read_grids(r);
}

/* Numbers with commas between. */
static void
put_list(FILE *out, const uint32_t *value, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s%u", i ? "," : "", value[i]);
}

static int
put_runs(FILE *out, const struct row *r, const struct k3_vision_plan *plan)
{
	struct k3_key_run *run;
	uint64_t most = r->n;
	size_t n;
	int ret = K3_OK;

	for (size_t s = 0; s < plan->n_split; s++)
		most += 2ull * plan->group_size * r->grid[plan->split[s]].t;
	if (most > MOST_RUNS)
		return refuse(r, "more than 4194304 key runs", r->field[1]);
	K3_TRY(k3_vision_key_runs(&run, &n, plan, r->grid, r->n, r->merge_h, 0));
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s%d:%llu", i ? "," : "", run[i].item,
			(unsigned long long)run[i].patches);
	free(run);
out:
	return ret;
}

/* The plan as fields 3 to 6, a line each. */
static int
plan_text(char **text, const struct row *r)
{
	struct k3_vision_plan plan;
	size_t bytes;
	FILE *out;
	int ret;

	*text = NULL;
	K3_TRY(k3_vision_plan_init(&plan, r->grid, r->n, r->cp, r->merge_h, r->min_patches));
	out = open_memstream(text, &bytes);
	if (!out)
		K3_TRY(K3_ENOMEM);
	if (plan.n_split == 0) {
		fputs("-\n-\n-\n-", out);
	} else {
		put_list(out, plan.split, plan.n_split);
		fputc('\n', out);
		put_list(out, plan.group, plan.n_split);
		fprintf(out, "\n%u %u\n", plan.n_groups, plan.group_size);
		ret = put_runs(out, r, &plan);
	}
	if (fclose(out) != 0 && ret == K3_OK)
		ret = K3_ENOMEM;
out:
	k3_vision_plan_fini(&plan);
	return ret;
}

static int
check_row(struct row *r, char *line, size_t *passed, size_t *failed)
{
	static const char *const names[] = {"items that are cut", "groups of the items",
					    "number and size of groups", "key runs"};
	char *text = NULL, *rest = NULL;
	bool equal = true;
	int ret;

	K3_TRY(read_row(r, line));
	K3_TRY(plan_text(&text, r));
	rest = text;
	for (size_t f = 2; f < FIELDS && equal; f++) {
		const char *own = strsep(&rest, "\n");
		equal = strcmp(own, r->field[f]) == 0;
		if (!equal)
			k3_error("planner",
				 "%s: line %zu: %s: the table has \"%.200s\", the plan \"%.200s\"",
				 r->path, r->line, names[f - 2], r->field[f], own);
	}
	*(equal ? passed : failed) += 1;
out:
	free(text);
	free(r->grid);
	r->grid = NULL;
	return ret;
}

int
k3_vision_table_check(const char *path, size_t *passed, size_t *failed)
{
	struct row r = {.path = path};
	char *text = NULL, *rest;
	size_t bytes;
	int ret;

	*passed = *failed = 0;
	K3_TRY(k3_fs_read(path, MOST_BYTES, &text, &bytes));
	if (strlen(text) != bytes) {
		k3_error("planner", "%s: holds a zero byte: it is no text", path);
		K3_TRY(K3_EFORMAT);
	}
	rest = text;
	for (char *line; (line = strsep(&rest, "\n"));) {
		r.line++;
		size_t n = strlen(line);
		if (n > 0 && line[n - 1] == '\r')
			line[--n] = 0;
		if (n == 0 || line[0] == '#')
			continue;
		K3_TRY(check_row(&r, line, passed, failed));
	}
out:
	free(text);
	return ret;
}
