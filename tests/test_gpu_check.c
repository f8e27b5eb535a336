/* contrib/gpu-check.sh: what it refuses, which needs no GPU, before it writes anything. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "scratch.h"

#define TEST(name) Test(gpu_check, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

static void
expect_refused(const char *arguments, const char *message)
{
	char command[9000];
	const char *data = getenv("K3_TEST_DATA");

	snprintf(command, sizeof(command), "sh %s/../../contrib/gpu-check.sh %s >&2",
		 data ? data : "tests/data", arguments);
	int status = system(command);
	const char *log = scratch_log();
	cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s: status %d: %s", arguments,
		  WEXITSTATUS(status), log);
	cr_expect_not_null(strstr(log, message), "%s: \"%s\", expected \"%s\"", arguments, log,
			   message);
	cr_expect(*log && strchr(log, '\n') == log + strlen(log) - 1, "not one line: %s", log);
	cr_expect_eq(scratch_files(), 0, "%s: something was written", arguments);
}

TEST(what_it_refuses_is_named_and_nothing_is_written)
{
	static const char *const cases[][2] = {
		{"", "holds no k3_verify"},
		{"--limit abc", "--limit abc: must be"},
		{"--limit -5", "--limit -5: must be"},
		{"--limit 0", "--limit 0: must be"},
		{"--only nothing", "unknown part nothing"},
		{"--only '*'", "unknown part *"},
		{"--only ,", "names no part"},
		{"--only tests --data /nowhere", "--data /nowhere holds no golden"},
		{"--nothing", "unknown option --nothing"},
		{"--only", "--only needs names"},
		{"--build /nowhere", "--build /nowhere: there is no such folder"},
	};
	char arguments[4096];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(arguments, sizeof(arguments), "--build %s %s", scratch_path(""),
			 cases[i][0]);
		expect_refused(arguments, cases[i][1]);
	}
}
