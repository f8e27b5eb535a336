/* Before the first step: data, model, memory, values; everything that can be refused is refused
 * here. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/log.h"
#include "../common/status.h"
#include "../planner/plan_check.h"
#include "../tasks/room.h"
#include "train_run.h"

static uint64_t
gib_bytes(double gib)
{
	return (uint64_t)(gib * (1u << 30));
}

static uint64_t
machine_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum k3_balance_rule
rule_of(const char *name)
{
	return strcmp(name, "none") == 0   ? K3_BALANCE_NONE
	       : strcmp(name, "sign") == 0 ? K3_BALANCE_SIGN
					   : K3_BALANCE_QUANTILE;
}

/* Buffers of the steps in flight. */
static int
make_rows(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	size_t n = (size_t)o->tokens, m = (size_t)o->accumulate;

	for (int i = 0; i < 2; i++) {
		t->rows[i] = malloc(3 * n * m * sizeof(int32_t));
		t->items[i] = calloc(m, sizeof(*t->items[i]));
		if (!t->rows[i] || !t->items[i])
			return K3_ENOMEM;
		for (size_t k = 0; k < m && t->data.file.n_items > 0; k++)
			if (k3_data_items_init(&t->items[i][k], n) != K3_OK)
				return K3_ENOMEM;
	}
	return K3_OK;
}

static int
open_data(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	int ret;

	K3_TRY(k3_data_open(&t->data, o->data, (uint64_t)o->seed, false));
	K3_TRY(k3_data_require(&t->data, o->data, (uint64_t)o->tokens));
	if (t->state->step > 0 && t->state->data_checksum != t->data.file.checksum) {
		k3_error(
			"drivers",
			"%s: its checksum is %016llx, the run to be resumed used data with %016llx",
			o->data, (unsigned long long)t->data.file.checksum,
			(unsigned long long)t->state->data_checksum);
		K3_TRY(K3_EDIFFER);
	}
	t->state->data_checksum = t->data.file.checksum;
	if (t->state->step > 0)
		K3_TRY(k3_data_set_pos(&t->data, &t->state->position));
out:
	return ret;
}

static struct k3_run_shape
run_shape(const struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;

	return (struct k3_run_shape){.tokens = (size_t)o->tokens,
				     .accumulate = (uint32_t)o->accumulate,
				     .evaluates = o->eval_data != NULL,
				     .max_patches = t->max_patches,
				     .gpu_scratch = k3_device_scratch_bytes};
}

/* Activation policies: what was asked for, or what the limit of memory needs. */
static int
choose_activations(struct k3i_trainer *t, struct k3_plan_options *plan)
{
	const struct k3_train_options *o = t->options;
	struct k3_run_shape shape = run_shape(t);
	char *text;
	int ret = K3_OK;

	if (o->activations)
		K3_TRY(k3_activations_parse(plan->activations, t->config.layers, o->activations));
	else if (o->memory > 0)
		K3_TRY(k3_activations_choose(plan, &t->config, &shape, gib_bytes(o->memory)));
	else
		K3_TRY(k3_session_squeeze(plan, &t->config, &shape));
	text = k3_activations_text(plan->activations, t->config.layers);
	if (!text)
		K3_TRY(K3_ENOMEM);
	k3_info("drivers", "activations: %s", text);
	free(text);
out:
	return ret;
}

/* Slots depend neither on the documents nor on the images, so one layout tells the bound of the
 * run. */
static int
check_memory(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	const struct k3_model *model = t->session.model;
	struct k3_run_shape shape = run_shape(t);
	struct k3_memory memory;
	int ret;

	K3_TRY(k3_memory_run(&memory, model, &shape));
	uint64_t wide = k3_memory_wide_bytes(&memory);
	k3_info("drivers", "plan: at most %.1f MiB in handles",
		(double)(k3_memory_bound(&memory) - wide) / 1048576);
	if (wide)
		k3_info("drivers", "plan: CPU workers take %.1f MiB for float copies of bf16",
			(double)wide / 1048576);
	if (o->memory > 0) {
		K3_TRY(k3_plan_check_memory(&memory, gib_bytes(o->memory), model));
	} else if (!(model->options.on_gpus && k3_room_on_gpus(k3_memory_bound(&memory) - wide)) &&
		   k3_plan_check_memory(&memory, machine_bytes(), model) != K3_OK) {
		/* the system would end the run */
		k3_error("drivers",
			 "that limit is the machine's memory; --memory GIB sets another");
		K3_TRY(K3_ELIMIT);
	}
	K3_TRY(k3_gpu_memory_check(&t->gpu, &memory));
out:
	k3_memory_fini(&memory);
	return ret;
}

/* A folder of checkpoints holds no weights itself. */
static void
advise_checkpoint(const char *folder)
{
	struct stat info;
	char *newest = NULL;

	if (stat(folder, &info) == 0 && S_ISDIR(info.st_mode) &&
	    k3_checkpoint_newest(&newest, folder) == K3_OK && newest)
		k3_error("drivers", "the newest checkpoint there is: --init-from %s", newest);
	free(newest);
}

static int
start_values(struct k3i_trainer *t, const char *folder)
{
	struct k3_st *st = NULL;
	int ret;

	K3_TRY(k3_session_init(&t->session, (uint64_t)t->options->seed));
	const char *weights = folder ? folder : t->options->init_from;
	if (!weights)
		return K3_OK;
	ret = k3_st_open(&st, weights);
	if (ret != K3_OK && !folder)
		advise_checkpoint(weights);
	K3_TRY(ret);
	K3_TRY(k3_checkpoint_load_params(t->session.store, st));
	if (folder)
		K3_TRY(k3_checkpoint_load_optimizer(t->session.store, folder));
out:
	k3_st_close(st);
	return ret;
}

/* A folder of checkpoints that is there can be written, and holds none of another run. */
static int
check_save(const struct k3_train_options *o, const char *folder)
{
	char *other = NULL;
	int ret = K3_OK;

	if (!o->save)
		return K3_OK;
	if (access(o->save, F_OK) != 0)
		return K3_OK; /* it is made when nothing is refused any more */
	if (access(o->save, W_OK | X_OK) != 0) {
		k3_error("drivers", "--save %s: cannot be written: %s", o->save, strerror(errno));
		K3_TRY(K3_EIO);
	}
	if (folder)
		return K3_OK;
	K3_TRY(k3_checkpoint_newest(&other, o->save));
	if (other) {
		k3_error("drivers",
			 "--save %s: holds %s of another run; take another folder, or --resume it",
			 o->save, other);
		ret = K3_EEXIST;
	}
out:
	free(other);
	return ret;
}

/* Options of the planner; what was to be chosen becomes a number, here and in run.json. */
static int
plan_options(struct k3i_trainer *t, struct k3_plan_options *plan)
{
	const struct k3_train_options *o = t->options;
	enum k3_transport comm;
	int ret;

	k3_plan_options_init(plan);
	/* a resumed run keeps all but the activations */
	if (!o->resume)
		plan->offers = K3_OFFER_MODEL | K3_OFFER_TYPES | K3_OFFER_TOKENS;
	plan->vision = t->config.vision.present;
	plan->vision_patches = t->vision_patches;
	plan->max_patches = t->max_patches;
	plan->balance = rule_of(o->balance);
	plan->weight_decay = o->weight_decay;
	plan->clip_norm = o->clip;
	plan->fingerprint = o->fingerprint;
	plan->cut_state = o->cut_state;
	K3_TRY(k3_session_dtype(&plan->dtype, "dtype", o->dtype));
	K3_TRY(k3_session_dtype(&plan->optimizer_dtype, "optimizer-dtype", o->optimizer_dtype));
	K3_TRY(k3_device_parse(&t->chosen.cut.device, o->device));
	K3_TRY(k3_transport_parse(&comm, o->comm));
	plan->mesh.forced = comm != K3_TRANSPORT_NONE;
	K3_TRY(k3_session_cut(plan, &t->machine, &t->chosen.cut, &t->config, (size_t)o->tokens));
	K3_TRY(choose_activations(t, plan));
out:
	return ret;
}

/* A resumed run goes on in the table of the one before; else the file is begun anew. */
static int
open_eval_log(struct k3i_trainer *t)
{
	const struct k3_train_options *o = t->options;
	const char *path = o->eval_log, *read[] = {o->data, o->eval_data};

	for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++)
		if (k3_fs_is_same(path, read[i])) {
			k3_error("drivers",
				 "--eval-log %s: would replace the data that are read; "
				 "allowed: another file",
				 path);
			return K3_EINVAL;
		}
	t->eval_log = fopen(path, t->state->step > 0 ? "a" : "w");
	if (!t->eval_log) {
		k3_error("drivers", "--eval-log %s: %s", path, strerror(errno));
		return K3_EIO;
	}
	if (ftell(t->eval_log) == 0)
		fputs("step\tloss_nats\taccuracy\ttokens\n", t->eval_log);
	return K3_OK;
}

int
k3i_train_open(struct k3i_trainer *t, const char *folder)
{
	const struct k3_train_options *o = t->options;
	struct k3_plan_options plan;
	enum k3_transport comm;
	int ret;

	K3_TRY(k3_transport_parse(&comm, o->comm));
	K3_TRY(open_data(t));
	K3_TRY(k3i_train_config(t, folder));
	K3_TRY(check_save(o, folder));
	K3_TRY(plan_options(t, &plan));
	K3_TRY(make_rows(t));
	K3_TRY(k3_session_open(
		&t->session, &t->config, &plan,
		&(struct k3_runtime_options){.window = (uint32_t)o->window,
					     .device = o->cut.device,
					     .comm = comm,
					     .trace_dir = o->trace,
					     .trace_most_tasks = (size_t)o->trace_tasks,
					     .calibrate = o->calibrate}));
	k3_info("drivers",
		"k3_train %s, model %s with %llu parameters, seed %lld, data %s with %llu tokens "
		"an epoch",
		PACKAGE_VERSION, t->config.name,
		(unsigned long long)t->session.model->params.n_elems, o->seed, o->data,
		(unsigned long long)k3_data_total_tokens(&t->data));
	const char *blas = k3_runtime_blas(t->session.runtime);
	if (folder && strcmp(t->state->blas, blas) != 0)
		k3_warn("drivers",
			"the run used BLAS kernels for \"%s\", here they are for \"%s\": the bits "
			"will differ "
			"(OPENBLAS_CORETYPE)",
			t->state->blas, blas);
	if (o->cut_state)
		k3_warn("drivers", "--cut-state is for tests: no state passes from tile to tile");
	if (o->eval_data)
		K3_TRY(k3_session_check_data(&t->session, o->eval_data, (size_t)o->tokens));
	K3_TRY(check_memory(t));
	if (o->save)
		K3_TRY(k3_fs_mkdirs(o->save));
	K3_TRY(start_values(t, folder));
	/* last: a run that is refused leaves the table of an earlier one as it is */
	if (o->eval_log)
		K3_TRY(open_eval_log(t));
out:
	return ret;
}
