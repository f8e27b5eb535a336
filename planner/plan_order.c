/* Order of communication: sequences per communicator, then a simulation of blocking ranks.
 *
 * Trap: a plan that is sound as a graph can still hang.  Once submission is throttled, a rank that
 * has reached a collective does nothing after it; so what counts is the order of submission, and a
 * receive planned before the send that causes it is a fault.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"
#include "plan_check.h"

struct event {
	uint16_t op;
	uint8_t dtype;
	int16_t layer;
	int32_t tile, group, comm, peer;
	uint64_t count;
};

struct rank {
	struct event *event;
	size_t n, cap;
	size_t at;  /* of the simulation */
	bool known; /* some plan was added */
};

struct k3_order {
	uint32_t n_ranks;
	bool partial;
	struct rank *rank;
	size_t n_comms;
	struct k3_comm *comm; /* copy of the first plan's table */
	bool have_comms;
	uint64_t n_events;
};

struct k3_order *
k3_order_create(uint32_t n_ranks, bool partial)
{
	struct k3_order *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->n_ranks = n_ranks;
	o->partial = partial;
	o->rank = calloc(n_ranks, sizeof(*o->rank));
	if (o->rank)
		return o;
	free(o);
	return NULL;
}

void
k3_order_set_partial(struct k3_order *order, bool partial)
{
	order->partial = partial;
}

void
k3_order_destroy(struct k3_order *order)
{
	if (!order)
		return;
	for (uint32_t r = 0; r < order->n_ranks; r++)
		free(order->rank[r].event);
	for (size_t c = 0; c < order->n_comms; c++)
		free(order->comm[c].member);
	free(order->comm);
	free(order->rank);
	free(order);
}

uint64_t
k3_order_tasks(const struct k3_order *order)
{
	return order->n_events;
}

/* The first table of communicators is kept; every other must equal it, or start-up would hang. */
static int
add_comms(struct k3_order *o, const struct k3_plan *plan, uint32_t rank)
{
	if (!o->have_comms) {
		o->comm = calloc(plan->n_comms + 1, sizeof(*o->comm));
		if (!o->comm)
			return K3_ENOMEM;
		for (size_t c = 0; c < plan->n_comms; c++) {
			size_t bytes = plan->comm[c].n_members * sizeof(*plan->comm[c].member);
			o->comm[c] = plan->comm[c];
			o->comm[c].member = malloc(bytes + 1);
			o->n_comms = c + 1;
			if (!o->comm[c].member)
				return K3_ENOMEM;
			memcpy(o->comm[c].member, plan->comm[c].member, bytes);
		}
		o->have_comms = true;
		return K3_OK;
	}
	bool same = plan->n_comms == o->n_comms;
	for (size_t c = 0; same && c < o->n_comms; c++)
		same = plan->comm[c].n_members == o->comm[c].n_members &&
		       memcmp(plan->comm[c].member, o->comm[c].member,
			      o->comm[c].n_members * sizeof(uint32_t)) == 0;
	if (same)
		return K3_OK;
	k3_error("planner", "order: rank %u has another table of communicators than the first rank",
		 rank);
	return K3_EPLAN;
}

static bool
is_member(const struct k3_comm *comm, uint32_t rank)
{
	for (uint32_t i = 0; i < comm->n_members; i++)
		if (comm->member[i] == rank)
			return true;
	return false;
}

int
k3_order_add(struct k3_order *order, const struct k3_plan *plan, uint32_t rank)
{
	struct rank *r = &order->rank[rank];
	int ret = K3_OK;

	r->known = true;
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		if (t->comm < 0)
			continue;
		if (r->n == r->cap) {
			size_t cap = r->cap ? 2 * r->cap : 64;
			struct event *grown = realloc(r->event, cap * sizeof(*grown));
			if (!grown)
				return K3_ENOMEM;
			r->event = grown;
			r->cap = cap;
		}
		r->event[r->n++] = (struct event){t->op,    t->comm_dtype, t->layer, t->tile,
						  t->group, t->comm,	   t->peer,  t->count};
		order->n_events++;
	}
	/* a plan without communication may carry no table */
	if (plan->n_comms)
		ret = add_comms(order, plan, rank);
	for (size_t i = 0; i < r->n && ret == K3_OK; i++)
		if ((size_t)r->event[i].comm >= order->n_comms ||
		    !is_member(&order->comm[r->event[i].comm], rank)) {
			k3_error("planner",
				 "order: rank %u: %s on communicator %d, of which it is no member",
				 rank, k3_op_name((enum k3_op)r->event[i].op), r->event[i].comm);
			ret = K3_EPLAN;
		}
	return ret;
}

static bool
point_to_point(const struct event *e)
{
	return e->op == K3_OP_HALO_SEND || e->op == K3_OP_HALO_RECV;
}

static const char *
label(const struct event *e, char *text, size_t bytes)
{
	if (!e)
		return "nothing";
	int n = snprintf(text, bytes, "%s", k3_op_name((enum k3_op)e->op));
	const struct {
		const char *key;
		int32_t value;
	} part[] = {{"l", e->layer}, {"t", e->tile}, {"g", e->group}};
	for (size_t i = 0; i < 3; i++)
		if (part[i].value >= 0 && n > 0 && (size_t)n < bytes)
			n += snprintf(text + n, bytes - (size_t)n, " %s%d", part[i].key,
				      part[i].value);
	if (n > 0 && (size_t)n < bytes)
		snprintf(text + n, bytes - (size_t)n, " (%llu of type %u)",
			 (unsigned long long)e->count, e->dtype);
	return text;
}

/* Next collective of a communicator from *at on; NULL at the end. */
static const struct event *
next_on(const struct rank *r, int32_t comm, size_t *at)
{
	while (*at < r->n) {
		const struct event *e = &r->event[(*at)++];
		if (e->comm == comm && !point_to_point(e))
			return e;
	}
	return NULL;
}

static bool
alike(const struct event *a, const struct event *b)
{
	if (!a || !b)
		return a == b;
	return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->peer == b->peer;
}

/* Two members' sequences on a communicator. */
static int
compare_ranks(const struct k3_order *o, int32_t comm, uint32_t one, uint32_t two)
{
	size_t at_one = 0, at_two = 0;

	for (size_t nth = 1;; nth++) {
		const struct event *a = next_on(&o->rank[one], comm, &at_one),
				   *b = next_on(&o->rank[two], comm, &at_two);
		char text_a[96], text_b[96];
		if (!alike(a, b)) {
			k3_error("planner",
				 "order: communicator %s, operation %zu: rank %u does %s, rank %u "
				 "does %s",
				 o->comm[comm].name, nth, one, label(a, text_a, sizeof(text_a)),
				 two, label(b, text_b, sizeof(text_b)));
			return K3_EPLAN;
		}
		if (!a)
			return K3_OK;
	}
}

static int
check_sequences(const struct k3_order *o)
{
	for (size_t c = 0; c < o->n_comms; c++) {
		const struct k3_comm *comm = &o->comm[c];
		int64_t first = -1;
		for (uint32_t i = 0; i < comm->n_members; i++) {
			uint32_t r = comm->member[i];
			if (r >= o->n_ranks || !o->rank[r].known) {
				if (o->partial)
					continue;
				k3_error("planner", "order: communicator %s: rank %u has no plan",
					 comm->name, r);
				return K3_EPLAN;
			}
			int ret = first < 0 ? K3_OK
					    : compare_ranks(o, (int32_t)c, (uint32_t)first, r);
			if (ret != K3_OK)
				return ret;
			if (first < 0)
				first = r;
		}
	}
	return K3_OK;
}

static const struct event *
current(const struct k3_order *o, uint32_t rank)
{
	const struct rank *r = &o->rank[rank];

	return r->at < r->n ? &r->event[r->at] : NULL;
}

static bool
absent(const struct k3_order *o, uint32_t rank)
{
	return rank >= o->n_ranks || (o->partial && !o->rank[rank].known);
}

/* Does the partner stand at the other half of this transfer? */
static bool
meets(const struct event *mine, uint32_t rank, const struct event *other)
{
	return other && point_to_point(other) && other->op != mine->op &&
	       other->comm == mine->comm && other->peer == (int32_t)rank &&
	       other->count == mine->count && other->dtype == mine->dtype;
}

/* A rank that `rank` waits for, -1 when its current task can be done. */
static int64_t
waits_for(const struct k3_order *o, uint32_t rank)
{
	const struct event *e = current(o, rank);
	const struct k3_comm *comm = &o->comm[e->comm];

	if (point_to_point(e))
		return absent(o, (uint32_t)e->peer) || meets(e, rank, current(o, (uint32_t)e->peer))
			       ? -1
			       : e->peer;
	for (uint32_t i = 0; i < comm->n_members; i++) {
		uint32_t r = comm->member[i];
		const struct event *other = absent(o, r) ? e : current(o, r);
		if (!other || other->comm != e->comm || !alike(other, e))
			return r;
	}
	return -1;
}

/* Follows who waits for whom until a rank comes again. */
static int
report_cycle(const struct k3_order *o, uint32_t rank)
{
	char text[1024] = "", task[96];
	size_t n = 0;

	for (uint32_t step = 0; step <= o->n_ranks && n < sizeof(text); step++) {
		const struct event *e = current(o, rank);
		int64_t next = e ? waits_for(o, rank) : -1;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%srank %u %s %s",
				      step ? "; " : "", rank, e ? "waits in" : "has ended, after",
				      e ? label(e, task, sizeof(task)) : "its last task");
		if (next < 0)
			break;
		if (n < sizeof(text))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " for rank %u",
					      (uint32_t)next);
		rank = (uint32_t)next;
	}
	k3_error("planner", "order: the ranks would wait for ever: %s", text);
	return K3_EPLAN;
}

/* Members of a communicator that take part, and how many have arrived at its next collective. */
struct group {
	uint32_t *member;
	uint32_t n, arrived;
};

struct simulation {
	const struct k3_order *o;
	struct group *group; /* [n_comms] */
	uint32_t *list;	     /* ranks to look at; each is there once */
	size_t n_list;
	bool *listed, *arrived; /* [n_ranks] on the list; counted at its current collective */
};

static void
go_on(struct simulation *s, uint32_t rank)
{
	s->o->rank[rank].at++;
	s->arrived[rank] = false;
	if (!s->listed[rank]) {
		s->listed[rank] = true;
		s->list[s->n_list++] = rank;
	}
}

/* A rank is looked at when it arrives at a task; the last to arrive completes it.  The sequences
 * were compared before, so members that have arrived are at the same collective. */
static void
look_at(struct simulation *s, uint32_t rank)
{
	const struct event *e = current(s->o, rank);

	if (!e)
		return;
	if (point_to_point(e)) {
		uint32_t peer = (uint32_t)e->peer;
		if (absent(s->o, peer)) {
			go_on(s, rank);
		} else if (meets(e, rank, current(s->o, peer))) {
			go_on(s, rank);
			go_on(s, peer);
		}
		return;
	}
	struct group *g = &s->group[e->comm];
	if (s->arrived[rank])
		return;
	s->arrived[rank] = true;
	if (++g->arrived < g->n)
		return;
	g->arrived = 0;
	for (uint32_t i = 0; i < g->n; i++)
		go_on(s, g->member[i]);
}

static int
simulation_init(struct simulation *s, const struct k3_order *o)
{
	*s = (struct simulation){
		.o = o,
		.group = calloc(o->n_comms + 1, sizeof(*s->group)),
		.list = malloc((o->n_ranks + 1) * sizeof(*s->list)),
		.listed = calloc(o->n_ranks + 1, 1),
		.arrived = calloc(o->n_ranks + 1, 1),
	};
	if (!s->group || !s->list || !s->listed || !s->arrived)
		return K3_ENOMEM;
	for (size_t c = 0; c < o->n_comms; c++) {
		struct group *g = &s->group[c];
		g->member = malloc((o->comm[c].n_members + 1) * sizeof(*g->member));
		if (!g->member)
			return K3_ENOMEM;
		for (uint32_t i = 0; i < o->comm[c].n_members; i++)
			if (!absent(o, o->comm[c].member[i]))
				g->member[g->n++] = o->comm[c].member[i];
	}
	for (uint32_t r = 0; r < o->n_ranks; r++) {
		o->rank[r].at = 0;
		s->listed[r] = true;
		s->list[s->n_list++] = r;
	}
	return K3_OK;
}

static void
simulation_fini(struct simulation *s)
{
	for (size_t c = 0; s->group && c < s->o->n_comms; c++)
		free(s->group[c].member);
	free(s->group);
	free(s->list);
	free(s->listed);
	free(s->arrived);
}

static int
simulate(const struct k3_order *o)
{
	struct simulation s;
	int ret = K3_OK;

	K3_TRY(simulation_init(&s, o));
	while (s.n_list) {
		uint32_t r = s.list[--s.n_list];
		s.listed[r] = false;
		look_at(&s, r);
	}
	for (uint32_t r = 0; r < o->n_ranks; r++)
		if (current(o, r))
			K3_TRY(report_cycle(o, r));
out:
	simulation_fini(&s);
	return ret;
}

int
k3_order_check(const struct k3_order *order)
{
	int ret = check_sequences(order);

	return ret != K3_OK ? ret : simulate(order);
}

int
k3_plan_check_order(struct k3_plan *const *plans, size_t n)
{
	struct k3_order *order = k3_order_create((uint32_t)n, false);
	int ret = K3_OK;

	if (!order)
		return K3_ENOMEM;
	for (uint32_t r = 0; r < n; r++)
		K3_TRY(k3_order_add(order, plans[r], r));
	K3_TRY(k3_order_check(order));
out:
	k3_order_destroy(order);
	return ret;
}
