/* A folder of its own for a test that writes files, and an ear for what the code logs meanwhile. */
#ifndef K3_TESTS_SCRATCH_H
#define K3_TESTS_SCRATCH_H
#include <stddef.h>

/** Makes a fresh folder and collects stderr in a file of it; give as .init. */
void scratch_start(void);
/** Removes it with all that is in it; give as .fini. */
void scratch_stop(void);
/** Path of a file in the folder; "" is the folder. Valid until the 16th call after. */
const char *scratch_path(const char *name);
void scratch_write(const char *name, const void *data, size_t bytes);
/** malloc'ed content; fails the test when there is no such file. */
unsigned char *scratch_read(const char *name, size_t *bytes);
/** Files in the folder, without the log. */
size_t scratch_files(void);
/** What was logged since the last call. */
const char *scratch_log(void);
/** Expects a part in what was logged since the last call. */
void scratch_expect_logged(const char *part);

#endif
