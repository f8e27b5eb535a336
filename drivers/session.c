#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "../planner/choose.h"
#include "../planner/plan_check.h"
#include "../planner/vision_split.h"

/* Plans may be dropped when the clock has moved by PLAN_IS_OLD since their last use. */
enum { CACHED_PLANS = 64, PLAN_IS_OLD = 4 };

/* Initial values depend on nothing, so all their tasks would be ready at once; a worker that steals
 * looks through a whole queue of them for one that it can run, and holds up the one that has it. */
enum { INIT_WINDOW = 32 };

int
k3_session_dtype(enum k3_dtype *dtype, const char *option, const char *text)
{
	if (strcmp(text, "fp32") != 0 && strcmp(text, "bf16") != 0) {
		k3_error("drivers", "--%s %s: must be fp32 or bf16", option, text);
		return K3_EINVAL;
	}
	*dtype = strcmp(text, "bf16") == 0 ? K3_BF16 : K3_F32;
	return K3_OK;
}

int
k3_session_machine(struct k3_machine *machine, const char *file, enum k3_device device)
{
	int ret;

	K3_TRY(k3_machine_open(machine, file, k3_runtime_blas(NULL), k3_runtime_cores()));
	if (device != K3_DEVICE_CPU && !*machine->gpu.name)
		(void)k3_device_gpu(&machine->gpu);
out:
	return ret;
}

static void
set_device(struct k3_plan_options *options, enum k3_device device)
{
	options->for_gpus = device != K3_DEVICE_CPU;
	options->on_gpus = device == K3_DEVICE_CUDA;
}

static int
choose(struct k3_cut *cut, struct k3_plan_options *options, const struct k3_config *config,
       size_t tokens)
{
	const struct k3_machine *m = options->machine;
	struct k3_choice choice;
	char tile[32] = "all", experts[48] = "", whom[96];
	int ret;

	K3_TRY(k3_choose(&choice, config, options, tokens));
	k3_choice_apply(&choice, options);
	cut->tile_tokens = choice.tile_tokens;
	cut->kda_groups = choice.kda_groups;
	cut->mla_groups = choice.mla_groups;
	cut->expert_groups = choice.expert_groups;
	if (choice.tile_tokens)
		snprintf(tile, sizeof(tile), "%u", choice.tile_tokens);
	if (choice.expert_groups)
		snprintf(experts, sizeof(experts), " --expert-groups %u", choice.expert_groups);
	if (options->for_gpus)
		snprintf(whom, sizeof(whom), "a GPU (%s)", *m->gpu.name ? m->gpu.name : "default");
	else
		snprintf(whom, sizeof(whom), "%u cores by %s rates", m->cores,
			 m->measured ? "measured" : "default");
	k3_info("drivers",
		"chosen for %s: --tile-tokens %s --kda-groups %u --mla-groups %u%s; tasks of %.3g "
		"ms on average",
		whom, tile, choice.kda_groups, choice.mla_groups, experts,
		choice.estimate.mean_task_us * 1e-3);
out:
	return ret;
}

/* On a GPU, with a tile that was given: nothing is gained by groups, but experts keep within a row
 * block. */
static void
fewest_groups(struct k3_cut *cut, const struct k3_plan_options *options,
	      const struct k3_config *config)
{
	size_t block_bytes = options->block_bytes ? options->block_bytes : K3_BLOCK_BYTES;
	size_t stack_bytes =
		sizeof(float) * config->experts * 2 * config->expert_ffn * config->latent;

	if (!cut->kda_groups)
		cut->kda_groups = 1;
	if (!cut->mla_groups)
		cut->mla_groups = 1;
	if (!cut->expert_groups && config->experts && stack_bytes <= block_bytes)
		cut->expert_groups = 1;
}

int
k3_session_cut(struct k3_plan_options *options, struct k3_machine *machine, struct k3_cut *cut,
	       const struct k3_config *config, size_t tokens)
{
	int ret;

	options->machine = machine;
	if (cut->device != K3_DEVICE_CPU && cut->tile_tokens != K3_TILE_AUTO)
		fewest_groups(cut, options, config);
	options->kda_groups = (uint32_t)cut->kda_groups;
	options->mla_groups = (uint32_t)cut->mla_groups;
	options->expert_groups = (uint32_t)cut->expert_groups;
	set_device(options, cut->device);
	options->head_rows =
		cut->head_rows ? (uint32_t)cut->head_rows : k3_plan_head_rows(options, config);
	cut->head_rows = options->head_rows;
	K3_TRY(k3_session_machine(machine, cut->machine, cut->device));
	if (cut->tile_tokens == K3_TILE_AUTO)
		K3_TRY(choose(cut, options, config, tokens));
	options->tile_tokens = (uint32_t)cut->tile_tokens;
out:
	return ret;
}

int
k3_session_squeeze(struct k3_plan_options *options, const struct k3_config *config,
		   const struct k3_run_shape *shape)
{
	uint64_t limit_bytes = options->on_gpus ? k3_device_memory_limit() : 0;

	return limit_bytes ? k3_activations_squeeze(options, config, shape, limit_bytes) : K3_OK;
}

int
k3_session_open(struct k3_session *session, const struct k3_config *config,
		const struct k3_plan_options *options, const struct k3_runtime_options *runtime)
{
	struct k3_runtime_options start = {0};
	struct k3_plan_options here = *options;
	int ret;

	memset(session, 0, sizeof(*session));
	if (runtime)
		start = *runtime;
	if (start.trace_most_tasks && !start.trace_dir) {
		k3_error("drivers", "--trace-tasks %zu: needs --trace DIR", start.trace_most_tasks);
		K3_TRY(K3_EINVAL);
	}
	set_device(&here, start.device);
	here.mesh.forced = here.mesh.forced || start.comm != K3_TRANSPORT_NONE;
	K3_TRY(k3_model_create(&session->model, config, &here));
	K3_TRY(k3_plan_cache_create(&session->cache, session->model, CACHED_PLANS));
	start.mesh = &session->model->options.mesh;
	K3_TRY(k3_runtime_create(&session->runtime, &start));
	K3_TRY(k3_store_create(&session->store, session->runtime, session->model));
out:
	if (ret != K3_OK)
		k3_session_close(session);
	return ret;
}

void
k3_session_close(struct k3_session *session)
{
	if (session->runtime)
		k3_runtime_drain(session->runtime);
	k3_store_destroy(session->store);
	k3_runtime_destroy(session->runtime);
	k3_plan_cache_destroy(session->cache);
	for (size_t i = 0; i < 2; i++)
		k3_plan_destroy(session->optimizer[i]);
	k3_model_destroy(session->model);
	memset(session, 0, sizeof(*session));
}

int
k3_session_init(struct k3_session *session, uint64_t seed)
{
	struct k3_plan *plan = NULL;
	int ret;

	K3_TRY(k3_plan_init(&plan, session->model, seed, false));
	k3_runtime_step(session->runtime, -1, -1);
	k3_runtime_set_window(session->runtime, INIT_WINDOW);
	K3_TRY(k3_submit_plan(session->store, plan, NULL, NULL));
out:
	k3_runtime_drain(session->runtime);
	k3_runtime_set_window(session->runtime, 0);
	k3_plan_destroy(plan);
	return ret;
}

int
k3_session_optimizer(struct k3_session *session, uint32_t parity, const struct k3_plan **plan)
{
	struct k3_plan **own = &session->optimizer[parity & 1], *fresh = NULL;
	int ret = K3_OK;

	if (!*own) {
		K3_TRY(k3_plan_optimizer(&fresh, session->model, parity & 1));
		K3_TRY(k3_plan_check(fresh));
		*own = fresh;
		fresh = NULL;
	}
	*plan = *own;
out:
	k3_plan_destroy(fresh);
	return ret;
}

/* One microbatch of an evaluation; its buffers must live until the drain. */
static int
submit_eval(struct k3_session *s, const int32_t *rows, const struct k3_data_items *items,
	    size_t tokens, bool first)
{
	static const double hyper[K3_HYPER_LEN]; /* no gradient: nothing of it is used */
	struct k3_layout layout = {.n_tokens = tokens,
				   .doc_ids = rows + 2 * tokens,
				   .n_items = items->n,
				   .grid = items->grid,
				   .item_row = items->row};
	struct k3_host_batch batch = {
		.ids = rows, .labels = rows + tokens, .item_bytes = items->bytes};
	struct k3_microbatch what = {.first = first};
	const struct k3_plan *plan;
	int ret;

	K3_TRY(k3_plan_cache_get(s->cache, &layout, &what, s->clock, &plan));
	K3_TRY(k3_submit_plan(s->store, plan, &batch, first ? hyper : NULL));
out:
	return ret;
}

/* Images: the tower's patches, frames that it has codes for, and rows that its features replace. */
static int
check_items(const struct k3_config *c, const struct k3_k3t *file, const char *path)
{
	const struct k3_vision_config *v = &c->vision;
	const struct k3_k3t_patches *p = &file->patches;

	if (!v->present) {
		k3_error("drivers", "%s has %llu images, the model no vision tower", path,
			 (unsigned long long)file->n_items);
		return K3_EINVAL;
	}
	if (p->patch != v->patch || p->merge_h != v->merge_h || p->merge_w != v->merge_w) {
		k3_error("drivers",
			 "%s has patches of %u pixels merged %u x %u, the model takes %u and "
			 "%u x %u",
			 path, p->patch, p->merge_h, p->merge_w, v->patch, v->merge_h, v->merge_w);
		return K3_EINVAL;
	}
	if (file->ids.placeholder != c->placeholder) {
		k3_error("drivers", "%s has placeholders with id %u, the model's id is %u", path,
			 file->ids.placeholder, c->placeholder);
		return K3_EINVAL;
	}
	for (uint64_t i = 0; i < file->n_items; i++)
		if (file->items[i].grid.t > v->max_frames) {
			k3_error("drivers",
				 "%s: item %llu has %u frames, the model knows %u at most", path,
				 (unsigned long long)i, file->items[i].grid.t, v->max_frames);
			return K3_EINVAL;
		}
	return K3_OK;
}

/* Ids are rows of the embedding table: a file with more of them would be read outside of it. */
int
k3_session_check_file(const struct k3_config *c, const struct k3_k3t *file, const char *path)
{
	if (file->ids.vocab > c->vocab) {
		k3_error("drivers", "%s has %u tokens, the model has %u: at most that many may be",
			 path, file->ids.vocab, c->vocab);
		return K3_EINVAL;
	}
	return file->n_items > 0 ? check_items(c, file, path) : K3_OK;
}

uint64_t
k3_session_least_tile(const struct k3_k3t *file)
{
	uint64_t most = 0;

	for (uint64_t i = 0; i < file->n_items; i++) {
		uint64_t patches =
			k3_vision_least_patches(&file->items[i].grid, file->patches.merge_h);
		most = patches > most ? patches : most;
	}
	return most;
}

int
k3_session_check_tiles(const struct k3_k3t *file, const char *path, uint64_t tile_patches)
{
	uint64_t least = k3_session_least_tile(file);

	if (least <= tile_patches)
		return K3_OK;
	k3_error("drivers",
		 "%s: its images need vision tiles of %llu patches, they have %llu: "
		 "--vision-patches %llu would do",
		 path, (unsigned long long)least, (unsigned long long)tile_patches,
		 (unsigned long long)least);
	return K3_EINVAL;
}

/* For one pass; the model takes its tokens and images. */
static int
open_data(struct k3_data *data, const struct k3_session *session, const char *path)
{
	int ret;

	K3_TRY(k3_data_open(data, path, 0, true));
	k3_data_set_max_patches(data, session->model->options.max_patches);
	K3_TRY(k3_session_check_file(&session->model->config, &data->file, path));
out:
	if (ret != K3_OK)
		k3_data_close(data);
	return ret;
}

int
k3_session_check_data(const struct k3_session *session, const char *data_path, size_t tokens)
{
	struct k3_data data = {0};
	const struct k3_plan_options *o = &session->model->options;
	uint64_t i = 0;
	int ret, tiles = K3_OK;

	K3_TRY(open_data(&data, session, data_path));
	/* all that is too small is told at once */
	if (o->max_patches)
		tiles = k3_session_check_tiles(&data.file, data_path, o->vision_patches);
	K3_TRY(k3_data_require_items(&data, data_path, tokens));
	K3_TRY(tiles);
	while (i < data.file.n_tokens && !k3_k3t_counts(&data.file, i))
		i++;
	if (i == data.file.n_tokens) {
		k3_error("drivers", "%s: its loss mask leaves no token to count", data_path);
		ret = K3_EINVAL;
	}
out:
	k3_data_close(&data);
	return ret;
}

int
k3_session_eval(struct k3_session *session, const char *data_path, size_t tokens,
		struct k3_eval_result *result)
{
	int32_t *rows = malloc(3 * tokens * sizeof(*rows));
	double acc[K3_LOSS_LEN] = {0};
	struct k3_data_items items = {0};
	struct k3_data data = {0};
	bool first = true;
	size_t valid;
	int ret = rows ? K3_OK : K3_ENOMEM;

	memset(result, 0, sizeof(*result));
	K3_TRY(ret);
	K3_TRY(open_data(&data, session, data_path));
	K3_TRY(k3_data_require_items(&data, data_path, tokens));
	if (data.file.n_items > 0)
		K3_TRY(k3_data_items_init(&items, tokens));
	session->clock += PLAN_IS_OLD; /* those of training */
	k3_runtime_step(session->runtime, -1, -1);
	for (;;) {
		K3_TRY(k3_data_next(&data, tokens, rows, rows + tokens, rows + 2 * tokens, &valid,
				    data.file.n_items ? &items : NULL));
		if (valid == 0)
			break; /* the pass is over */
		K3_TRY(submit_eval(session, rows, &items, tokens, first));
		k3_runtime_drain(session->runtime); /* the rows are filled anew */
		session->clock += PLAN_IS_OLD;
		first = false;
	}
	if (!first)
		K3_TRY(k3_store_datum_read(session->store, NULL, session->model->loss_acc, acc));
	*result =
		(struct k3_eval_result){acc[K3_LOSS_SUM], acc[K3_LOSS_VALID], acc[K3_LOSS_CORRECT]};
out:
	k3_runtime_drain(session->runtime);
	k3_data_items_fini(&items);
	k3_data_close(&data);
	free(rows);
	return ret;
}
