/* Where in the walk a result belongs: the order in which a first difference is looked for. */
#include <string.h>

#include "verify.h"

bool
k3i_verify_backward(const struct k3_verify_entry *e)
{
	return e->cls[0] == 'g'; /* grad.*, gdigest, gsample */
}

bool
k3i_verify_before(const struct k3_verify_entry *a, const struct k3_verify_entry *b)
{
	bool back = k3i_verify_backward(a);

	if (back != k3i_verify_backward(b))
		return !back;
	return back ? a->place > b->place : a->place < b->place;
}

static int
tower_place(const struct k3_param *param)
{
	if (param->layer >= 0)
		return K3_PLACE_TOWER + 1 + param->layer;
	switch (param->role) {
	case K3_P_VIT_PATCH:
	case K3_P_VIT_POS:
		return K3_PLACE_TOWER;
	case K3_P_VIT_FINAL_NORM:
		return K3_PLACE_TOWER_END;
	default:
		return K3_PLACE_FEATURES;
	}
}

int
k3i_verify_place(const struct k3_params *params, const struct k3_ckpt_tensor *t)
{
	const struct k3_param *param;

	if (t->param < 0)
		return t->layer < 0 ? K3_PLACE_NONE : K3_PLACE_LAYERS + t->layer;
	param = &params->param[t->param];
	if (param->unit == K3_UNIT_VISION)
		return tower_place(param);
	if (param->unit == K3_UNIT_EMBED)
		return K3_PLACE_EMBEDDINGS;
	return param->layer < 0 ? K3_PLACE_HEAD : K3_PLACE_LAYERS + param->layer;
}

const char *
k3i_verify_place_text(int place, char *text, size_t bytes)
{
	if (place >= K3_PLACE_HEAD)
		snprintf(text, bytes, "head");
	else if (place >= K3_PLACE_LAYERS)
		snprintf(text, bytes, "layer %d", place - K3_PLACE_LAYERS);
	else if (place == K3_PLACE_EMBEDDINGS)
		snprintf(text, bytes, "embeddings");
	else if (place == K3_PLACE_FEATURES)
		snprintf(text, bytes, "projector");
	else if (place == K3_PLACE_TOWER_END)
		snprintf(text, bytes, "tower's final norm");
	else if (place > K3_PLACE_TOWER)
		snprintf(text, bytes, "tower block %d", place - K3_PLACE_TOWER - 1);
	else
		snprintf(text, bytes, "patch embedding");
	return text;
}
