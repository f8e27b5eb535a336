/* With four unknowns every set of terms can be tried: the best of the fifteen whose solution has no
 * negative term is the constrained minimum.  The trap: flops and bytes of one model at many tile
 * sizes lie on a line with the constant, so terms can stand for each other; a set without a unique
 * solution is left out, and a term more must earn its place. */
#include "rate_fit.h"

#include <math.h>
#include <string.h>

enum { TERMS = 4, SETS = 1 << TERMS, RUNTIME_US = 10 };

/* x of a x = y for the terms of the set; false when a pivot vanishes. */
static bool
solve(double x[TERMS], double a[TERMS][TERMS], double y[TERMS], unsigned set)
{
	const double least = 1e-10;
	double m[TERMS][TERMS + 1];
	size_t at[TERMS], n = 0;

	for (size_t i = 0; i < TERMS; i++)
		if (set >> i & 1)
			at[n++] = i;
	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < n; k++)
			m[i][k] = a[at[i]][at[k]];
		m[i][n] = y[at[i]];
	}
	/* symmetric and positive: no pivoting needed; scaled columns have a diagonal near 1 */
	for (size_t i = 0; i < n; i++) {
		if (!(m[i][i] > least * a[at[i]][at[i]]))
			return false;
		for (size_t r = i + 1; r < n; r++) {
			double factor = m[r][i] / m[i][i];
			for (size_t k = i; k <= n; k++)
				m[r][k] -= factor * m[i][k];
		}
	}
	memset(x, 0, TERMS * sizeof(*x));
	for (size_t i = n; i-- > 0;) {
		double sum = m[i][n];
		for (size_t k = i + 1; k < n; k++)
			sum -= m[i][k] * x[at[k]];
		x[at[i]] = sum / m[i][i];
	}
	return true;
}

/* A sample's terms and its time, both over the time that counts: the terms should add up to it. */
static double
terms_of(double term[TERMS], const struct k3_rate_sample *s)
{
	double unit = s->us + RUNTIME_US;

	term[0] = 1 / unit;
	term[1] = s->flops / unit;
	term[2] = (s->bytes - s->param_bytes) / unit;
	term[3] = s->param_bytes / unit;
	return s->us / unit;
}

static double
sum_of_squares(const double x[TERMS], const struct k3_rate_sample *sample, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++) {
		double term[TERMS], error;
		if (!(sample[i].us > 0))
			continue;
		error = -terms_of(term, &sample[i]);
		for (size_t k = 0; k < TERMS; k++)
			error += x[k] * term[k];
		sum += error * error;
	}
	return sum;
}

double
k3_rate_fit(struct k3_rate *rate, const struct k3_rate_sample *sample, size_t n)
{
	double a[TERMS][TERMS] = {{0}}, y[TERMS] = {0}, best[TERMS] = {0}, least = INFINITY;
	const double worth = 0.9; /* of the squares without it: what one term more must bring */
	size_t used = 0;

	for (size_t i = 0; i < n; i++) {
		double term[TERMS], us;
		if (!(sample[i].us > 0))
			continue;
		us = terms_of(term, &sample[i]);
		for (size_t k = 0; k < TERMS; k++) {
			for (size_t l = 0; l < TERMS; l++)
				a[k][l] += term[k] * term[l];
			y[k] += us * term[k];
		}
		used++;
	}
	for (int terms = 1; used > 0 && terms <= TERMS; terms++) {
		double before = least;
		for (unsigned set = 1; set < SETS; set++) {
			double x[TERMS], sum;
			if (__builtin_popcount(set) != terms || !solve(x, a, y, set) || x[0] < 0 ||
			    x[1] < 0 || x[2] < 0 || x[3] < 0)
				continue;
			sum = sum_of_squares(x, sample, n);
			if (sum < least && sum < worth * before) {
				least = sum;
				memcpy(best, x, sizeof(best));
			}
		}
	}
	if (!(least < INFINITY))
		return -1;
	*rate = (struct k3_rate){.call_us = best[0],
				 .flops_per_us = best[1] > 0 ? 1 / best[1] : 0,
				 .bytes_per_us = best[2] > 0 ? 1 / best[2] : 0,
				 .param_bytes_per_us = best[3] > 0 ? 1 / best[3] : 0};
	return sqrt(least / (double)used);
}
