#include "verify_settings.h"

#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

/* A number of the settings; what is absent keeps its value. */
static int
read_number(const json_t *train, const char *key, double lo, double hi, double *value)
{
	json_t *v = json_object_get(train, key);

	if (!v)
		return K3_OK;
	*value = json_number_value(v);
	if (json_is_number(v) && *value >= lo && *value <= hi)
		return K3_OK;
	k3_error("drivers", "metadata train: %s must be a number from %g to %g", key, lo, hi);
	return K3_EFORMAT;
}

static int
read_count(const json_t *train, const char *key, long long lo, size_t *value)
{
	enum { MOST = 10000 }; /* far above every case; keeps the products small */
	json_t *v = json_object_get(train, key);
	long long x = v ? json_integer_value(v) : (long long)*value;

	if ((v && !json_is_integer(v)) || x < lo || x > MOST) {
		k3_error("drivers", "metadata train: %s must be an integer from %lld to %d", key,
			 lo, MOST);
		return K3_EFORMAT;
	}
	*value = (size_t)x;
	return K3_OK;
}

static int
read_betas(const json_t *train, struct k3_plan_options *o)
{
	json_t *betas = json_object_get(train, "betas"), *beta1 = json_array_get(betas, 0),
	       *beta2 = json_array_get(betas, 1);

	if (!betas)
		return K3_OK;
	o->adam_beta1 = json_number_value(beta1);
	o->adam_beta2 = json_number_value(beta2);
	if (json_array_size(betas) == 2 && json_is_number(beta1) && json_is_number(beta2) &&
	    o->adam_beta1 >= 0 && o->adam_beta1 < 1 && o->adam_beta2 >= 0 && o->adam_beta2 < 1)
		return K3_OK;
	k3_error("drivers", "metadata train: betas must be two numbers from 0 to below 1");
	return K3_EFORMAT;
}

/* The rule of the expert balance, and the form of the decay, of which there is one. */
static int
read_names(const json_t *train, struct k3_plan_options *o)
{
	json_t *balance = json_object_get(train, "balance"),
	       *decay = json_object_get(train, "decay");
	const char *rule = balance && !json_is_null(balance) ? json_string_value(balance) : "none",
		   *form = decay ? json_string_value(decay) : "linear";

	if (!rule || (strcmp(rule, "none") != 0 && strcmp(rule, "quantile") != 0 &&
		      strcmp(rule, "sign") != 0)) {
		k3_error("drivers", "metadata train: balance must be quantile, sign or none");
		return K3_EFORMAT;
	}
	if (!form || strcmp(form, "linear") != 0) {
		k3_error("drivers", "metadata train: decay must be linear");
		return K3_EFORMAT;
	}
	o->balance = strcmp(rule, "none") == 0	     ? K3_BALANCE_NONE
		     : strcmp(rule, "quantile") == 0 ? K3_BALANCE_QUANTILE
						     : K3_BALANCE_SIGN;
	return K3_OK;
}

int
k3i_verify_settings(const struct k3_st *st, const struct k3_verify_options *options,
		    struct k3i_verify_settings *set)
{
	struct k3_plan_options *o = &set->plan_options;
	const struct {
		const char *key;
		double lo, hi, *value;
	} part[] = {
		{"lr", 0, 1e3, &set->lr},
		{"decay_ratio", 0, 1, &set->decay_ratio},
		{"lr_floor", 0, 1, &set->lr_floor},
		{"adam_eps", 0, 1, &o->adam_eps},
		{"weight_decay", 0, 1e3, &o->weight_decay},
		{"clip_norm", 0, 1e9, &o->clip_norm},
		{"clip_eps", 0, 1, &o->clip_eps},
		{"balance_u", 0, 1, &o->balance_u},
	};
	json_t *train = NULL;
	int ret;

	k3_plan_options_init(o);
	o->tile_tokens = options->tile_tokens;
	o->balance_u = 1e-3;
	set->accumulation = 1;
	set->warmup = 2;
	set->lr = 8e-4;
	set->decay_ratio = 0.8;
	K3_TRY(k3i_verify_metadata(st, "train", JSON_OBJECT, &train));
	K3_TRY(read_count(train, "steps", 1, &set->steps));
	K3_TRY(read_count(train, "accumulation", 1, &set->accumulation));
	K3_TRY(read_count(train, "warmup", 0, &set->warmup));
	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
		K3_TRY(read_number(train, part[i].key, part[i].lo, part[i].hi, part[i].value));
	K3_TRY(read_betas(train, o));
	K3_TRY(read_names(train, o));
out:
	json_decref(train);
	return ret;
}
