/* Running the built programs from tests: a small model on a small text, in the folder of scratch.h.
 */
#ifndef K3_TESTS_PROGRAM_H
#define K3_TESTS_PROGRAM_H
#include <stddef.h>

struct program_result {
	int status; /* exit status; 128 + signal when killed */
	char *out;  /* stdout, malloc'ed */
};

/** Path of a built program. */
const char *program_path(const char *name);
/**
 * Runs "k3_name ARGS" through the shell with extra environment "A=1 B=2" (may be ""), stderr into
 * the scratch log. Killed after 100 s.
 */
struct program_result program_run(const char *environment, const char *name,
				  const char *args_format, ...)
	__attribute__((format(printf, 3, 4)));
void program_free(struct program_result *result);

/** Makes text.k3t and text.val.k3t in the scratch folder: a few pseudo-random documents of words;
 * gives the first's path. */
const char *program_dataset(void);
/** The number behind a text of the log; fails the test when the text is not there. */
double program_logged(const char *log, const char *before);
/** Column of the last line of a tab-separated table, malloc'ed; NULL when it is not there. */
char *program_column(const char *table, const char *column);
/** The same as a number; fails the test when there is no such column. */
double program_number(const char *table, const char *column);
/** One column of all lines but the header, joined by blanks, malloc'ed. */
char *program_all(const char *table, const char *column);

#endif
