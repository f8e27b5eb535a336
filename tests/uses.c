#include "uses.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "scratch.h"

void
make_uses(struct use use[N_USES])
{
	const char *golden = getenv("K3_TEST_DATA");
	char data[400], checkpoint[400];

	snprintf(data, sizeof(data), "%s", program_dataset());
	snprintf(checkpoint, sizeof(checkpoint), "%s", scratch_path("ck"));
	struct program_result r = program_run(
		"", "k3_train", "--model tiny --tokens 64 --steps 1 --data %s --save %s", data,
		checkpoint);
	cr_assert_eq(r.status, 0, "%s", scratch_log());
	program_free(&r);
	for (int i = 0; i < N_USES; i++)
		use[i].program = i == TRAIN	   ? "k3_train"
				 : i <= WRITE	   ? "k3_eval"
				 : i <= VERIFY_OPS ? "k3_verify"
						   : "k3_bench";
	snprintf(use[TRAIN].args, sizeof(use[0].args),
		 "--model tiny --tokens 192 --tile-tokens 64 --steps 1 --data %s", data);
	snprintf(use[EVAL].args, sizeof(use[0].args), "--load %s --tokens 192 --data %s",
		 checkpoint, data);
	snprintf(use[WRITE].args, sizeof(use[0].args), "--load %s --prompt the --bytes 2",
		 checkpoint);
	snprintf(use[VERIFY].args, sizeof(use[0].args), "%s/golden/text_tiny.safetensors", golden);
	snprintf(use[VERIFY_OPS].args, sizeof(use[0].args), "%s/golden/kda_ops_d32.safetensors",
		 golden);
	snprintf(use[STEP].args, sizeof(use[0].args), "step --model tiny --tokens 64 --check");
	snprintf(use[VISION].args, sizeof(use[0].args),
		 "vision --model small --images 1x4x4 --rounds 1 --steps 1");
}

int
run_use(const struct use *use, const char *environment, const char *more, const char **log)
{
	scratch_log();
	struct program_result r = program_run(environment, use->program, "%s %s", use->args, more);
	int status = r.status;

	*log = scratch_log();
	program_free(&r);
	return status;
}

void
expect_refused(const struct use *use, const char *environment, const char *more,
	       const char *message)
{
	const char *log;
	int status = run_use(use, environment, more, &log);

	cr_expect(status == 2 && strstr(log, message),
		  "%s %s %.40s... %s: status %d, not \"%s\": %s", environment, use->program,
		  use->args, more, status, message, log);
}
