/* k3_train: trains Kimi K3 as a StarPU task graph. */
#include <stdlib.h>

#include "../common/log.h"
#include "../common/status.h"
#include "train.h"

int
main(int argc, char **argv)
{
	struct k3_train_options options;
	struct k3_run_state state;
	char *folder = NULL;

	k3_log_program("k3_train");
	int ret = k3_train_parse(&options, &state, &folder, argc, argv);
	int status = ret == K3_OK      ? k3_train_run(&options, &state, folder)
		     : ret == K3_EINTR ? 0
				       : 2;
	free(folder);
	return status;
}
