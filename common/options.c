/* The parser.  The trap: strtod takes "nan", "inf" and hexadecimal and strtoll stops at the first
 * letter, so a word counts as a number only when all of it is a plain one in range.  A word that
 * begins with two dashes is no value: "--save --resume" is a forgotten folder; "--save=--resume" is
 * not. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "status.h"

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unknown"
#endif

static void
print_help(const char *program, const char *synopsis, const char *about,
           const struct k3_option *options, size_t n)
{
	printf("usage: %s %s\n\n%s\n\noptions:\n", program, synopsis, about);
	for (size_t i = 0; i < n; i++) {
		char left[64];
		snprintf(left, sizeof(left), "--%s%s%s", options[i].name,
		         options[i].value ? " " : "", options[i].value ? options[i].value : "");
		printf("  %-28s %s\n", left, options[i].help);
	}
	printf("  %-28s %s\n", "--help", "prints this text");
	printf("  %-28s %s\n", "--version", "prints the version");
	printf("\nexit status: 0 ok, 1 failed, 2 wrong usage or input\n");
}

/* --help or --version. */
static int
inform(const char *word, const char *program, const char *synopsis, const char *about,
       const struct k3_option *options, size_t n)
{
	if (strcmp(word, "--help") == 0)
		print_help(program, synopsis, about, options, n);
	else
		printf("%s (starpu-k3) %s\n", program, PACKAGE_VERSION);
	return K3_EINTR;
}

static struct k3_option *
find(struct k3_option *options, size_t n, const char *word, size_t length)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(options[i].name) == length &&
		    strncmp(options[i].name, word, length) == 0)
			return &options[i];
	return NULL;
}

static int
refuse(const struct k3_option *o, const char *value, const char *allowed)
{
	k3_error("drivers", "--%s %s: must be %s", o->name, *value ? value : "''", allowed);
	return K3_EINVAL;
}

static int
set_int(const struct k3_option *o, const char *value)
{
	char allowed[96], *end;
	bool plain = strspn(value, "+-0123456789") == strlen(value) && *value;

	snprintf(allowed, sizeof(allowed), "an integer from %.0f to %.0f", o->lo, o->hi);
	errno = 0;
	long long x = strtoll(value, &end, 10);
	if (!plain || *end || errno || (double)x < o->lo || (double)x > o->hi)
		return refuse(o, value, allowed);
	*(long long *)o->target = x;
	return K3_OK;
}

static int
set_real(const struct k3_option *o, const char *value)
{
	char allowed[96], *end;
	bool plain = strspn(value, "+-0123456789.eE") == strlen(value) && *value;

	snprintf(allowed, sizeof(allowed), "a number from %g to %g", o->lo, o->hi);
	errno = 0;
	double x = strtod(value, &end);
	if (!plain || *end || errno == ERANGE || !isfinite(x) || x < o->lo || x > o->hi)
		return refuse(o, value, allowed);
	*(double *)o->target = x;
	return K3_OK;
}

static int
set_tile(const struct k3_option *o, const char *value)
{
	char allowed[96], *end;

	snprintf(allowed, sizeof(allowed), "a multiple of 64 up to %d%s", 1 << 30,
	         o->lo < 0 ? ", all, or auto" : ", or all");
	if (strcmp(value, "all") == 0) {
		*(long long *)o->target = 0;
		return K3_OK;
	}
	if (o->lo < 0 && strcmp(value, "auto") == 0) {
		*(long long *)o->target = K3_TILE_AUTO;
		return K3_OK;
	}
	errno = 0;
	long long x = strtoll(value, &end, 10);
	if (strspn(value, "+0123456789") != strlen(value) || *end || errno || x < 64 ||
	    x > 1 << 30 || x % 64 != 0)
		return refuse(o, value, allowed);
	*(long long *)o->target = x;
	return K3_OK;
}

static int
set(struct k3_option *o, const char *value)
{
	if (o->given) {
		k3_error("drivers", "--%s is given twice", o->name);
		return K3_EINVAL;
	}
	o->given = true;
	switch (o->kind) {
	case K3_OPT_SWITCH:
		*(bool *)o->target = true;
		return K3_OK;
	case K3_OPT_STRING:
		if (!*value)
			return refuse(o, value, "a text that is not empty");
		*(const char **)o->target = value;
		return K3_OK;
	case K3_OPT_INT:
		return set_int(o, value);
	case K3_OPT_REAL:
		return set_real(o, value);
	case K3_OPT_TILE:
		return set_tile(o, value);
	}
	return K3_EINVAL;
}

/* One option word at argv[*i]; takes the next word when it needs a value. */
static int
take(struct k3_option *options, size_t n, int argc, char **argv, int *i)
{
	const char *word = argv[*i] + 2, *equal = strchr(word, '=');
	struct k3_option *o = find(options, n, word, equal ? (size_t)(equal - word) : strlen(word));

	if (!o) {
		k3_error("drivers", "unknown option %s; --help lists them", argv[*i]);
		return K3_EINVAL;
	}
	if (o->kind == K3_OPT_SWITCH) {
		if (equal) {
			k3_error("drivers", "--%s takes no value, got %s", o->name, equal + 1);
			return K3_EINVAL;
		}
		return set(o, NULL);
	}
	if (equal)
		return set(o, equal + 1);
	if (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0) {
		k3_error("drivers", "--%s needs a value: --%s %s", o->name, o->name, o->value);
		return K3_EINVAL;
	}
	return set(o, argv[++*i]);
}

int
k3_options_parse(const char *program, const char *synopsis, const char *about,
                 struct k3_option *options, size_t n_options, int argc, char **argv, int *first)
{
	char **rest = calloc((size_t)argc + 1, sizeof(*rest));
	int n_rest = 0, ret = rest ? K3_OK : K3_ENOMEM;
	bool only_words = false;

	/* all that is wrong is told; --help and --version end at once */
	for (int i = 1; ret != K3_ENOMEM && ret != K3_EINTR && i < argc; i++) {
		if (only_words || strncmp(argv[i], "--", 2) != 0) {
			if (!only_words && argv[i][0] == '-' && argv[i][1]) {
				k3_error("drivers", "unknown option %s; --help lists them",
				         argv[i]);
				ret = K3_EINVAL;
			}
			rest[n_rest++] = argv[i];
		} else if (!argv[i][2]) {
			only_words = true;
		} else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0) {
			if (ret == K3_OK)
				ret = inform(argv[i], program, synopsis, about, options, n_options);
		} else if (take(options, n_options, argc, argv, &i) != K3_OK) {
			ret = K3_EINVAL;
		}
	}
	*first = argc - n_rest;
	for (int i = 0; i < n_rest; i++)
		argv[*first + i] = rest[i];
	free(rest);
	return ret;
}

bool
k3_option_given(const struct k3_option *options, size_t n_options, const char *name)
{
	for (size_t i = 0; i < n_options; i++)
		if (strcmp(options[i].name, name) == 0)
			return options[i].given;
	K3_ASSERT(!"an option of that name");
	return false;
}
