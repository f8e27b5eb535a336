/* A session of a golden file, without the verdict. */
#ifndef K3_TESTS_SPINE_H
#define K3_TESTS_SPINE_H
#include "../drivers/verify.h"

struct spine {
	struct k3_session session;
	struct k3_st *st;
	struct k3_plan *plan;
	int32_t *ids, *labels, *docs;
	size_t t;
};

void spine_open(struct spine *spine, const char *path, uint32_t tile, uint32_t window);
void spine_close(struct spine *spine);
/** Plans the first t tokens and runs them forward and backward. */
void spine_run(struct spine *spine, size_t t);

#endif
