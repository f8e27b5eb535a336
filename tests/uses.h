/* One small use of each program that starts StarPU: they work as they are, and tests add what must be
 * refused. */
#ifndef K3_TESTS_USES_H
#define K3_TESTS_USES_H

enum { TRAIN, EVAL, WRITE, VERIFY, VERIFY_OPS, STEP, VISION, N_USES };

struct use {
	const char *program;
	char args[2000];
};

/** Makes the data and the checkpoint that they read, in the scratch folder. */
void make_uses(struct use use[N_USES]);
/** Runs a use with more environment and more options; the result's status, the log in `log`. */
int run_use(const struct use *use, const char *environment, const char *more, const char **log);
/** Status 2, and the message. */
void expect_refused(const struct use *use, const char *environment, const char *more,
		    const char *message);

#endif
