/* Reads the header's event definitions and takes fields by their names, as a viewer does.  The
 * trap: a reader made for our writer alone would accept what others refuse, so numbers of events,
 * order of fields and aliases are taken from the file. */
#include "paje.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "scratch.h"

enum { MOST_EVENTS = 32, MOST_FIELDS = 12 };
enum kind { CONTAINER_TYPE, STATE_TYPE, VALUE, CONTAINER };

struct paje_entity {
	enum kind kind;
	const char *alias, *name, *parent, *color;
	bool open;
	/* of a container: the state shown now */
	const char *shown, *shown_color;
	double since;
};

struct event {
	char name[40];
	int n_fields;
	char field[MOST_FIELDS][16];
};

struct reader {
	struct paje *paje;
	struct event event[MOST_EVENTS];
	struct event *defining;
	double time;
	size_t line;
	/* fields of the line at hand */
	const struct event *now;
	char *value[MOST_FIELDS];
};

#define SOUND(r, cond, ...)                                                                        \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			char why[200];                                                             \
			snprintf(why, sizeof(why), __VA_ARGS__);                                   \
			cr_assert_fail("line %zu: %s", (r)->line, why);                            \
		}                                                                                  \
	} while (0)

/* Open addressing over alias and kind. */
static size_t
slot_of(const struct paje *p, enum kind kind, const char *alias)
{
	size_t at = k3_fnv1a(K3_FNV_START + (uint64_t)kind, alias, strlen(alias)) & (p->n_hash - 1);

	while (p->hash[at] != SIZE_MAX && (p->entity[p->hash[at]].kind != kind ||
					   strcmp(p->entity[p->hash[at]].alias, alias) != 0))
		at = (at + 1) & (p->n_hash - 1);
	return at;
}

static struct paje_entity *
find(const struct paje *p, enum kind kind, const char *alias)
{
	size_t at = p->hash[slot_of(p, kind, alias)];

	return at == SIZE_MAX ? NULL : &p->entity[at];
}

static void
grow(struct paje *p)
{
	p->cap_entities = p->cap_entities ? 2 * p->cap_entities : 256;
	p->entity = realloc(p->entity, p->cap_entities * sizeof(*p->entity));
	free(p->hash);
	p->n_hash = 4 * p->cap_entities;
	p->hash = malloc(p->n_hash * sizeof(*p->hash));
	memset(p->hash, 0xff, p->n_hash * sizeof(*p->hash));
	for (size_t i = 0; i < p->n_entities; i++)
		p->hash[slot_of(p, p->entity[i].kind, p->entity[i].alias)] = i;
}

static char *
field(const struct reader *r, const char *name)
{
	for (int i = 0; i < r->now->n_fields; i++)
		if (strcmp(r->now->field[i], name) == 0)
			return r->value[i];
	SOUND(r, false, "%s has no field %s", r->now->name, name);
	return NULL;
}

static void
add(struct reader *r, enum kind kind, const char *parent, const char *color)
{
	struct paje *p = r->paje;
	const char *alias = field(r, "Alias");

	SOUND(r, !find(p, kind, alias), "%s is defined twice", alias);
	if (p->n_entities == p->cap_entities)
		grow(p);
	p->entity[p->n_entities] = (struct paje_entity){.kind = kind,
							.alias = alias,
							.name = field(r, "Name"),
							.parent = parent,
							.color = color,
							.open = true};
	p->hash[slot_of(p, kind, alias)] = p->n_entities;
	p->n_entities++;
}

static void
close_state(struct reader *r, struct paje_entity *c)
{
	struct paje *p = r->paje;

	if (!c->shown)
		return;
	if (p->n_states == p->cap_states) {
		p->cap_states = p->cap_states ? 2 * p->cap_states : 256;
		p->state = realloc(p->state, p->cap_states * sizeof(*p->state));
	}
	p->state[p->n_states++] =
		(struct paje_state){c->name, c->shown, c->shown_color, c->since, r->time};
	c->shown = NULL;
}

static void
take_time(struct reader *r)
{
	char *end;
	double t = strtod(field(r, "Time"), &end);

	SOUND(r, *end == 0 && t >= r->time, "time %s after %.9g", field(r, "Time"), r->time);
	if (r->paje->begin < 0)
		r->paje->begin = t;
	r->time = r->paje->end = t;
}

static void
set_state(struct reader *r)
{
	struct paje *p = r->paje;
	struct paje_entity *c = find(p, CONTAINER, field(r, "Container")),
			   *type = find(p, STATE_TYPE, field(r, "Type")),
			   *value = find(p, VALUE, field(r, "Value"));

	SOUND(r, c && c->open && type && value, "unknown %s, %s or %s", field(r, "Container"),
	      field(r, "Type"), field(r, "Value"));
	SOUND(r, strcmp(value->parent, type->alias) == 0 && strcmp(c->parent, type->parent) == 0,
	      "%s does not belong to %s", value->name, c->name);
	close_state(r, c);
	c->shown = value->name;
	c->shown_color = value->color;
	c->since = r->time;
}

static void
destroy(struct reader *r)
{
	struct paje_entity *c = find(r->paje, CONTAINER, field(r, "Name"));

	SOUND(r, c && c->open, "no container %s", field(r, "Name"));
	close_state(r, c);
	c->open = false;
}

static void
handle(struct reader *r)
{
	struct paje *p = r->paje;
	const char *name = r->now->name;

	if (strcmp(name, "PajeDefineContainerType") == 0) {
		SOUND(r,
		      strcmp(field(r, "Type"), "0") == 0 ||
			      find(p, CONTAINER_TYPE, field(r, "Type")),
		      "no type %s", field(r, "Type"));
		add(r, CONTAINER_TYPE, field(r, "Type"), NULL);
	} else if (strcmp(name, "PajeDefineStateType") == 0) {
		SOUND(r, find(p, CONTAINER_TYPE, field(r, "Type")), "no type %s", field(r, "Type"));
		add(r, STATE_TYPE, field(r, "Type"), NULL);
	} else if (strcmp(name, "PajeDefineEntityValue") == 0) {
		SOUND(r, find(p, STATE_TYPE, field(r, "Type")), "no type %s", field(r, "Type"));
		add(r, VALUE, field(r, "Type"), field(r, "Color"));
	} else if (strcmp(name, "PajeCreateContainer") == 0) {
		take_time(r);
		SOUND(r, find(p, CONTAINER_TYPE, field(r, "Type")), "no type %s", field(r, "Type"));
		SOUND(r,
		      strcmp(field(r, "Container"), "0") == 0 ||
			      find(p, CONTAINER, field(r, "Container")),
		      "no container %s", field(r, "Container"));
		add(r, CONTAINER, field(r, "Type"), NULL);
	} else if (strcmp(name, "PajeSetState") == 0) {
		take_time(r);
		set_state(r);
	} else if (strcmp(name, "PajeDestroyContainer") == 0) {
		take_time(r);
		destroy(r);
	} else {
		SOUND(r, false, "unknown event %s", name);
	}
}

/* Words of a line; quotes hold blanks. */
static void
data_line(struct reader *r, char *p)
{
	char *next;
	long event = strtol(p, &next, 10);
	int n = 0;

	SOUND(r, next > p && event >= 0 && event < MOST_EVENTS && r->event[event].name[0],
	      "no event %s", p);
	r->now = &r->event[event];
	for (p = next + strspn(next, " "); *p; p = next + strspn(next, " ")) {
		bool quoted = *p == '"';
		p += quoted;
		next = p + strcspn(p, quoted ? "\"" : " ");
		SOUND(r, !quoted || *next == '"', "a quote is not closed");
		SOUND(r, n < r->now->n_fields, "too many fields");
		r->value[n++] = p;
		if (*next)
			*next++ = 0;
	}
	SOUND(r, n == r->now->n_fields, "%d fields instead of %d", n, r->now->n_fields);
	handle(r);
}

/* "%EventDef Name 3", "%  Field type", "%EndEventDef" */
static void
definition_line(struct reader *r, const char *p)
{
	char word[40], second[40];
	unsigned number;

	if (sscanf(p, "%%EventDef %39s %u", word, &number) == 2) {
		SOUND(r, !r->defining && number < MOST_EVENTS && !r->event[number].name[0],
		      "event %u cannot be defined here", number);
		r->defining = &r->event[number];
		snprintf(r->defining->name, sizeof(r->defining->name), "%s", word);
	} else if (strcmp(p, "%EndEventDef") == 0) {
		SOUND(r, r->defining, "no event is being defined");
		r->defining = NULL;
	} else {
		SOUND(r,
		      r->defining && sscanf(p, "%% %15s %15s", word, second) == 2 &&
			      r->defining->n_fields < MOST_FIELDS,
		      "not a field: %s", p);
		snprintf(r->defining->field[r->defining->n_fields++], sizeof(r->defining->field[0]),
			 "%.15s", word);
	}
}

void
paje_read(struct paje *paje, const char *name)
{
	struct reader r = {.paje = paje};
	size_t bytes;

	memset(paje, 0, sizeof(*paje));
	paje->begin = -1;
	paje->text = (char *)scratch_read(name, &bytes);
	grow(paje);
	cr_assert(bytes > 0 && paje->text[bytes - 1] == '\n', "%s is cut", name);
	for (char *p = paje->text, *end; p < paje->text + bytes; p = end + 1) {
		end = strchr(p, '\n');
		cr_assert_not_null(end, "a byte 0 in %s", name);
		*end = 0;
		r.line++;
		if (*p == '%')
			definition_line(&r, p);
		else
			data_line(&r, p);
	}
	for (size_t i = 0; i < paje->n_entities; i++)
		cr_assert(paje->entity[i].kind != CONTAINER || !paje->entity[i].open,
			  "container %s is not destroyed", paje->entity[i].name);
}

void
paje_free(struct paje *paje)
{
	free(paje->state);
	free(paje->entity);
	free(paje->hash);
	free(paje->text);
}

const struct paje_state *
paje_nth(const struct paje *paje, const char *container, size_t n)
{
	for (size_t i = 0; i < paje->n_states; i++) {
		const struct paje_state *s = &paje->state[i];
		if ((!*container || strcmp(s->container, container) == 0) &&
		    strcmp(s->value, "idle") != 0 && n-- == 0)
			return s;
	}
	return NULL;
}

size_t
paje_count(const struct paje *paje, const char *container)
{
	size_t n = 0;

	for (size_t i = 0; i < paje->n_states; i++)
		n += (!*container || strcmp(paje->state[i].container, container) == 0) &&
		     strcmp(paje->state[i].value, "idle") != 0;
	return n;
}
