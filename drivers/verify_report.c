/* Comparison and table.  A tensor is judged when all are in, since its second chance depends on the
 * largest value of its class. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "median.h"
#include "verify.h"

static const double second_chance = 1e-7; /* of the largest value of the class */
static const double routes_differ = 0.04; /* of the free choices in bf16 */

void
k3_verify_report_init(struct k3_verify_report *report, const struct k3_verify_options *options)
{
	memset(report, 0, sizeof(*report));
	report->plant_fault = options->plant_fault;
	report->first_difference = options->first_difference;
	report->dtype = options->dtype;
	report->forced_routing = options->forced_routing;
}

static void
drop_entries(struct k3_verify_report *report)
{
	for (size_t i = 0; i < report->n; i++)
		free(report->entry[i].got);
	report->n = 0;
}

void
k3_verify_report_fini(struct k3_verify_report *report)
{
	drop_entries(report);
	free(report->entry);
	json_decref(report->deviation);
	json_decref(report->bf16_deviation);
	json_decref(report->bf16_median);
	memset(report, 0, sizeof(*report));
}

static struct k3_verify_entry *
add(struct k3_verify_report *r, const char *cls, const char *name, int place, size_t n,
    double tolerance)
{
	if (r->n == r->cap) {
		r->cap = r->cap ? 2 * r->cap : 256;
		r->entry = realloc(r->entry, r->cap * sizeof(*r->entry));
		K3_ASSERT(r->entry != NULL);
	}
	struct k3_verify_entry *e = &r->entry[r->n++];
	memset(e, 0, sizeof(*e));
	snprintf(e->cls, sizeof(e->cls), "%s", cls);
	snprintf(e->name, sizeof(e->name), "%s", name);
	e->place = place;
	e->n_elems = n;
	double own = r->deviation ? json_number_value(json_object_get(r->deviation, cls)) : 0;
	e->tolerance = r->dtype == K3_BF16   ? k3i_verify_bf16_tolerance(r, cls, tolerance)
		       : 3 * own > tolerance ? 3 * own
					     : tolerance;
	return e;
}

void
k3_verify_compare(struct k3_verify_report *report, const char *cls, const char *name, int place,
		  const double *got, const double *want, size_t n, double tolerance,
		  bool zero_by_definition)
{
	struct k3_verify_entry *e = add(report, cls, name, place, n, tolerance);
	bool plant = report->plant_fault && strcmp(report->plant_fault, name) == 0;
	double err = 0, ref = 0, factor = plant ? 1.01 : 1;

	report->planted = report->planted || plant;
	if (report->keep_values) {
		e->got = malloc((n + 1) * sizeof(*got));
		K3_ASSERT(e->got != NULL);
		memcpy(e->got, got, n * sizeof(*got));
	}
	for (size_t i = 0; i < n; i++) {
		double g = got[i] * factor, d = fabs(g - want[i]);
		if (!isfinite(g) || !isfinite(want[i])) {
			e->spoilt = true;
			snprintf(e->why, sizeof(e->why), "%snot finite at %zu",
				 isfinite(g) ? "the expected value is " : "", i);
			return;
		}
		err += d * d;
		ref += want[i] * want[i];
		e->max_abs = d > e->max_abs ? d : e->max_abs;
		e->want_max = fabs(want[i]) > e->want_max ? fabs(want[i]) : e->want_max;
	}
	e->err_square = err;
	e->want_square = ref;
	e->ratio = ref > 0 ? sqrt(err / ref) : err > 0 ? INFINITY : 0;
	if (zero_by_definition && e->want_max == 0 && e->max_abs > 0) {
		e->spoilt = true;
		snprintf(e->why, sizeof(e->why), "must be exactly 0");
	}
}

void
k3_verify_compare_one(struct k3_verify_report *report, const char *cls, const char *name,
		      double got, double want, double tolerance)
{
	k3_verify_compare(report, cls, name, K3_PLACE_NONE, &got, &want, 1, tolerance, false);
}

void
k3_verify_compare_ints(struct k3_verify_report *report, const char *cls, const char *name,
		       int place, const int32_t *got, const int32_t *want, size_t n)
{
	struct k3_verify_entry *e = add(report, cls, name, place, n, 0);
	size_t differ = 0, first = 0;

	e->tolerance = report->dtype == K3_BF16 && !report->forced_routing ? routes_differ : 0;
	for (size_t i = n; i-- > 0;)
		if (got[i] != want[i]) {
			differ++;
			first = i;
		}
	e->ratio = n ? (double)differ / (double)n : 0;
	if (differ) {
		e->spoilt = e->ratio > e->tolerance;
		snprintf(e->why, sizeof(e->why), "%zu differ, first at %zu: %d, want %d", differ,
			 first, got[first], want[first]);
	}
}

void
k3_verify_missing(struct k3_verify_report *report, const char *cls, const char *name)
{
	struct k3_verify_entry *e = add(report, cls, name, K3_PLACE_NONE, 0, 0);

	e->spoilt = true;
	snprintf(e->why, sizeof(e->why), "missing");
}

bool
k3_verify_compared(const struct k3_verify_report *report, const char *name)
{
	for (size_t i = 0; i < report->n; i++)
		if (strcmp(report->entry[i].name, name) == 0)
			return true;
	return false;
}

static double
class_max(const struct k3_verify_report *r, const char *cls)
{
	double most = 0;

	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->entry[i].cls, cls) == 0 && r->entry[i].want_max > most)
			most = r->entry[i].want_max;
	return most;
}

static bool
passes(const struct k3_verify_entry *e, double most)
{
	if (e->spoilt)
		return false;
	return e->ratio <= e->tolerance || e->max_abs <= second_chance * most;
}

/* Median error over the tensors of a class that are not all zero. */
static double
class_median(const struct k3_verify_report *r, const char *cls)
{
	double *ratio = malloc((r->n + 1) * sizeof(*ratio)), median = 0;
	size_t n = 0;

	K3_ASSERT(ratio != NULL);
	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->entry[i].cls, cls) == 0 && r->entry[i].want_max > 0)
			ratio[n++] = r->entry[i].ratio;
	if (n)
		median = k3i_median(ratio, n);
	free(ratio);
	return median;
}

/* One line of the table: a class by its worst tensor. */
static void
print_class(struct k3_verify_report *r, const char *cls, const char *file, FILE *out)
{
	const struct k3_verify_entry *worst = NULL;
	double most = class_max(r, cls), max_abs = 0;
	size_t count = 0, bad = 0;

	for (size_t i = 0; i < r->n; i++) {
		const struct k3_verify_entry *e = &r->entry[i];
		if (strcmp(e->cls, cls) != 0)
			continue;
		bool ok = passes(e, most);
		count++;
		bad += !ok;
		max_abs = e->max_abs > max_abs ? e->max_abs : max_abs;
		bool worst_ok = worst && passes(worst, most);
		/* a tensor with a second chance does not count as the worst */
		bool by_chance = ok && e->ratio > e->tolerance;
		if (!worst || (worst_ok && !ok) ||
		    (worst_ok == ok && !by_chance && e->ratio > worst->ratio))
			worst = e;
	}
	double median = class_median(r, cls), bound = k3i_verify_bf16_median(r, cls);
	bad += !(median <= bound);
	fprintf(out, "%s\t%s\t%zu\t%.9g\t%.9g\t%.9g\t%s\t%s%s%s", file, cls, count, max_abs,
		worst->ratio, worst->tolerance, bad ? "FAIL" : "pass", worst->name,
		worst->why[0] ? ": " : "", worst->why);
	if (isfinite(bound))
		fprintf(out, "; median %.3g of %.3g", median, bound);
	fprintf(out, "\n");
	if (bad)
		r->failed++;
	else
		r->passed++;
}

/* The first in the order of computation. */
static const struct k3_verify_entry *
first_wrong(const struct k3_verify_report *r)
{
	const struct k3_verify_entry *first = NULL;

	for (size_t i = 0; i < r->n; i++) {
		const struct k3_verify_entry *e = &r->entry[i];
		if (e->place == K3_PLACE_NONE || passes(e, class_max(r, e->cls)))
			continue;
		if (!first || k3i_verify_before(e, first))
			first = e;
	}
	return first;
}

/* What was compared at one place of one pass, by its worst. */
static void
print_place(const struct k3_verify_report *r, const struct k3_verify_entry *at, const char *file,
	    FILE *out)
{
	const struct k3_verify_entry *worst = NULL;
	bool worst_ok = true, back = k3i_verify_backward(at);
	char text[48];

	for (size_t i = 0; i < r->n; i++) {
		const struct k3_verify_entry *e = &r->entry[i];
		if (e->place != at->place || k3i_verify_backward(e) != back)
			continue;
		bool ok = passes(e, class_max(r, e->cls));
		if (!worst || (worst_ok && !ok) || (worst_ok == ok && e->ratio > worst->ratio)) {
			worst = e;
			worst_ok = ok;
		}
	}
	fprintf(out, "# %s: %s, %s: %s\t%.3g of %.3g\t%s\n", file, back ? "backward" : "forward",
		k3i_verify_place_text(at->place, text, sizeof(text)), worst->name, worst->ratio,
		worst->tolerance, worst_ok ? "pass" : "FAIL");
}

static void
print_places(const struct k3_verify_report *r, const char *file, FILE *out)
{
	const struct k3_verify_entry *last = NULL, *next;

	for (;; last = next) {
		next = NULL;
		for (size_t i = 0; i < r->n; i++) {
			const struct k3_verify_entry *e = &r->entry[i];
			if (e->place == K3_PLACE_NONE || (last && !k3i_verify_before(last, e)))
				continue;
			if (!next || k3i_verify_before(e, next))
				next = e;
		}
		if (!next)
			return;
		print_place(r, next, file, out);
	}
}

void
k3_verify_print(struct k3_verify_report *report, const char *file, FILE *out)
{
	const struct k3_verify_entry *first;
	const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	char text[48];

	if (report->dtype == K3_BF16)
		k3i_verify_bf16_pool(report);
	for (size_t i = 0; i < report->n; i++) {
		bool seen = false;
		for (size_t j = 0; j < i && !seen; j++)
			seen = strcmp(report->entry[j].cls, report->entry[i].cls) == 0;
		if (!seen)
			print_class(report, report->entry[i].cls, base, out);
	}
	if (report->first_difference)
		print_places(report, base, out);
	first = first_wrong(report);
	if (first)
		fprintf(out, "# %s: first difference: %s (%s)\n", base,
			k3i_verify_place_text(first->place, text, sizeof(text)), first->name);
	else if (report->first_difference)
		fprintf(out, "# %s: first difference: none\n", base);
	fflush(out);
	if (!report->keep_values)
		drop_entries(report);
}
