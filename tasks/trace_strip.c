/* Pass and layer above the workers' rows.
 *
 * The trap: tasks of neighbouring layers overlap, so a strip moves on with the first task that is
 * farther in the walk, and never back. */
#include <stdio.h>
#include <string.h>

#include "trace_panel.h"

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
void
k3i_panel_strip(const struct k3i_panel *p, double y, bool pass)
{
	int64_t now = -1, since = p->window.from;
	char name[16] = "", next[16] = "";
	unsigned shade = 0;

	k3i_panel_text(p, K3I_LEFT - 6, y + 13, "end", "#444", pass ? "pass" : "layer");
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
			double a = k3i_panel_x(p, since), b = k3i_panel_x(p, time);
			k3i_panel_box(p, a, b, y, K3I_STRIP - 3, shade++ % 2 ? 0xdde3e9 : 0xc3ccd5,
				      "");
			if (b - a > K3I_LETTER * (double)strlen(name))
				k3i_panel_text(p, (a + b) / 2, y + 12, "middle", "#000", name);
		}
		now = at;
		since = time;
		memcpy(name, next, sizeof(name));
	}
}
