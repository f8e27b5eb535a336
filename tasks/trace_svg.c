/* A picture of a step, and of one layer in it: a row per worker, a box per task in the colour of
 * its family, what is white is idle.  Above the rows stand pass and layer, below them the time.
 *
 * The trap is size: a step may have tens of thousands of tasks, most of them narrower than a pixel.
 * Boxes of one family that touch are drawn as one where a pixel could not tell them apart. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "../common/colors.h"
#include "trace_panel.h"

enum { ROWS = 400 };

double
k3i_panel_x(const struct k3i_panel *p, int64_t ns)
{
	int64_t from = p->window.from, to = p->window.to;

	ns = ns < from ? from : ns > to ? to : ns;
	return K3I_LEFT +
	       (double)(ns - from) * (K3I_WIDTH - K3I_LEFT - K3I_RIGHT) / (double)(to - from);
}

static double
bottom(const struct k3i_panel *p)
{
	return p->y + p->row * p->trace->n_workers;
}

void
k3i_panel_text(const struct k3i_panel *p, double x, double y, const char *anchor, const char *color,
	       const char *what)
{
	fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x,
		y, anchor, color, what);
}

void
k3i_panel_box(const struct k3i_panel *p, double x0, double x1, double y, double height,
	      unsigned rgb, const char *border)
{
	fprintf(p->f,
		"<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#%06x\"%s/>\n",
		x0, y, x1 - x0, height, rgb, border);
}

/* Names in boxes that are wide enough: the operation, and tile and group when they fit too. */
static void
label(const struct k3i_panel *p, const struct k3_trace_record *r, double x0, double x1, double y)
{
	unsigned rgb = k3_family_color[k3_op_family(r->op)];
	unsigned light = 3 * (rgb >> 16 & 255) + 6 * (rgb >> 8 & 255) + (rgb & 255);
	double fits = (x1 - x0 - 4) / K3I_LETTER;
	char name[80];
	int n = snprintf(name, sizeof(name), "%s", k3_op_name(r->op)), plain = n;

	if (r->tile >= 0)
		n += snprintf(name + n, sizeof(name) - (size_t)n, " t%d", r->tile);
	if (r->group >= 0)
		n += snprintf(name + n, sizeof(name) - (size_t)n, " g%d", r->group);
	if (n > fits)
		name[plain] = 0;
	if (plain > fits)
		return;
	k3i_panel_text(p, (x0 + x1) / 2, y, "middle", light > 1400 ? "#000" : "#fff", name);
}

static void
worker_row(const struct k3i_panel *p, uint32_t w)
{
	double y = p->y + p->row * w, x0 = 0, x1 = -1;
	const char *border = p->labels ? " stroke=\"#fff\" stroke-width=\"0.6\"" : "";
	int family = -1;

	k3i_panel_box(p, K3I_LEFT, K3I_WIDTH - K3I_RIGHT, y, p->row - 2, 0xf4f4f4, "");
	k3i_panel_text(p, K3I_LEFT - 6, y + p->row / 2 + 4, "end", "#000",
		       p->trace->worker[w].name);
	for (size_t i = 0; i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		const struct k3_trace_record *r = k3i_record(p->trace, s);
		if ((uint32_t)s->worker != w || s->end < p->window.from || s->start > p->window.to)
			continue;
		double a = k3i_panel_x(p, s->start), b = k3i_panel_x(p, s->end);
		int own = k3_op_family(r->op);
		if (own == family && a - x1 < 0.25 && !p->labels) {
			x1 = b > x1 ? b : x1;
			continue;
		}
		if (family >= 0)
			k3i_panel_box(p, x0, x1, y, p->row - 2, k3_family_color[family], border);
		family = own;
		x0 = a;
		x1 = b;
	}
	if (family >= 0)
		k3i_panel_box(p, x0, x1, y, p->row - 2, k3_family_color[family], border);
}

static void
labels(const struct k3i_panel *p)
{
	for (size_t i = 0; p->labels && i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		double y = p->y + p->row * s->worker + p->row / 2 + 3;
		if (s->end > p->window.from && s->start < p->window.to)
			label(p, k3i_record(p->trace, s), k3i_panel_x(p, s->start),
			      k3i_panel_x(p, s->end), y);
	}
}

/* Time below the rows: some ten round steps. */
static void
axis(const struct k3i_panel *p)
{
	double span_ms = (double)(p->window.to - p->window.from) * 1e-6, unit = 1e-3;
	char number[32];

	while (span_ms / unit > 12)
		unit *= span_ms / (unit * 2) <= 12 ? 2 : span_ms / (unit * 5) <= 12 ? 5 : 10;
	for (int i = 0; i * unit <= span_ms; i++) {
		double x = k3i_panel_x(p, p->window.from + (int64_t)(i * unit * 1e6));
		fprintf(p->f,
			"<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#888\"/>\n",
			x, x, bottom(p), bottom(p) + 5);
		snprintf(number, sizeof(number), "%g%s", i * unit, i == 0 ? " ms" : "");
		k3i_panel_text(p, x, bottom(p) + 17, i == 0 ? "start" : "middle", "#444", number);
	}
}

/* Families of the window with their share of workers x time, of devices alone when there are any. */
static void
legend(const struct k3i_panel *p, double y)
{
	int64_t ns[K3_N_FAMILIES] = {0}, all = 0, total;
	double x = K3I_LEFT;
	char line[64];

	total = (p->window.to - p->window.from) * p->trace->n_counted;
	for (size_t i = 0; i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		int64_t from = s->start > p->window.from ? s->start : p->window.from;
		int64_t to = s->end < p->window.to ? s->end : p->window.to;
		if (to <= from || !k3i_counts(p->trace, s->worker))
			continue;
		ns[k3_op_family(k3i_record(p->trace, s)->op)] += to - from;
		all += to - from;
	}
	for (int i = 0; i <= K3_N_FAMILIES; i++) {
		int64_t own = i < K3_N_FAMILIES ? ns[i] : total - all;
		if (own <= 0)
			continue;
		k3i_panel_box(p, x, x + 14, y - 11, 14,
			      i < K3_N_FAMILIES ? k3_family_color[i] : 0xf4f4f4,
			      " stroke=\"#888\"");
		snprintf(line, sizeof(line), "%s %.1f %%",
			 i < K3_N_FAMILIES ? k3_family_name((enum k3_family)i) : "idle",
			 100 * (double)own / (double)total);
		k3i_panel_text(p, x + 19, y, "start", "#000", line);
		x += 40 + K3I_LETTER * (double)strlen(line);
	}
}

static double
row_height(const struct k3_trace *trace, double most)
{
	double row = (double)ROWS / trace->n_workers;

	return row > most ? most : row < 6 ? 6 : row;
}

/* A panel with everything around it; returns where the next may begin. */
static double
draw(struct k3i_panel *p, double y, const char *title, bool passes)
{
	k3i_panel_text(p, K3I_LEFT, y + 16, "start", "#000", title);
	p->y = y + 26 + (passes ? 2 * K3I_STRIP : 0);
	if (passes) {
		k3i_panel_strip(p, y + 26, true);
		k3i_panel_strip(p, y + 26 + K3I_STRIP, false);
	}
	for (uint32_t w = 0; w < p->trace->n_workers; w++)
		worker_row(p, w);
	labels(p);
	axis(p);
	legend(p, bottom(p) + 42);
	return bottom(p) + 56;
}

static int
start(struct k3i_panel *p, const char *path, double height)
{
	p->f = fopen(path, "w");
	if (!p->f) {
		k3_error("tasks", "cannot write %s: %s", path, strerror(errno));
		return K3_EIO;
	}
	fprintf(p->f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
		K3I_WIDTH, height);
	return K3_OK;
}

static int
finish(struct k3i_panel *p, const char *path)
{
	fprintf(p->f, "</svg>\n");
	bool failed = ferror(p->f) != 0;
	if (fclose(p->f) == 0 && !failed)
		return K3_OK;
	k3_error("tasks", "cannot write %s: %s", path, strerror(errno));
	return K3_EIO;
}

int
k3i_trace_svg_step(const struct k3_trace *trace, const struct k3i_view *view, const char *path)
{
	const struct k3i_step *s = &view->step;
	struct k3i_panel p = {.trace = trace,
			      .window = {s->from, s->to},
			      .step = s->step,
			      .row = row_height(trace, 70)};
	double wall = (double)(s->to - s->from);
	char title[160], what[32] = "whole run";
	int ret;

	if (s->step >= 0)
		snprintf(what, sizeof(what), "step %" PRId32, s->step);
	snprintf(title, sizeof(title),
		 "%s: %.1f ms, %" PRIu32 " tasks, kernels %.1f %% of %" PRIu32 " %s x wall", what,
		 wall * 1e-6, s->n_tasks, 100 * (double)s->kernels / (wall * trace->n_counted),
		 trace->n_counted, trace->n_counted < trace->n_workers ? "gpu streams" : "workers");
	K3_TRY(start(&p, path, 26 + 2 * K3I_STRIP + p.row * trace->n_workers + 56));
	draw(&p, 0, title, true);
	ret = finish(&p, path);
out:
	return ret;
}

int
k3i_trace_svg_layer(const struct k3_trace *trace, const struct k3i_view *view, const char *path)
{
	struct k3i_panel p = {.trace = trace, .row = row_height(trace, 60), .labels = true};
	double height = 26 + p.row * trace->n_workers + 56, y = 0;
	bool two = view->backward.to > view->backward.from;
	char title[96];
	int ret;

	K3_TRY(start(&p, path, height * (two ? 2 : 1)));
	for (int pass = 0; pass < 1 + two; pass++) {
		p.window = pass ? view->backward : view->forward;
		snprintf(title, sizeof(title), "layer %d %s: %.2f ms", view->layer,
			 pass ? "backward" : "forward",
			 (double)(p.window.to - p.window.from) * 1e-6);
		y = draw(&p, y, title, false);
	}
	ret = finish(&p, path);
out:
	return ret;
}
