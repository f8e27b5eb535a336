/* Parts of our own pictures. */
#ifndef K3_TASKS_TRACE_PANEL_H
#define K3_TASKS_TRACE_PANEL_H
#include <stdio.h>

#include "trace_record.h"

/* Pixels. */
enum { K3I_WIDTH = 1600, K3I_LEFT = 70, K3I_RIGHT = 20, K3I_STRIP = 20, K3I_LETTER = 7 };

/* A time axis with its rows. */
struct k3i_panel {
	FILE *f;
	const struct k3_trace *trace;
	struct k3i_window window;
	int32_t step;  /* that the strips tell of; -1: every one */
	double y, row; /* top of the first row; height of a row */
	bool labels;   /* names in the boxes */
};

double k3i_panel_x(const struct k3i_panel *p, int64_t ns);
/** anchor: start, middle or end */
void k3i_panel_text(const struct k3i_panel *p, double x, double y, const char *anchor,
		    const char *color, const char *what);
/** border: further attributes of the rectangle */
void k3i_panel_box(const struct k3i_panel *p, double x0, double x1, double y, double height,
		   unsigned rgb, const char *border);
/** A strip of passes, or of layers, of the steps' tasks. */
void k3i_panel_strip(const struct k3i_panel *p, double y, bool passes);

#endif
