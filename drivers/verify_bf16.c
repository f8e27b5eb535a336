/* Tolerances of golden cases in bf16 (parity.md 3).  They hold with the file's routes forced: a route
 * that is taken otherwise makes the values behind it another computation, so with free routing only the
 * routes, the embeddings and the loss are judged.
 *
 * The trap: a rarely used expert's gradient is far off even in a correct run, and a bound wide enough
 * for it lets a zero gradient pass.  So the tensors of a class have a bound on their median too.
 * A_log's gradient is a sum over all tokens and channels of a head whose terms cancel: what rounding
 * leaves of them (0.02 in the golden cases) does not depend on the sum (0.01 to 0.3 from layer to
 * layer), so a layer's error may be measured by the root mean square over all layers. */
#include <math.h>
#include <string.h>

#include "../common/status.h"
#include "verify.h"

/* Activations of a model of that many layers or more. */
enum { DEEP_LAYERS = 13 };
static const double activations = 6e-2, deep_activations = 8e-2;

static const char *const forward[] = {"prefix", "vision.", "logits", "token_loss",
				      "router_weights"};

/* free_routing: also when routes are not forced. */
static const struct {
	const char *cls;
	double tolerance;
	bool free_routing;
} other[] = {
	{"loss", 2e-2, true},
	{"gdigest", 6e-2, false},
	{"gsample", 0.25, false},
	/* the operator alone */
	{"o", 5e-3, true},
	{"ST", 5e-3, true},
	{"dq", 8e-3, true},
	{"dk", 8e-3, true},
	{"dv", 8e-3, true},
	{"dS0", 8e-3, true},
	{"dg", 2e-2, true},
	{"dbeta", 2e-2, true},
};

static double
gradient_tolerance(const struct k3_verify_report *report, const char *cls)
{
	double own = json_number_value(json_object_get(report->bf16_deviation, cls));

	return fmin(1.5 * own, 0.9);
}

double
k3i_verify_bf16_tolerance(const struct k3_verify_report *report, const char *cls,
			  double fp32_tolerance)
{
	/* with images the scatter's rows come from the tower */
	if (strcmp(cls, "embeddings") == 0)
		return fp32_tolerance > 0 ? 2e-2 : 5e-3;
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
		if (strcmp(cls, other[i].cls) == 0 &&
		    (report->forced_routing || other[i].free_routing))
			return other[i].tolerance;
	for (size_t i = 0; i < sizeof(forward) / sizeof(forward[0]) && report->forced_routing; i++)
		if (strcmp(cls, forward[i]) == 0)
			return report->layers >= DEEP_LAYERS ? deep_activations : activations;
	if (strncmp(cls, "grad.", 5) == 0 && report->forced_routing)
		return gradient_tolerance(report, cls);
	return INFINITY;
}

double
k3i_verify_bf16_median(const struct k3_verify_report *report, const char *cls)
{
	if (report->dtype != K3_BF16 || !report->forced_routing || strncmp(cls, "grad.", 5) != 0)
		return INFINITY;
	return 2 * json_number_value(json_object_get(report->bf16_median, cls));
}

static bool
cancels(const struct k3_verify_entry *e)
{
	static const char end[] = ".A_log";
	size_t n = strlen(e->name);

	return strcmp(e->cls, "grad.param") == 0 && n >= sizeof(end) &&
	       strcmp(e->name + n - sizeof(end) + 1, end) == 0 && !e->spoilt;
}

void
k3i_verify_bf16_pool(struct k3_verify_report *report)
{
	double square = 0;
	size_t n = 0;

	for (size_t i = 0; i < report->n; i++)
		if (cancels(&report->entry[i])) {
			square += report->entry[i].want_square;
			n += report->entry[i].n_elems;
		}
	for (size_t i = 0; i < report->n && square > 0; i++) {
		struct k3_verify_entry *e = &report->entry[i];
		if (cancels(e))
			e->ratio = fmin(e->ratio, sqrt(e->err_square / (double)e->n_elems /
						       (square / (double)n)));
	}
}
