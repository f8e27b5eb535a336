/* Sums of a tile's token losses in double, in row order: numerators and counts apart, so that means
 * are taken once, over the step. */
#include <string.h>

#include "../../common/op/loss.h"

void
k3_loss_sum_cpu(void *const *buf, const struct k3_loss_sum_args *a)
{
	double *acc = buf[0];
	const int32_t *labels = buf[1], *doc = k3_tile_doc(buf[2]);

	if (!a->accumulate)
		memset(acc, 0, K3_LOSS_LEN * sizeof(*acc));
	for (size_t i = 0; i < a->t; i++) {
		const float *tstat = (const float *)buf[a->tstat.first + i / a->rows_each] +
				     2 * (i % a->rows_each);
		if (doc[i])
			acc[K3_LOSS_TOKENS] += 1;
		if (labels[i] < 0)
			continue;
		acc[K3_LOSS_SUM] += (double)tstat[0];
		acc[K3_LOSS_CORRECT] += (double)tstat[1];
		acc[K3_LOSS_VALID] += 1;
	}
}
