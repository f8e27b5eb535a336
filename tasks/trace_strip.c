/* Pass and layer above the workers' rows.
 *
 * The trap: tasks of neighbouring layers overlap, so a strip moves on with the first task that is
 * farther in the walk, and never back.  The end of the step before runs into this one, and tiles of
 * a later microbatch's images may be far ahead of its text; neither says where the walk is. */
#include <stdio.h>
#include <string.h>

#include "trace_panel.h"

/* Places inside a microbatch: tower, embedding, layers, what comes after them (last norm, head), and
 * the same backward. */
enum {
	TOWER,
	EMBED,
	LAYER0,
	HEAD = 10000,
	BACKWARD = 15000,
	LAST = 30000, /* LAST - place: the backward pass of it */
	OPTIMIZER = 40000,
	MICROBATCH = 100000
};

/* Of a task in the forward order of its microbatch. */
static int
walk_place(const struct k3_trace_record *r)
{
	enum k3_family family = k3_op_family(r->op);

	if (r->layer >= 0)
		return LAYER0 + r->layer;
	return family == K3_FAMILY_VIT ? TOWER : family == K3_FAMILY_EMBED ? EMBED : HEAD;
}

/* Where a task stands in its step; grows with the walk.  -1: says nothing about progress. */
static int64_t
place(const struct k3_trace_record *r)
{
	int64_t micro = (int64_t)(r->microbatch < 0 ? 1 << 20 : r->microbatch) * MICROBATCH;

	/* only a tile that every microbatch has waits for the one before */
	if (r->op == K3_OP_ZERO_GRADS || (k3_op_family(r->op) == K3_FAMILY_VIT && r->tile > 0))
		return -1;
	if (r->pass == K3_PASS_FORWARD)
		return k3_op_family(r->op) == K3_FAMILY_IO ? -1 : micro + walk_place(r);
	if (r->pass == K3_PASS_BACKWARD || r->pass == K3_PASS_RECOMPUTE)
		return micro + LAST - walk_place(r);
	/* the norms of gradients are taken while others are still being made */
	return r->op == K3_OP_CLIP_FACTOR || r->op == K3_OP_ADAMW_STEP ? micro + OPTIMIZER : -1;
}

static void
place_name(int64_t place, bool pass, char *name, size_t bytes)
{
	int at = (int)(place % MICROBATCH), walk = at >= BACKWARD ? LAST - at : at;

	if (pass)
		snprintf(name, bytes, "%s",
			 at >= OPTIMIZER  ? "optimizer"
			 : at >= BACKWARD ? "backward"
					  : "forward");
	else if (at >= OPTIMIZER)
		*name = 0;
	else if (walk < LAYER0 || walk == HEAD)
		snprintf(name, bytes, "%s",
			 walk == TOWER	 ? "tower"
			 : walk == EMBED ? "embed"
					 : "head");
	else
		snprintf(name, bytes, "%d", walk - LAYER0);
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
		if (s && (p->step < 0 || k3i_record(p->trace, s)->step == p->step))
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
