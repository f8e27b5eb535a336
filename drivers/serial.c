/* Buffers and calls without StarPU.  The codelet's own function is called, so that what is timed is
 * what a worker runs; it reads nothing of its interfaces but the pointer.  The trap: other programs
 * share the machine, so the clock is this thread's own, which stands while they run. */
#include "serial.h"

#include <stdlib.h>
#include <string.h>

#include "../common/clock.h"
#include "../common/status.h"
#include "../tasks/codelets.h"
#include "../tasks/convert.h"

enum { ALIGNMENT = 256 }; /* as tasks/runtime.c asks of StarPU */

struct place {
	size_t bytes;
	uint32_t ordinal;
	void *data;
};

struct k3_serial {
	const struct k3_model *model;
	void **persist; /* [n_persist] */
	size_t n_places;
	struct place *place; /* slots of all plans so far */
	size_t *slot;	     /* [slots of the plan at hand] place of each */
	void *wide;	     /* scratch for the largest task of that plan */
	k3_serial_comm *comm;
	void *comm_arg;
};

int
k3_serial_create(struct k3_serial **serial, const struct k3_model *model)
{
	struct k3_serial *s = calloc(1, sizeof(*s));

	*serial = s;
	if (!s)
		return K3_ENOMEM;
	s->model = model;
	s->persist = calloc(model->n_persist + 1, sizeof(*s->persist));
	if (s->persist)
		return K3_OK;
	free(s);
	*serial = NULL;
	return K3_ENOMEM;
}

/* The place that every plan of the model knows by this class and ordinal. */
static int
find_place(struct k3_serial *s, const struct k3_slot *slot, size_t *at)
{
	for (*at = 0; *at < s->n_places; ++*at)
		if (s->place[*at].bytes == slot->bytes && s->place[*at].ordinal == slot->ordinal)
			return K3_OK;
	struct place *grown = realloc(s->place, (s->n_places + 1) * sizeof(*grown));
	if (!grown)
		return K3_ENOMEM;
	s->place = grown;
	s->place[s->n_places++] = (struct place){.bytes = slot->bytes, .ordinal = slot->ordinal};
	return K3_OK;
}

/* Finds the plan's slots among the places. */
static int
prepare(struct k3_serial *s, const struct k3_plan *plan)
{
	size_t most = 0;
	int ret = K3_OK;

	free(s->slot);
	free(s->wide);
	for (size_t i = 0; i < plan->n_tasks; i++)
		most = plan->task[i].wide_bytes > most ? plan->task[i].wide_bytes : most;
	s->wide = aligned_alloc(ALIGNMENT, most / ALIGNMENT * ALIGNMENT + ALIGNMENT);
	s->slot = malloc((plan->n_slots + 1) * sizeof(*s->slot));
	if (!s->slot || !s->wide)
		return K3_ENOMEM;
	for (size_t i = 0; i < plan->n_slots && ret == K3_OK; i++)
		ret = find_place(s, &plan->slot[i], &s->slot[i]);
	return ret;
}

void
k3_serial_destroy(struct k3_serial *serial)
{
	if (!serial)
		return;
	for (size_t i = 0; i < serial->n_places; i++)
		free(serial->place[i].data);
	for (size_t i = 0; i < serial->model->n_persist; i++)
		free(serial->persist[i]);
	free(serial->place);
	free(serial->slot);
	free(serial->wide);
	free(serial->persist);
	free(serial);
}

void
k3_serial_on_comm(struct k3_serial *serial, k3_serial_comm *comm, void *arg)
{
	serial->comm = comm;
	serial->comm_arg = arg;
}

/* Made of zeros when it is not there yet. */
static void *
make(void **at, size_t bytes)
{
	bytes = bytes / ALIGNMENT * ALIGNMENT + ALIGNMENT;
	if (!*at && (*at = aligned_alloc(ALIGNMENT, bytes)))
		memset(*at, 0, bytes);
	return *at;
}

void *
k3_serial_datum(struct k3_serial *serial, uint32_t datum)
{
	const struct k3_datum *persist = serial->model->persist;
	uint32_t leader = k3_datum_leader(persist, datum);
	char *p = make(&serial->persist[leader], k3_datum_place_bytes(&persist[leader]));

	return p ? p + persist[datum].at : NULL;
}

/* Of the handle that holds a datum. */
static void *
buffer_of(struct k3_serial *s, const struct k3_plan *plan, uint32_t datum)
{
	uint32_t leader = k3_datum_leader(plan->data, datum);
	const struct k3_datum *d = &plan->data[leader];
	struct place *place = d->slot < 0 ? NULL : &s->place[s->slot[d->slot]];

	return place ? make(&place->data, place->bytes)
		     : make(&s->persist[leader], k3_datum_place_bytes(d));
}

double
k3i_thread_us(void)
{
	return 1e6 * k3_clock_s(CLOCK_THREAD_CPUTIME_ID);
}

static int
run_task(struct k3_serial *s, const struct k3_plan *plan, const struct k3_task *t,
	 const struct k3_host_batch *batch, const double *hyper, double *us)
{
	const struct starpu_codelet *cl = k3_codelet((enum k3_op)t->op);
	struct starpu_vector_interface vector[t->n_access + 1];
	void *buffers[t->n_access + 1], *buf[t->n_access + 1];
	void *arg = (void *)(uintptr_t)t->args;
	struct k3_batch_load_call load = {.args = t->args};
	struct k3_vit_load_call patches = {.args = t->args};
	struct k3_step_load_call step;

	if (t->comm >= 0 ? !s->comm : !cl)
		return K3_ENODEV;
	memset(vector, 0, sizeof(vector));
	for (uint32_t i = 0; i < t->n_access; i++) {
		const struct k3_access *a = &plan->access[t->first_access + i];
		void *p = buffer_of(s, plan, a->datum);
		if (!p)
			return K3_ENOMEM;
		vector[a->buffer].ptr = (uintptr_t)p;
		buffers[a->buffer] = &vector[a->buffer];
		buf[i] = (char *)p + plan->data[a->datum].at;
	}
	if (t->comm >= 0) {
		s->comm(s->comm_arg, t, buf);
		return K3_OK;
	}
	if (t->op == K3_OP_BATCH_LOAD) {
		load.batch = *batch;
		arg = &load;
	} else if (t->op == K3_OP_VIT_LOAD) {
		patches.batch = *batch;
		arg = &patches;
	} else if (t->op == K3_OP_STEP_LOAD) {
		memcpy(step.hyper, hyper, sizeof(step.hyper));
		arg = &step;
	}
	k3_convert_for(t, s->wide);
	double start = k3i_thread_us();
	cl->cpu_funcs[0](buffers, arg);
	if (us)
		*us = k3i_thread_us() - start;
	k3_convert_for(NULL, NULL);
	return K3_OK;
}

int
k3_serial_run(struct k3_serial *serial, const struct k3_plan *plan,
	      const struct k3_host_batch *batch, const double *hyper, double *us)
{
	int ret;

	K3_TRY(prepare(serial, plan));
	for (size_t i = 0; i < plan->n_tasks; i++)
		K3_TRY(run_task(serial, plan, &plan->task[i], batch, hyper, us ? us + i : NULL));
out:
	return ret;
}
