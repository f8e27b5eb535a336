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
#include "trace_record.h"

enum { WIDTH = 1600, LEFT = 70, RIGHT = 20, STRIP = 20, ROWS = 400, LETTER = 7 };

/* A time axis with its rows. */
struct panel {
	FILE *f;
	const struct k3_trace *trace;
	struct k3i_window window;
	double y, row; /* top of the first row; height of a row */
	bool labels;   /* names in the boxes */
};

static double
x_of(const struct panel *p, int64_t ns)
{
	int64_t from = p->window.from, to = p->window.to;

	ns = ns < from ? from : ns > to ? to : ns;
	return LEFT + (double)(ns - from) * (WIDTH - LEFT - RIGHT) / (double)(to - from);
}

static double
bottom(const struct panel *p)
{
	return p->y + p->row * p->trace->n_workers;
}

static void
text(const struct panel *p, double x, double y, const char *anchor, const char *color,
     const char *what)
{
	fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x,
		y, anchor, color, what);
}

static void
box(const struct panel *p, double x0, double x1, double y, double height, unsigned rgb,
    const char *border)
{
	fprintf(p->f,
		"<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#%06x\"%s/>\n",
		x0, y, x1 - x0, height, rgb, border);
}

/* Names in boxes that are wide enough: the operation, and tile and group when they fit too. */
static void
label(const struct panel *p, const struct k3_trace_record *r, double x0, double x1, double y)
{
	unsigned rgb = k3_family_color[k3_op_family(r->op)];
	unsigned light = 3 * (rgb >> 16 & 255) + 6 * (rgb >> 8 & 255) + (rgb & 255);
	double fits = (x1 - x0 - 4) / LETTER;
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
	text(p, (x0 + x1) / 2, y, "middle", light > 1400 ? "#000" : "#fff", name);
}

static void
worker_row(const struct panel *p, uint32_t w)
{
	double y = p->y + p->row * w, x0 = 0, x1 = -1;
	const char *border = p->labels ? " stroke=\"#fff\" stroke-width=\"0.6\"" : "";
	int family = -1;

	box(p, LEFT, WIDTH - RIGHT, y, p->row - 2, 0xf4f4f4, "");
	text(p, LEFT - 6, y + p->row / 2 + 4, "end", "#000", p->trace->worker[w].name);
	for (size_t i = 0; i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		const struct k3_trace_record *r = k3i_record(p->trace, s);
		if ((uint32_t)s->worker != w || s->end < p->window.from || s->start > p->window.to)
			continue;
		double a = x_of(p, s->start), b = x_of(p, s->end);
		int own = k3_op_family(r->op);
		if (own == family && a - x1 < 0.25 && !p->labels) {
			x1 = b > x1 ? b : x1;
			continue;
		}
		if (family >= 0)
			box(p, x0, x1, y, p->row - 2, k3_family_color[family], border);
		family = own;
		x0 = a;
		x1 = b;
	}
	if (family >= 0)
		box(p, x0, x1, y, p->row - 2, k3_family_color[family], border);
}

static void
labels(const struct panel *p)
{
	for (size_t i = 0; p->labels && i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		double y = p->y + p->row * s->worker + p->row / 2 + 3;
		if (s->end > p->window.from && s->start < p->window.to)
			label(p, k3i_record(p->trace, s), x_of(p, s->start), x_of(p, s->end), y);
	}
}

/* Time below the rows: some ten round steps. */
static void
axis(const struct panel *p)
{
	double span_ms = (double)(p->window.to - p->window.from) * 1e-6, unit = 1e-3;
	char number[32];

	while (span_ms / unit > 12)
		unit *= span_ms / (unit * 2) <= 12 ? 2 : span_ms / (unit * 5) <= 12 ? 5 : 10;
	for (int i = 0; i * unit <= span_ms; i++) {
		double x = x_of(p, p->window.from + (int64_t)(i * unit * 1e6));
		fprintf(p->f,
			"<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#888\"/>\n",
			x, x, bottom(p), bottom(p) + 5);
		snprintf(number, sizeof(number), "%g%s", i * unit, i == 0 ? " ms" : "");
		text(p, x, bottom(p) + 17, i == 0 ? "start" : "middle", "#444", number);
	}
}

/* Where a task stands in its step; grows with the walk.  Of the tasks without a layer the embedding
 * comes before all layers, the rest (last norm, head) after them.  -1: says nothing about progress.
 */
static int64_t
place(const struct k3_trace_record *r)
{
	int layer = r->layer >= 0 ? r->layer : k3_op_family(r->op) == K3_FAMILY_EMBED ? -1 : 9998;
	int64_t micro = (int64_t)(r->microbatch < 0 ? 1 << 20 : r->microbatch) * 100000;

	if (r->pass == K3_PASS_FORWARD)
		return k3_op_family(r->op) == K3_FAMILY_IO ? -1 : micro + layer + 1;
	if (r->pass == K3_PASS_BACKWARD || r->pass == K3_PASS_RECOMPUTE)
		return micro + 30000 - layer - 1;
	/* the norms of gradients are taken while others are still being made */
	return r->op == K3_OP_CLIP_FACTOR || r->op == K3_OP_ADAMW_STEP ? micro + 40000 : -1;
}

static void
place_name(int64_t place, bool pass, char *name, size_t bytes)
{
	int64_t at = place % 100000;

	if (pass)
		snprintf(name, bytes, "%s",
			 at >= 40000   ? "optimizer"
			 : at >= 15000 ? "backward"
				       : "forward");
	else if (at >= 40000)
		*name = 0;
	else if (at == 0 || at == 30000)
		snprintf(name, bytes, "embed");
	else if (at == 9999 || at == 30000 - 9999)
		snprintf(name, bytes, "head");
	else
		snprintf(name, bytes, "%d", (int)(at < 15000 ? at - 1 : 30000 - at - 1));
}

/* A strip of passes or of layers above the rows. */
static void
strip(const struct panel *p, double y, bool pass)
{
	int64_t now = -1, since = p->window.from;
	char name[16] = "", next[16] = "";
	unsigned shade = 0;

	text(p, LEFT - 6, y + 13, "end", "#444", pass ? "pass" : "layer");
	for (size_t i = 0; i <= p->trace->n_spans; i++) {
		const struct k3i_span *s = i < p->trace->n_spans ? &p->trace->span[i] : NULL;
		int64_t time = s ? s->start : p->window.to, at = -1;
		if (s && (s->end < p->window.from || s->start > p->window.to))
			continue;
		if (s)
			at = place(k3i_record(p->trace, s));
		if (s && at <= now)
			continue;
		if (s)
			place_name(at, pass, next, sizeof(next));
		if (s && now >= 0 && strcmp(name, next) == 0) {
			now = at;
			continue;
		}
		if (now >= 0) {
			double a = x_of(p, since), b = x_of(p, time);
			box(p, a, b, y, STRIP - 3, shade++ % 2 ? 0xdde3e9 : 0xc3ccd5, "");
			if (b - a > LETTER * (double)strlen(name))
				text(p, (a + b) / 2, y + 12, "middle", "#000", name);
		}
		now = at;
		since = time;
		memcpy(name, next, sizeof(name));
	}
}

/* Families of the window with their share of workers x time. */
static void
legend(const struct panel *p, double y)
{
	int64_t ns[K3_N_FAMILIES] = {0}, all = 0, total;
	double x = LEFT;
	char line[64];

	total = (p->window.to - p->window.from) * p->trace->n_workers;
	for (size_t i = 0; i < p->trace->n_spans; i++) {
		const struct k3i_span *s = &p->trace->span[i];
		int64_t from = s->start > p->window.from ? s->start : p->window.from;
		int64_t to = s->end < p->window.to ? s->end : p->window.to;
		if (to <= from)
			continue;
		ns[k3_op_family(k3i_record(p->trace, s)->op)] += to - from;
		all += to - from;
	}
	for (int i = 0; i <= K3_N_FAMILIES; i++) {
		int64_t own = i < K3_N_FAMILIES ? ns[i] : total - all;
		if (own <= 0)
			continue;
		box(p, x, x + 14, y - 11, 14, i < K3_N_FAMILIES ? k3_family_color[i] : 0xf4f4f4,
		    " stroke=\"#888\"");
		snprintf(line, sizeof(line), "%s %.1f %%",
			 i < K3_N_FAMILIES ? k3_family_name((enum k3_family)i) : "idle",
			 100 * (double)own / (double)total);
		text(p, x + 19, y, "start", "#000", line);
		x += 40 + LETTER * (double)strlen(line);
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
draw(struct panel *p, double y, const char *title, bool passes)
{
	text(p, LEFT, y + 16, "start", "#000", title);
	p->y = y + 26 + (passes ? 2 * STRIP : 0);
	if (passes) {
		strip(p, y + 26, true);
		strip(p, y + 26 + STRIP, false);
	}
	for (uint32_t w = 0; w < p->trace->n_workers; w++)
		worker_row(p, w);
	labels(p);
	axis(p);
	legend(p, bottom(p) + 42);
	return bottom(p) + 56;
}

static int
start(struct panel *p, const char *path, double height)
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
		WIDTH, height);
	return K3_OK;
}

static int
finish(struct panel *p, const char *path)
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
	struct panel p = {.trace = trace, .window = {s->from, s->to}, .row = row_height(trace, 70)};
	double wall = (double)(s->to - s->from);
	char title[160], what[32] = "whole run";
	int ret;

	if (s->step >= 0)
		snprintf(what, sizeof(what), "step %" PRId32, s->step);
	snprintf(title, sizeof(title),
		 "%s: %.1f ms, %" PRIu32 " tasks, kernels %.1f %% of %" PRIu32 " workers x wall",
		 what, wall * 1e-6, s->n_tasks,
		 100 * (double)s->kernels / (wall * trace->n_workers), trace->n_workers);
	K3_TRY(start(&p, path, 26 + 2 * STRIP + p.row * trace->n_workers + 56));
	draw(&p, 0, title, true);
	ret = finish(&p, path);
out:
	return ret;
}

int
k3i_trace_svg_layer(const struct k3_trace *trace, const struct k3i_view *view, const char *path)
{
	struct panel p = {.trace = trace, .row = row_height(trace, 60), .labels = true};
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
