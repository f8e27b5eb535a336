/* LM head and cross entropy over vocabulary blocks (model.md 7): logits block by block, statistics
 * in block order, each logit replaced by its exponential, then the gradient in place.  The trap:
 * ignored rows must be exact zeros, and the softmax needs the maximum over all blocks first. */
#include <math.h>
#include <string.h>

#include "../../common/op/loss.h"
#include "../linalg/linear.h"
#include "../vec/vec.h"

static size_t
block_cols(const struct k3_weight *w, size_t b)
{
	size_t first = b * w->block_rows;

	return first + w->block_rows < w->rows ? w->block_rows : w->rows - first;
}

struct row_stat {
	float most;  /* maximum over the vocabulary */
	double sum;  /* of exp(logit - most) */
	float label; /* logit of the label */
	int correct; /* the label is the lowest id that has the maximum */
};

static float
higher(float a, float b)
{
	return a > b ? a : b;
}

/* Maximum and label; the ids before the label are looked at apart, as ties go to them. */
static struct row_stat
row_most(void *const *buf, const struct k3_lm_head_args *a, size_t row, int32_t label)
{
	const struct k3_vec *vec = k3_vec();
	struct row_stat st = {-INFINITY, 0, 0, 0};
	size_t id = label < 0 ? 0 : (size_t)label;
	float before = -INFINITY;

	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t cols = block_cols(&a->head, b), first = b * a->head.block_rows;
		size_t cut = id <= first ? 0 : id - first < cols ? id - first : cols;
		const float *x = (const float *)buf[a->logits.first + b] + row * cols;

		before = higher(vec->largest(x, cut), before);
		st.most = higher(vec->largest(x + cut, cols - cut), st.most);
		if (label >= 0 && id >= first && id < first + cols)
			st.label = x[cut];
	}
	st.correct = label >= 0 && st.label == st.most && before < st.most;
	st.most = higher(before, st.most);
	return st;
}

/* The sum too; with a gradient to follow the logits of a row become exp(logit - most). */
static struct row_stat
row_statistics(void *const *buf, const struct k3_lm_head_args *a, size_t row, int32_t label)
{
	struct row_stat st = row_most(buf, a, row, label);

	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t cols = block_cols(&a->head, b);
		float *x = (float *)buf[a->logits.first + b] + row * cols;

		st.sum += k3_vec()->exp_sum(a->grad ? x : NULL, x, st.most, cols);
	}
	return st;
}

/* Exponentials of a row become the gradients of its logits. */
static void
row_gradient(void *const *buf, const struct k3_lm_head_args *a, size_t row, int32_t label,
	     const struct row_stat *st, double inv_n)
{
	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t cols = block_cols(&a->head, b), first = b * a->head.block_rows;
		float *x = (float *)buf[a->logits.first + b] + row * cols;
		if (label < 0) {
			memset(x, 0, cols * sizeof(*x));
			continue;
		}
		k3_vec()->scale(x, (float)(inv_n / st->sum), x, cols);
		if ((size_t)label >= first && (size_t)label < first + cols)
			x[(size_t)label - first] -= (float)inv_n;
	}
}

static void
keep_logits(float *keep, void *const *buf, const struct k3_lm_head_args *a)
{
	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t cols = block_cols(&a->head, b);
		const float *x = buf[a->logits.first + b];
		for (size_t i = 0; i < a->rows; i++)
			memcpy(keep + i * a->head.rows + b * a->head.block_rows, x + i * cols,
			       cols * sizeof(*x));
	}
}

void
k3_lm_head_ce_cpu_f32(void *const *buf, const struct k3_lm_head_args *a)
{
	float *tstat = buf[0];
	const float *h = (const float *)buf[1] + a->r0 * a->d;
	const int32_t *labels = (const int32_t *)buf[2] + a->r0;
	const double *hyper = buf[3];

	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t first = b * a->head.block_rows, cols = block_cols(&a->head, b);
		k3_linear_fwd(buf[a->logits.first + b], cols, 0, h, a->d, buf, &a->head, first,
			      first + cols, a->rows);
	}
	if (a->keep.n)
		keep_logits(buf[a->keep.first], buf, a);
	for (size_t i = 0; i < a->rows; i++) {
		struct row_stat st = row_statistics(buf, a, i, labels[i]);
		double loss = log(st.sum) + ((double)st.most - (double)st.label);
		tstat[2 * i] = labels[i] < 0 ? 0.0f : (float)loss;
		tstat[2 * i + 1] = st.correct ? 1.0f : 0.0f;
		if (a->grad)
			row_gradient(buf, a, i, labels[i], &st, hyper[K3_HYPER_INV_N]);
	}
}

void
k3_lm_head_dx_cpu_f32(void *const *buf, const struct k3_lm_head_args *a)
{
	float *dh = (float *)buf[0] + a->r0 * a->d;

	for (uint32_t b = 0; b < a->logits.n; b++) {
		size_t first = b * a->head.block_rows, cols = block_cols(&a->head, b);
		k3_linear_dx(dh, a->d, b ? 1.0f : 0.0f, buf[a->logits.first + b], cols, buf,
			     &a->head, first, first + cols, a->rows);
	}
}

void
k3_lm_head_dw_cpu_f32(void *const *buf, const struct k3_lm_head_args *a)
{
	const float *h = (const float *)buf[1] + a->r0 * a->d;

	k3_linear_dw(buf, &a->head, 0, a->head.rows, buf[0], a->head.rows, h, a->d, a->rows);
}
