/* A plan as JSON, written as it goes: the plan of the released model has a million tasks.  Names
 * hold no character that JSON would want escaped, but the model's name, which may be a path. */
#include <inttypes.h>

#include "../common/status.h"
#include "critical_path.h"
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

static void
put_head(FILE *out, const struct k3_plan *plan, double critical_us)
{
	const struct k3_mesh *mesh = &plan->model->options.mesh;

	fprintf(out, "{\n\"model\": ");
	put_string(out, plan->model->config.name);
	fprintf(out,
		",\n\"mesh\": {\"dp_replicate\": %u, \"dp_shard\": %u, \"cp\": %u, \"rank\": %u}",
		mesh->dp_replicate, mesh->dp_shard, mesh->cp, mesh->rank);
	fprintf(out, ",\n\"tokens\": %zu, \"own_rows\": %zu, \"tiles\": %zu, \"own_tiles\": %zu",
		plan->n_tokens, plan->own_rows, plan->n_tiles, plan->own_n);
	fprintf(out,
		",\n\"flops\": %.9g, \"persistent_bytes\": %" PRIu64 ", \"slot_bytes\": %" PRIu64
		", \"critical_us\": %.9g",
		plan->flops, plan->model->persist_bytes, plan->slot_bytes, critical_us);
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
	fprintf(out, "]");
}

static void
put_data(FILE *out, const struct k3_plan *plan)
{
	static const char *const kind[K3_N_DATA_KINDS] = {
		"param", "grad", "exp_avg", "exp_avg_sq", "buffer",
		"input", "act",	 "work",    "gathered",
	};
	char label[96];

	fprintf(out, ",\n\"data\": [");
	for (size_t i = 0; i < plan->n_data; i++) {
		const struct k3_datum *d = &plan->data[i];
		fprintf(out,
			"%s\n{\"label\": \"%s\", \"kind\": \"%s\", \"bytes\": %zu, \"slot\": %d",
			i ? "," : "", k3_datum_label(d, label, sizeof(label)), kind[d->kind],
			d->bytes, d->slot);
		if (d->first_pos <= d->last_pos)
			fprintf(out, ", \"first\": %u, \"last\": %u", d->first_pos, d->last_pos);
		fprintf(out, "}");
	}
	fprintf(out, "]");
}

static void
put_tasks(FILE *out, const struct k3_plan *plan)
{
	static const char *const mode[] = {"", "R", "W", "RW"};

	fprintf(out, ",\n\"tasks\": [");
	for (size_t i = 0; i < plan->n_tasks; i++) {
		const struct k3_task *t = &plan->task[i];
		fprintf(out,
			"%s\n{\"name\": \"%s\", \"op\": \"%s\", \"family\": \"%s\", \"layer\": %d, "
			"\"tile\": %d, \"group\": %d",
			i ? "," : "", t->name, k3_op_name((enum k3_op)t->op),
			k3_family_name(k3_op_family((enum k3_op)t->op)), t->layer, t->tile,
			t->group);
		fprintf(out,
			", \"pos\": %u, \"priority\": %d, \"flops\": %.9g, \"bytes\": %.9g, "
			"\"cost_us\": %.9g",
			t->pos, t->priority, t->flops, t->bytes, t->cost_us);
		if (t->comm >= 0)
			fprintf(out, ", \"comm\": %d, \"peer\": %d, \"count\": %" PRIu64, t->comm,
				t->peer, t->count);
		fprintf(out, ", \"data\": [");
		for (uint32_t k = 0; k < t->n_access; k++)
			fprintf(out, "%s[%u, \"%s\"]", k ? ", " : "",
				plan->access[t->first_access + k].datum,
				mode[plan->access[t->first_access + k].mode & 3]);
		fprintf(out, "]}");
	}
	fprintf(out, "]");
}

int
k3_plan_json(FILE *out, const struct k3_plan *plan)
{
	struct k3_critical_path path;
	int ret = k3_critical_path_init(&path, plan);

	if (ret != K3_OK)
		return ret;
	put_head(out, plan, path.length_us);
	k3_critical_path_fini(&path);
	put_data(out, plan);
	put_tasks(out, plan);
	fprintf(out, "\n}\n");
	return ferror(out) ? K3_EIO : K3_OK;
}
