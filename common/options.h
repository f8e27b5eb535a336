/* Command lines: long options from a table, checked completely before a program does anything. */
#ifndef K3_OPTIONS_H
#define K3_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>

enum k3_option_kind {
	K3_OPT_SWITCH, /* bool *; takes no value */
	K3_OPT_STRING, /* const char ** */
	K3_OPT_INT,    /* long long *, lo .. hi */
	K3_OPT_REAL,   /* double *, lo .. hi, finite */
	K3_OPT_TILE    /* long long *: a multiple of 64, or all, which gives 0; where lo is K3_TILE_AUTO
	                  also auto, which gives that */
};
enum { K3_TILE_AUTO = -1 };

struct k3_option {
	const char *name;   /* without the dashes */
	const char *value;  /* what stands for the value in --help; NULL for a switch */
	enum k3_option_kind kind;
	void *target;
	double lo, hi;      /* of numbers */
	const char *help;
	bool given;         /* set by the parser */
};

/**
 * Reads --name VALUE and --name=VALUE; other words are positional and are moved
 * behind the options in argv.
 * Every fault is logged in a line with option, value and what is allowed.
 * @param synopsis  what follows the program's name in the usage line
 * @param about     a sentence or more for --help
 * @param first     index in argv of the first positional word; argc when there is none
 * @return K3_OK; K3_EINVAL (the program exits with 2); K3_EINTR when --help or --version was
 * printed (it exits with 0)
 */
int k3_options_parse(const char *program, const char *synopsis, const char *about,
                     struct k3_option *options, size_t n_options, int argc, char **argv,
                     int *first);

/** Was the option given? Unknown names are a bug. */
bool k3_option_given(const struct k3_option *options, size_t n_options, const char *name);

#endif
