/* A small reader of Paje files, as strict as the tools that show them: definitions before use,
 * times that never go back, every container closed. */
#ifndef K3_TESTS_PAJE_H
#define K3_TESTS_PAJE_H
#include <stddef.h>

struct paje_state {
	const char *container, *value, *color; /* names, not aliases */
	double begin, end;		       /* as in the file */
};

struct paje {
	struct paje_state *state; /* in the order of their ends; those of a container in order */
	size_t n_states;
	double begin, end;
	char *text; /* everything points in here */
	struct paje_entity *entity;
	size_t n_entities, cap_entities, cap_states;
	size_t *hash, n_hash;
};

/** Reads a file of the scratch folder; fails the test with the line when it is not sound. */
void paje_read(struct paje *paje, const char *name);
void paje_free(struct paje *paje);
/** States of a container ("" for all) whose value is not idle. */
size_t paje_count(const struct paje *paje, const char *container);
/** The n-th of them, NULL when there are fewer. */
const struct paje_state *paje_nth(const struct paje *paje, const char *container, size_t n);

#endif
