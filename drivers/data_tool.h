/* The program k3_data without its main, so that tests can call it. */
#ifndef K3_DRIVERS_DATA_TOOL_H
#define K3_DRIVERS_DATA_TOOL_H

#include <stdio.h>

/**
 * k3_data tokens ... and k3_data info ...; see doc/data-formats.md. Words of argv may change
 * places.
 * @param out  for tables
 * @return exit status: 0, 1 (out of memory, or out cannot be written), 2 (wrong usage or input)
 */
int k3_data_tool(int argc, char **argv, FILE *out);

#endif
