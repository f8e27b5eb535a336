/* k3_data: makes data sets of tokens and describes them. */
#include "../common/log.h"
#include "data_tool.h"

int
main(int argc, char **argv)
{
	k3_log_program("k3_data");
	return k3_data_tool(argc, argv, stdout);
}
