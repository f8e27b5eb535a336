/* Tolerances of golden cases in bf16 (parity.md 3).  They hold with the file's routes forced: a route
 * that is taken otherwise makes the values behind it another computation, so with free routing only the
 * routes, the embeddings and the loss are judged.
 *
 * The trap: a rarely used expert's gradient is far off even in a correct run, and a bound wide enough
 * for it lets a zero gradient pass.  So the tensors of a class have a bound on their median too. */
#include <math.h>
#include <string.h>

#include "../common/status.h"
#include "verify.h"

enum { DEEP_LAYERS = 13 };

static const double deep_activations = 8e-2; /* of a model of that many layers or more */

static const struct {
	const char *cls;
	double tolerance;
	bool free_routing; /* with routes that are not forced too */
} known[] = {
	{"prefix", 6e-2, false},
	{"vision.", 6e-2, true},
	{"logits", 6e-2, false},
	{"token_loss", 6e-2, false},
	{"router_weights", 6e-2, false},
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
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strcmp(cls, known[i].cls) != 0)
			continue;
		if (!report->forced_routing && !known[i].free_routing)
			return INFINITY;
		bool wide = report->layers >= DEEP_LAYERS && known[i].tolerance == 6e-2;
		return wide ? deep_activations : known[i].tolerance;
	}
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
