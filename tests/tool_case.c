#include "tool_case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "../drivers/data_tool.h"
#include "scratch.h"

static char *table;

const char *
tool_table(void)
{
	return table;
}

void
tool_stop(void)
{
	free(table);
	table = NULL;
	scratch_stop();
}

int
tool_run(const char *const *words)
{
	char *argv[TOOL_WORDS + 1] = {(char *)"k3_data"};
	size_t bytes;
	int argc = 1;

	free(table);
	FILE *out = open_memstream(&table, &bytes);
	cr_assert_not_null(out);
	for (; words[argc - 1]; argc++)
		argv[argc] = (char *)words[argc - 1]; /* words stay, pointers may change */
	int status = k3_data_tool(argc, argv, out);
	fclose(out);
	return status;
}
