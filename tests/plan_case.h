/* What the planner's tests share: hand-made plans, models of preset tiny on a mesh, what was
 * logged. */
#ifndef K3_TESTS_PLAN_CASE_H
#define K3_TESTS_PLAN_CASE_H
#include "../planner/plan_check.h"

/* A plan made by hand, on a model without parameters: all data are short-lived. */
struct hand {
	struct k3_model model;
	struct k3_plan plan;
	struct k3_datum data[32];
	struct k3_task task[32];
	struct k3_access access[128];
	struct k3_slot slot[32];
	struct k3_comm comm[4];
	uint32_t member[4][8];
};

void hand_init(struct hand *h);
/** A datum of 256 bytes in slot `slot` that lives from first to last. */
uint32_t hand_data(struct hand *h, const char *what, int32_t slot, uint32_t first, uint32_t last);
/** A compute task with one access for each pair (datum, mode) of the text "d:m", e.g. "0:W 1:R";
 * costs cost_us. */
void hand_task(struct hand *h, const char *name, const char *accesses, double cost_us);
/** A communicator of the ranks listed; its index. */
int32_t hand_group(struct hand *h, uint32_t n, const uint32_t *members);
/** A communication task without data; peer -1: collective. */
void hand_comm(struct hand *h, enum k3_op op, int32_t comm, int32_t peer, uint64_t count);

/** Model of preset tiny for a rank of a mesh ("cp=2"); options may be NULL, of their mesh `forced`
 * alone counts. Fails the test when it can't. */
struct k3_model *case_model(const char *mesh, uint32_t rank, const struct k3_plan_options *options);
/** Training plan of a microbatch whose documents have the given lengths, zeros for holes: "5 -3 5"
 * is document, hole, document. */
struct k3_plan *case_plan(const struct k3_model *model, const char *documents, bool first);
/** Tasks of an operation. */
size_t case_count(const struct k3_plan *plan, enum k3_op op);
/** The ids that case_plan makes, malloc'ed. */
int32_t *case_documents(const char *documents, size_t *n_tokens);

/** Builds, checks and orders the step (microbatches and end) of every rank; documents of
 * data-parallel rank i: documents[i]. */
void case_prove(const char *mesh, const struct k3_plan_options *options,
		const char *const *documents, int microbatches);

/** Catches stderr; capture_end gives the text (malloc'ed). */
void capture_begin(void);
char *capture_end(void);
/** Fails the test unless `text` holds `part`; frees text. */
void expect_message(char *text, const char *part);

#endif
