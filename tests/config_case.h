/* The config.json of the golden case mm_tiny, whole or with one thing changed. */
#ifndef K3_TESTS_CONFIG_CASE_H
#define K3_TESTS_CONFIG_CASE_H
#include "../common/config.h"

extern const char config_case_text[];

/** Copy of a text with its first `old` replaced (malloc'ed); fails the test when there is none. */
char *config_case_edit(const char *text, const char *old, const char *new);

/** Parses the golden text with one thing changed. */
int config_case_parse(struct k3_config *config, const char *old, const char *new);

/** The change is refused with `status`, in one line that holds all needles, and nothing is stored.
 */
void config_case_refused(const char *old, const char *new, int status, const char *const needles[]);

#define CONFIG_NEEDLES(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
