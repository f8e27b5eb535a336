/* Running k3_data inside a test; what it prints is kept. */
#ifndef K3_TESTS_TOOL_CASE_H
#define K3_TESTS_TOOL_CASE_H

enum { TOOL_WORDS = 16 };

/** Runs k3_data with these words, NULL behind the last of at most TOOL_WORDS - 1. @return its
 * status */
int tool_run(const char *const *words);
/** What the last run printed. */
const char *tool_table(void);
/** Forgets it; leaves the scratch folder too: give as .fini. */
void tool_stop(void);

#endif
