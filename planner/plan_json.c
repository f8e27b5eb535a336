/* A plan as JSON, written as it goes: the plan of the released model has a million tasks.  Names
 * hold no character that JSON would want escaped, but the model's name, which may be a path. */
#include <inttypes.h>
#include <stdlib.h>

#include "../common/status.h"
#include "activations.h"
#include "critical_path.h"
#include "plan_graph.h"
#include "plan_print.h"

static void
put_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if ((unsigned char)*text < 0x20)
			fprintf(out, "\\u%04x", *text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

static const char *
json_bool(bool b)
{
	return b ? "true" : "false";
}

static void
put_options(FILE *out, const struct k3_plan_options *o, uint32_t layers)
{
	char *activations = k3_activations_text(o->activations, layers);
	static const char *const balance[] = {[K3_BALANCE_NONE] = "none",
					      [K3_BALANCE_SIGN] = "sign",
					      [K3_BALANCE_QUANTILE] = "quantile"};

	fprintf(out,
		",\n\"mesh\": {\"dp_replicate\": %u, \"dp_shard\": %u, \"cp\": %u, \"rank\": %u}",
		o->mesh.dp_replicate, o->mesh.dp_shard, o->mesh.cp, o->mesh.rank);
	fprintf(out,
		",\n\"options\": {\"tile_tokens\": %u, \"kda_groups\": %u, \"mla_groups\": %u, "
		"\"expert_groups\": %u, \"key_tiles\": %u, \"head_rows\": %u, \"block_bytes\": "
		"%zu, "
		"\"piece_bytes\": %zu, \"gather_slots\": %u, \"run_ahead\": %u",
		o->tile_tokens, o->kda_groups, o->mla_groups, o->expert_groups, o->key_tiles,
		o->head_rows, o->block_bytes, o->piece_bytes, o->gather_slots, o->run_ahead);
	fprintf(out,
		", \"vision\": %s, \"vision_patches\": %u, \"vision_bands\": %u, "
		"\"max_patches\": %" PRIu64
		", \"balance\": \"%s\", \"bins\": %u, \"balance_u\": %.9g, "
		"\"adam_beta1\": %.9g, \"adam_beta2\": %.9g, \"adam_eps\": %.9g, "
		"\"weight_decay\": %.9g, \"clip_norm\": %.9g, \"clip_eps\": %.9g, "
		"\"fingerprint\": %s, \"cut_state\": %s, \"activations\": \"%s\"}",
		json_bool(o->vision), o->vision_patches, o->vision_bands, o->max_patches,
		balance[o->balance], o->bins, o->balance_u, o->adam_beta1, o->adam_beta2,
		o->adam_eps, o->weight_decay, o->clip_norm, o->clip_eps, json_bool(o->fingerprint),
		json_bool(o->cut_state), activations ? activations : "");
	free(activations);
}

static void
put_head(FILE *out, const struct k3_plan *plan, const struct k3_critical_path *path)
{
	fprintf(out, "{\n\"model\": ");
	put_string(out, plan->model->config.name);
	fprintf(out, ", \"plan\": \"%s\"", k3_plan_name(plan));
	put_options(out, &plan->model->options, plan->model->config.layers);
	fprintf(out,
		",\n\"tokens\": %zu, \"own_rows\": %zu, \"own_first\": %zu, \"own_tiles\": %zu, "
		"\"positions\": %u, \"layout_hash\": \"%016" PRIx64 "\"",
		plan->n_tokens, plan->own_rows, plan->own_first, plan->own_n, plan->n_pos,
		plan->layout_hash);
	fprintf(out,
		",\n\"flops\": %.9g, \"persistent_bytes\": %" PRIu64 ", \"slot_bytes\": %" PRIu64
		", \"critical_us\": %.9g,\n\"critical_path\": [",
		plan->flops, plan->model->persist_bytes, plan->slot_bytes, path->length_us);
	for (size_t i = 0; i < path->n; i++)
		fprintf(out, "%s%u", i ? ", " : "", path->task[i]);
	fprintf(out, "]");
}

static void
put_places(FILE *out, const struct k3_plan *plan)
{
	fprintf(out, ",\n\"communicators\": [");
	for (size_t i = 0; i < plan->n_comms; i++) {
		fprintf(out, "%s\n{\"name\": \"%s\", \"members\": [", i ? "," : "",
			plan->comm[i].name);
		for (uint32_t k = 0; k < plan->comm[i].n_members; k++)
			fprintf(out, "%s%u", k ? ", " : "", plan->comm[i].member[k]);
		fprintf(out, "]}");
	}
	fprintf(out, "],\n\"slots\": [");
	for (size_t i = 0; i < plan->n_slots; i++)
		fprintf(out, "%s\n{\"bytes\": %zu, \"ordinal\": %u}", i ? "," : "",
			plan->slot[i].bytes, plan->slot[i].ordinal);
	fprintf(out, "],\n\"tiles\": [");
	for (size_t i = 0; i < plan->n_tiles; i++) {
		const struct k3_tile *t = &plan->tile[i];
		fprintf(out,
			"%s\n{\"cp\": %u, \"row0\": %zu, \"rows\": %zu, \"first_doc\": %d, "
			"\"last_doc\": %d, \"prev\": %d, \"next\": %d}",
			i ? "," : "", t->owner_cp, t->row0, t->rows, t->first_doc, t->last_doc,
			t->prev, t->next);
	}
	fprintf(out, "],\n\"parameters\": [");
	for (size_t i = 0; i < plan->model->params.n; i++) {
		const struct k3_param *p = &plan->model->params.param[i];
		fprintf(out,
			"%s\n{\"name\": \"%s\", \"layer\": %d, \"rows\": %zu, \"cols\": %zu, "
			"\"block_rows\": %zu, \"blocks\": %zu}",
			i ? "," : "", p->name, p->layer, p->rows, p->cols, p->block_rows,
			p->n_blocks);
	}
	fprintf(out, "]");
}

static void
put_data(FILE *out, const struct k3_plan *plan)
{
	char label[96];

	fprintf(out, ",\n\"data\": [");
	for (size_t i = 0; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		fprintf(out,
			"%s\n{\"label\": \"%s\", \"what\": \"%s\", \"kind\": \"%s\", \"type\": "
			"\"%s\", "
			"\"layer\": %d, \"tile\": %d, \"index\": %d, \"param\": %d",
			i ? "," : "", k3_datum_label(d, label, sizeof(label)), d->what,
			k3_data_kind_name((enum k3_data_kind)d->kind),
			k3_dtype_name((enum k3_dtype)d->dtype), d->layer, d->tile, d->index,
			d->param);
		fprintf(out,
			", \"row0\": %zu, \"rows\": %zu, \"row_elems\": %zu, \"bytes\": %zu, "
			"\"slot\": %d, \"keep\": %s",
			d->row0, d->rows, d->row_elems, d->bytes, d->slot, json_bool(d->keep));
		if (d->whole)
			fprintf(out, ", \"whole\": %u, \"at\": %zu", d->whole - 1, d->at);
		if (d->first_pos <= d->last_pos)
			fprintf(out, ", \"first\": %u, \"last\": %u", d->first_pos, d->last_pos);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

static void
put_task(FILE *out, const struct k3_task *t)
{
	fprintf(out,
		"{\"name\": \"%s\", \"op\": \"%s\", \"family\": \"%s\", \"pass\": \"%s\", "
		"\"layer\": %d, \"tile\": %d, \"group\": %d",
		t->name, k3_op_name((enum k3_op)t->op),
		k3_family_name(k3_op_family((enum k3_op)t->op)),
		k3_pass_name((enum k3_pass)t->pass), t->layer, t->tile, t->group);
	fprintf(out,
		", \"pos\": %u, \"priority\": %d, \"flops\": %.9g, \"bytes\": %.9g, "
		"\"cost_us\": %.9g",
		t->pos, t->priority, t->flops, t->bytes, t->cost_us);
	if (t->wide_bytes)
		fprintf(out, ", \"wide_bytes\": %zu", t->wide_bytes);
	if (t->comm >= 0)
		fprintf(out,
			", \"comm\": %d, \"peer\": %d, \"count\": %" PRIu64 ", \"type\": \"%s\"",
			t->comm, t->peer, t->count, k3_dtype_name((enum k3_dtype)t->comm_dtype));
}

static void
put_tasks(FILE *out, const struct k3_plan *plan, struct k3i_graph *graph)
{
	static const char *const mode[] = {"", "R", "W", "RW"};

	fprintf(out, ",\n\"tasks\": [");
	for (uint32_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		fprintf(out, "%s\n", i ? "," : "");
		put_task(out, t);
		fprintf(out, ", \"data\": [");
		for (uint32_t k = 0; k < t->n_access; k++)
			fprintf(out, "%s[%u, \"%s\"]", k ? ", " : "",
				plan->access[t->first_access + k].datum,
				mode[plan->access[t->first_access + k].mode & 3]);
		fprintf(out, "], \"after\": [");
		k3i_graph_next(graph, i);
		for (size_t k = 0; k < graph->n_pred; k++)
			fprintf(out, "%s%u", k ? ", " : "", graph->pred[k].from);
		fprintf(out, "]}");
	}
	fprintf(out, "]");
}

int
k3_plan_json(FILE *out, const struct k3_plan *plan)
{
	struct k3_critical_path path = {0};
	struct k3i_graph graph = {0};
	int ret = K3_OK;

	K3_TRY(k3_critical_path_init(&path, plan));
	K3_TRY(k3i_graph_init(&graph, plan));
	put_head(out, plan, &path);
	put_places(out, plan);
	put_data(out, plan);
	put_tasks(out, plan, &graph);
	fprintf(out, "\n}\n");
	if (ferror(out))
		ret = K3_EIO;
out:
	k3_critical_path_fini(&path);
	k3i_graph_fini(&graph);
	return ret;
}
