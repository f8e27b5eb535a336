/* Slots: each short-lived datum gets a place of its size class.  A place is free again run_ahead
 * positions after the last use of its datum, so that tasks a little ahead do not wait for it;
 * that distance is what bounds the run-ahead, and memory with it.
 *
 * One walk over the positions: places whose reserve ends go to their class, then data that begin
 * take the youngest free place of theirs.  The trap: a plan has hundreds of thousands of places
 * in a few classes, so the free ones of a class lie in a heap; nothing searches the reserved
 * ones. */
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "build.h"

/* Eight classes to an octave, at least 256 bytes apart: multiples 0 .. 16 of a step. */
enum { LEAST_STEP = 256, MULTIPLES = 17, MOST_OCTAVES = 56, N_CLASSES = MULTIPLES * MOST_OCTAVES };

struct size_class {
	size_t bytes;
	uint32_t number;
};

static struct size_class
class_of(size_t bytes)
{
	size_t step = LEAST_STEP, multiple;
	uint32_t octave = 0;

	for (; step * 16 < bytes; step *= 2)
		octave++;
	multiple = (bytes + step - 1) / step;
	return (struct size_class){multiple * step, octave * MULTIPLES + (uint32_t)multiple};
}

/* Slots and data are numbered from 1 in chains and heaps; 0 ends them. */
struct place {
	uint32_t cls;
	uint32_t left, right; /* in the heap of its class; left: next in its chain */
	uint32_t rank;	      /* length of the heap's right edge from here */
};

struct assignment {
	struct k3_builder *b;
	uint32_t *begins, *ends; /* [n_pos + 1] data that begin; places whose reserve is over */
	uint32_t *next;		 /* [short-lived data] chains of begins */
	struct place *place;	 /* [n_slots + 1] */
	struct k3_slot *slot;
	uint32_t heap[N_CLASSES], n[N_CLASSES]; /* of a class: free places, all places */
};

/* Leftist heaps, the youngest place on top: a right edge is never longer than the logarithm. */
static uint32_t
merge(struct assignment *s, uint32_t a, uint32_t b)
{
	struct place *top;
	uint32_t swap;

	s->b->plan->steps++;
	if (!a || !b)
		return a ? a : b;
	if (a < b) {
		swap = a;
		a = b;
		b = swap;
	}
	top = &s->place[a];
	top->right = merge(s, top->right, b);
	if (s->place[top->left].rank < s->place[top->right].rank) {
		swap = top->left;
		top->left = top->right;
		top->right = swap;
	}
	top->rank = s->place[top->right].rank + 1;
	return a;
}

static uint32_t
take(struct assignment *s, size_t bytes)
{
	struct size_class cls = class_of(bytes);
	struct k3_plan *p = s->b->plan;
	uint32_t at = s->heap[cls.number];

	if (at) {
		s->heap[cls.number] = merge(s, s->place[at].left, s->place[at].right);
		return at;
	}
	s->slot[p->n_slots++] = (struct k3_slot){cls.bytes, s->n[cls.number]++};
	p->slot_bytes += cls.bytes;
	s->place[p->n_slots].cls = cls.number;
	return (uint32_t)p->n_slots;
}

/* Places that may be taken from this position on. */
static void
release(struct assignment *s, uint32_t pos)
{
	for (uint32_t at = s->ends[pos], next; at; at = next) {
		struct place *place = &s->place[at];
		next = place->left;
		place->left = place->right = 0;
		place->rank = 1;
		s->heap[place->cls] = merge(s, s->heap[place->cls], at);
	}
}

static uint32_t
reserved_until(const struct k3_builder *b, const struct k3_datum *d)
{
	uint32_t ahead = b->model->options.run_ahead;

	if (d->keep)
		return UINT32_MAX;
	if (d->kind == K3_DATA_WORK && d->first_pos == d->last_pos)
		ahead = ahead < K3I_WORK_AHEAD ? ahead : K3I_WORK_AHEAD;
	if (d->kind == K3_DATA_GATHERED)
		ahead = 0;
	return d->last_pos + 1 + ahead;
}

/* Gives a place to each datum that begins at a position, in the order in which they were made. */
static void
place_data(struct assignment *s, uint32_t pos)
{
	struct k3_plan *p = s->b->plan;
	struct k3_datum *data = p->data + s->b->model->n_persist - 1;

	for (uint32_t i = s->begins[pos]; i; i = s->next[i]) {
		uint32_t at = take(s, data[i].slot_bytes), until = reserved_until(s->b, &data[i]);
		data[i].slot = (int32_t)at - 1;
		if (until <= p->n_pos) {
			s->place[at].left = s->ends[until];
			s->ends[until] = at;
		}
	}
}

static int
assignment_init(struct assignment *s, struct k3_builder *b)
{
	struct k3_plan *p = b->plan;
	size_t n = p->n_data - b->model->n_persist + 1;
	const struct k3_datum *data = p->data + b->model->n_persist - 1;

	memset(s, 0, sizeof(*s));
	s->b = b;
	s->begins = calloc((size_t)p->n_pos + 1, sizeof(*s->begins));
	s->ends = calloc((size_t)p->n_pos + 1, sizeof(*s->ends));
	s->next = calloc(n, sizeof(*s->next));
	s->place = calloc(n, sizeof(*s->place));
	s->slot = malloc(n * sizeof(*s->slot));
	if (!s->begins || !s->ends || !s->next || !s->place || !s->slot)
		return K3_ENOMEM;
	for (size_t i = n; --i > 0;)
		if (data[i].first_pos <= data[i].last_pos) {
			s->next[i] = s->begins[data[i].first_pos];
			s->begins[data[i].first_pos] = (uint32_t)i;
		}
	return K3_OK;
}

static void
assignment_fini(struct assignment *s)
{
	free(s->begins);
	free(s->ends);
	free(s->next);
	free(s->place);
	free(s->slot);
}

int
k3i_assign_slots(struct k3_builder *b)
{
	struct k3_plan *p = b->plan;
	struct assignment s;
	int ret;

	K3_TRY(assignment_init(&s, b));
	for (uint32_t pos = 0; pos <= p->n_pos; pos++) {
		release(&s, pos);
		place_data(&s, pos);
	}
	p->slot = k3i_arena_alloc(p->arena, (p->n_slots + 1) * sizeof(*p->slot));
	if (!p->slot)
		K3_TRY(K3_ENOMEM);
	memcpy(p->slot, s.slot, p->n_slots * sizeof(*p->slot));
out:
	assignment_fini(&s);
	return ret;
}
