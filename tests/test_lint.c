/* Rules that the compiler does not know, read off the sources: what may be called where.  Functions
 * are found by our style: name at the start of a line, body between braces at the start of lines. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FUNCTIONS = 4000, MOST_FILES = 400, NAME = 64 };

struct function {
	char name[NAME];
	size_t file;
	const char *body; /* from the brace on */
	size_t bytes;
	bool seen;
};

struct source {
	char path[300]; /* from the top folder on */
	char *text;	/* comments and strings blanked */
	char *raw;
};

struct tree {
	size_t n_files, n_functions;
	struct source file[MOST_FILES];
	struct function function[MOST_FUNCTIONS];
};

/* Blanks n characters, lines stay lines; gives what comes after. */
static char *
wipe(char *p, size_t n)
{
	for (; n > 0 && *p; n--, p++)
		if (*p != '\n')
			*p = ' ';
	return p;
}

/* Comments, strings and characters become blanks, so that words in them are no calls. */
static void
blank(char *p)
{
	while (*p) {
		char quote = *p;
		if (p[0] == '/' && p[1] == '/') {
			p = wipe(p, strcspn(p, "\n"));
		} else if (p[0] == '/' && p[1] == '*') {
			const char *end = strstr(p + 2, "*/");
			p = wipe(p, end ? (size_t)(end - p) + 2 : strlen(p));
		} else if (quote == '"' || quote == '\'') {
			for (p++; *p && *p != quote;)
				p = wipe(p, *p == '\\' ? 2 : 1);
			p += *p != 0;
		} else {
			p++;
		}
	}
}

static void
find_functions(struct tree *t, const char *text)
{
	const char *line = text, *name = NULL;

	while (line && *line) {
		if (isalpha((unsigned char)*line) && strcspn(line, "(") < strcspn(line, "\n=;"))
			name = line;
		if (*line == '{' && name && t->n_functions < MOST_FUNCTIONS) {
			struct function *f = &t->function[t->n_functions++];
			const char *end = strstr(line, "\n}");
			size_t n = strcspn(name, "(");
			snprintf(f->name, sizeof(f->name), "%.*s", (int)n, name);
			f->body = line;
			f->bytes = end ? (size_t)(end - line) : strlen(line);
			f->file = t->n_files - 1;
			f->seen = false;
			name = NULL;
		}
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
}

static void
add_source(struct tree *t, const char *path, char *raw)
{
	struct source *s = &t->file[t->n_files++];

	cr_assert_lt(t->n_files, MOST_FILES);
	snprintf(s->path, sizeof(s->path), "%s", path);
	s->raw = raw;
	s->text = strdup(raw);
	blank(s->text);
	find_functions(t, s->text);
}

static const char *
top(void)
{
	static char path[4200];
	const char *data = getenv("K3_TEST_DATA");

	snprintf(path, sizeof(path), "%s/../..", data ? data : "tests/data");
	return path;
}

static void
add_folder(struct tree *t, const char *folder)
{
	char path[4600], inner[300];
	struct dirent *e;

	snprintf(path, sizeof(path), "%s/%s", top(), folder);
	DIR *d = opendir(path);
	cr_assert_not_null(d, "%s", path);
	while ((e = readdir(d))) {
		const char *dot = strrchr(e->d_name, '.');
		snprintf(inner, sizeof(inner), "%s/%.200s", folder, e->d_name);
		if (e->d_type == DT_DIR && e->d_name[0] != '.')
			add_folder(t, inner);
		if (!dot || (strcmp(dot, ".c") != 0 && strcmp(dot, ".h") != 0))
			continue;
		snprintf(path, sizeof(path), "%s/%s", top(), inner);
		FILE *f = fopen(path, "r");
		char *raw = NULL;
		size_t cap = 0;
		cr_assert(f && getdelim(&raw, &cap, 0, f) > 0, "%s", path);
		fclose(f);
		add_source(t, inner, raw);
	}
	closedir(d);
}

static struct tree *
read_tree(const char *const *folders)
{
	struct tree *t = calloc(1, sizeof(*t));

	for (; *folders; folders++)
		add_folder(t, *folders);
	return t;
}

static void
free_tree(struct tree *t)
{
	for (size_t i = 0; i < t->n_files; i++) {
		free(t->file[i].text);
		free(t->file[i].raw);
	}
	free(t);
}

/* Next identifier at or after p within n bytes; its length, 0 at the end. */
static size_t
next_word(const char **p, const char *end)
{
	while (*p < end && !isalpha((unsigned char)**p) && **p != '_')
		(*p)++;
	size_t n = 0;
	while (*p + n < end && (isalnum((unsigned char)(*p)[n]) || (*p)[n] == '_'))
		n++;
	return n;
}

static bool
is_word(const char *p, size_t n, const char *word)
{
	size_t length = strlen(word);

	if (word[length - 1] == '*')
		return n >= length - 1 && strncmp(p, word, length - 1) == 0;
	return n == length && strncmp(p, word, n) == 0;
}

/* The first of the words (a trailing * stands for any ending) in a text, NULL when none is there. */
static const char *
find_any(const char *text, size_t bytes, const char *const *words)
{
	const char *p = text, *end = text + bytes;

	for (size_t n; (n = next_word(&p, end)) > 0; p += n)
		for (const char *const *w = words; *w; w++)
			if (is_word(p, n, *w))
				return *w;
	return NULL;
}

/* What blocks, or changes what the runtime is at work on (StarPU's task.c and data_interface.c). */
static const char *const forbidden_on_workers[] = {
	"starpu_task_wait*",	   "starpu_task_submit*",
	"starpu_task_insert*",	   "starpu_data_unregister*",
	"starpu_data_acquire*",	   "starpu_data_release*",
	"starpu_data_invalidate*", "starpu_init",
	"starpu_shutdown",	   "starpu_pause",
	"starpu_resume",	   "starpu_free*",
	"starpu_malloc*",	   NULL};

static const char *check_reached(struct tree *t, size_t file, const char *name, size_t n);

/* A function and all that it calls. */
static const char *
check_function(struct tree *t, struct function *f)
{
	static char found[200];
	const char *p = f->body, *end = f->body + f->bytes;
	const char *bad = find_any(f->body, f->bytes, forbidden_on_workers);

	f->seen = true;
	if (bad) {
		snprintf(found, sizeof(found), "%s in %s", bad, f->name);
		return found;
	}
	for (size_t k; (k = next_word(&p, end)) > 0; p += k)
		if (p[k] == '(' && (bad = check_reached(t, f->file, p, k)))
			return bad;
	return NULL;
}

/* The function of that name that a file sees: its own, or a public one, which has our prefix.
 * NULL, or what was found, "call in function". */
static const char *
check_reached(struct tree *t, size_t file, const char *name, size_t n)
{
	for (size_t i = 0; i < t->n_functions; i++) {
		struct function *f = &t->function[i];
		if (f->seen || strlen(f->name) != n || strncmp(f->name, name, n) != 0 ||
		    (f->file != file && strncmp(name, "k3", 2) != 0))
			continue;
		const char *bad = check_function(t, f);
		if (bad)
			return bad;
	}
	return NULL;
}

/* Follows everything that is given to StarPU to be run by a worker. */
static const char *
check_callbacks(struct tree *t, size_t *n_roots)
{
	static const char *const fields[] = {"cpu_funcs",
					     "callback_func",
					     "prologue_callback_func",
					     "prologue_callback_pop_func",
					     "epilogue_callback_func",
					     "can_execute",
					     "footprint",
					     "arch_cost_function",
					     "worker_cost_function",
					     "starpu_task_watchdog_set_hook",
					     NULL};

	*n_roots = 0;
	for (size_t i = 0; i < t->n_files; i++) {
		const char *p = t->file[i].text, *end = p + strlen(p);
		for (size_t n; (n = next_word(&p, end)) > 0; p += n) {
			bool field = false;
			for (const char *const *f = fields; *f; f++)
				field |= is_word(p, n, *f);
			const char *q = p + n + strspn(p + n, " ");
			if (!field || (*q != '=' && *q != '('))
				continue;
			size_t k = next_word(&q, end);
			const char *bad = check_reached(t, i, q, k);
			++*n_roots;
			if (bad)
				return bad;
		}
	}
	return NULL;
}

static const char *const starpu_folders[] = {"tasks", "drivers", NULL};

Test(lint, codelets_and_callbacks_never_wait_submit_or_unregister, .timeout = 60)
{
	struct tree *t = read_tree(starpu_folders);
	size_t n;
	const char *bad = check_callbacks(t, &n);

	cr_assert_null(bad, "%s, which a codelet or callback calls", bad);
	cr_assert_geq(n, 3, "only %zu functions were found: the search is blind", n);
	free_tree(t);
}

Test(lint, a_callback_that_waits_two_calls_deep_would_be_found, .timeout = 60)
{
	struct tree *t = calloc(1, sizeof(*t));
	size_t n;

	add_source(t, "planted.c",
		   strdup("static void\ndeep(void)\n{\n\tstarpu_task_wait_for_all();\n}\n"
			  "/* starpu_shutdown() in a comment */\nstatic void\nend(void *x)\n{\n"
			  "\tif (x)\n\t\tdeep();\n}\n"
			  "void\nsubmit(struct starpu_task *t)\n{\n\tt->callback_func = end;\n"
			  "\tstarpu_task_submit(t);\n}\n"));
	const char *bad = check_callbacks(t, &n);
	cr_assert_not_null(bad);
	cr_assert_str_eq(bad, "starpu_task_wait* in deep");
	free_tree(t);
	t = calloc(1, sizeof(*t));
	add_source(t, "sound.c",
		   strdup("static void\nend(void *x)\n{\n\tmark(x, \"starpu_shutdown\"); "
			  "/* no starpu_init */\n}\n"
			  "void\nsubmit(struct starpu_task *t)\n{\n\tt->callback_func = end;\n"
			  "\tstarpu_task_submit(t);\n}\n"));
	cr_assert_null(check_callbacks(t, &n));
	cr_assert_eq(n, 1);
	free_tree(t);
}

/* Those of operations are made by macros, which the search above does not see into. */
Test(lint, the_file_of_operations_never_waits_submits_or_unregisters, .timeout = 60)
{
	struct tree *t = read_tree(starpu_folders);
	size_t n = 0;

	for (size_t i = 0; i < t->n_files; i++) {
		const struct source *s = &t->file[i];
		if (!strstr(s->text, ".cpu_funcs = {run_##"))
			continue;
		n++;
		const char *bad = find_any(s->text, strlen(s->text), forbidden_on_workers);
		cr_expect_null(bad, "%s: %s", s->path, bad);
	}
	cr_assert_eq(n, 1, "%zu files define codelets of operations", n);
	free_tree(t);
}

/* Wrong results were seen with asynchronous partitioning (StarPU's issue 37): our data are blocks
 * with handles of their own. */
Test(lint, nothing_is_partitioned, .timeout = 60)
{
	static const char *const folders[] = {"common", "codelets", "planner",
					      "tasks",	"drivers",  NULL};
	static const char *const words[] = {"starpu_data_partition*",	"starpu_data_unpartition*",
					    "starpu_data_map_filters*", "starpu_data_get_sub_data",
					    "starpu_data_filter",	NULL};
	struct tree *t = read_tree(folders);

	for (size_t i = 0; i < t->n_files; i++) {
		const char *bad = find_any(t->file[i].text, strlen(t->file[i].text), words);
		cr_expect_null(bad, "%s: %s", t->file[i].path, bad);
	}
	cr_assert_gt(t->n_files, 100);
	free_tree(t);
}

Test(lint, kernels_print_allocate_and_log_nothing, .timeout = 60)
{
	static const char *const folders[] = {"codelets", NULL};
	static const char *const words[] = {"malloc",	"calloc",  "realloc", "free",
					    "printf",	"fprintf", "puts",    "starpu*",
					    "k3_log",	"k3_warn", "k3_info", "k3_error",
					    "k3_debug", "exit",	   "getenv",  NULL};
	struct tree *t = read_tree(folders);

	for (size_t i = 0; i < t->n_files; i++) {
		const char *bad = find_any(t->file[i].text, strlen(t->file[i].text), words);
		cr_expect_null(bad, "%s: %s", t->file[i].path, bad);
	}
	cr_assert_gt(t->n_files, 20);
	free_tree(t);
}

/* Folders that the files of one may include. */
static const struct {
	const char *folder, *may;
} layers[] = {
	{"common", "common"},
	{"codelets", "codelets common"},
	{"planner", "planner common"},
	{"tasks", "tasks planner codelets common"},
};

Test(lint, no_include_goes_upwards, .timeout = 60)
{
	static const char *const all[] = {"common",  "codelets", "planner", "tasks",
					  "drivers", "tests",	 NULL};
	size_t n = 0;

	for (size_t l = 0; l < sizeof(layers) / sizeof(layers[0]); l++) {
		const char *const folder[] = {layers[l].folder, NULL};
		struct tree *t = read_tree(folder);
		for (size_t i = 0; i < t->n_files; i++)
			for (const char *p = t->file[i].raw; (p = strstr(p, "#include \"")); p++) {
				size_t length = strcspn(p, "\n");
				n++;
				for (const char *const *a = all; *a; a++) {
					char part[32];
					snprintf(part, sizeof(part), "../%s/", *a);
					const char *hit = strstr(p, part);
					cr_expect(!hit || hit > p + length ||
							  strstr(layers[l].may, *a),
						  "%s includes from %s", t->file[i].path, *a);
				}
			}
		free_tree(t);
	}
	cr_assert_gt(n, 100);
}
