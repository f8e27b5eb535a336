/* From plan to bits: submission, handles, memory; in this process, through StarPU. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../common/rng.h"
#include "../common/status.h"
#include "golden.h"
#include "scratch.h"
#include "spine.h"

#define TEST(name) Test(run_spine, name, .init = scratch_start, .fini = scratch_stop, .timeout = 60)

/* Hash over the bits of the loss and of every gradient. */
static uint64_t
result_bits(struct spine *s)
{
	const struct k3_model *m = s->session.model;
	uint64_t hash = K3_FNV_START;
	double acc[K3_LOSS_LEN];

	cr_assert_eq(k3_store_datum_read(s->session.store, NULL, m->loss_acc, acc), K3_OK);
	cr_assert(acc[K3_LOSS_SUM] > 1 && isfinite(acc[K3_LOSS_SUM]));
	hash = k3_fnv1a(hash, acc, sizeof(acc));
	for (uint32_t b = 0; b < m->n_blocks; b++) {
		uint32_t datum = m->param_block[0] + m->n_blocks + b;
		void *block = malloc(m->persist[datum].bytes + 1);
		cr_assert_eq(m->persist[datum].kind, K3_DATA_GRAD);
		cr_assert_eq(k3_store_datum_read(s->session.store, NULL, datum, block), K3_OK);
		hash = k3_fnv1a(hash, block, m->persist[datum].bytes);
		free(block);
	}
	return hash;
}

static uint64_t
bits_under(const char *scheduler, const char *workers, uint32_t window)
{
	struct spine s;
	uint64_t bits;

	setenv("STARPU_SCHED", scheduler, 1);
	setenv("STARPU_NCPU", workers, 1);
	spine_open(&s, golden_path("golden/text_packed"), 64, window);
	cr_assert_str_eq(k3_runtime_scheduler(s.session.runtime), scheduler);
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	spine_run(&s, s.t);
	bits = result_bits(&s);
	spine_close(&s);
	return bits;
}

TEST(loss_and_gradients_have_the_same_bits_under_every_scheduler)
{
	uint64_t bits = bits_under("eager", "1", 0);

	cr_assert_eq(bits_under("eager", "2", 0), bits, "eager, 2 workers");
	cr_assert_eq(bits_under("lws", "2", 0), bits, "lws");
	cr_assert_eq(bits_under("dmdas", "2", 0), bits, "dmdas");
	cr_assert_eq(bits_under("prio", "2", 5), bits, "prio, window 5");
}

TEST(tasks_hold_more_data_than_starpus_compiled_limit)
{
	struct spine s;
	uint32_t most = 0;

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_checkpoint_load_params(s.session.store, s.st), K3_OK);
	spine_run(&s, s.t);
	for (size_t i = 0; i < s.plan->n_tasks; i++)
		most = s.plan->task[i].n_access > most ? s.plan->task[i].n_access : most;
	cr_assert_gt(most, STARPU_NMAXBUFS, "the case is too small to try that");
	spine_close(&s);
}

TEST(handles_hold_no_more_than_the_bound_and_slots_are_shared_by_plans)
{
	static const char *const schedulers[] = {"eager", "random", "lws", "dmdas"};

	for (size_t i = 0; i < 4; i++) {
		struct k3_memory memory;
		struct spine s;
		setenv("STARPU_SCHED", schedulers[i], 1);
		spine_open(&s, golden_path("golden/text_packed"), 64, 0);
		cr_assert_eq(k3_store_bytes_held(s.session.store), 0,
			     "something is held before anything was written");
		cr_assert_eq(k3_session_init(&s.session, 0), K3_OK);
		spine_run(&s, s.t);
		k3_memory_init(&memory, s.session.model);
		cr_assert_eq(k3_memory_add(&memory, s.plan), K3_OK);
		uint64_t bound = k3_memory_bound(&memory),
			 held = k3_store_bytes_held(s.session.store);
		cr_assert(held <= bound, "%s: %llu bytes held, the bound is %llu", schedulers[i],
			  (unsigned long long)held, (unsigned long long)bound);
		cr_assert(held > bound / 2, "%s: the bound of %llu is far from the %llu held",
			  schedulers[i], (unsigned long long)bound, (unsigned long long)held);
		spine_run(&s, s.t);
		cr_assert_eq(k3_store_bytes_held(s.session.store), held,
			     "the same plan again needs new memory");
		k3_memory_fini(&memory);
		spine_close(&s);
	}
}

TEST(communication_is_refused_before_anything_is_submitted)
{
	struct spine s;
	struct k3_plan_options options;
	struct k3_model *shard = NULL;
	struct k3_plan *plan = NULL;
	struct k3_microbatch what = {.backward = true, .first = true};
	const double hyper[K3_HYPER_LEN] = {0};

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	k3_plan_options_init(&options);
	options.tile_tokens = 64;
	options.mesh = (struct k3_mesh){1, 2, 1, 0, false};
	cr_assert_eq(k3_model_create(&shard, &s.session.model->config, &options), K3_OK);
	struct k3_layout layout = {.n_tokens = s.t, .doc_ids = s.docs};
	struct k3_host_batch batch = {.ids = s.ids, .labels = s.labels};
	cr_assert_eq(k3_plan_microbatch(&plan, shard, &layout, &what), K3_OK);
	cr_assert_eq(k3_submit_plan(s.session.store, plan, &batch, hyper), K3_ENODEV);
	cr_assert_not_null(strstr(scratch_log(), "one rank"));
	cr_assert_eq(starpu_task_nsubmitted(), 0);
	cr_assert_eq(k3_store_bytes_held(s.session.store), 0);
	k3_plan_destroy(plan);
	k3_model_destroy(shard);
	spine_close(&s);
}

TEST(short_lived_data_that_are_not_kept_cannot_be_read)
{
	struct spine s;
	float x[1];

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_session_init(&s.session, 0), K3_OK);
	spine_run(&s, s.t);
	int32_t datum = k3_plan_find(s.plan, "prefix", 1, 0, -1);
	cr_assert_neq(datum, K3_NO_DATUM);
	cr_assert_eq(k3_store_datum_read(s.session.store, s.plan, (uint32_t)datum, x), K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "prefix"));
	spine_close(&s);
}

TEST(data_that_nobody_wrote_cannot_be_read)
{
	struct spine s;
	double acc[K3_LOSS_LEN];

	spine_open(&s, golden_path("golden/text_packed"), 64, 0);
	cr_assert_eq(k3_store_datum_read(s.session.store, NULL, s.session.model->loss_acc, acc),
		     K3_EINVAL);
	cr_assert_not_null(strstr(scratch_log(), "never written"));
	spine_close(&s);
}

TEST(no_worker_is_an_error_and_not_a_hang)
{
	struct k3_runtime *runtime = NULL;

	setenv("STARPU_NCPU", "0", 1);
	cr_assert_eq(k3_runtime_create(&runtime, &(struct k3_runtime_options){0}), K3_ENODEV);
	cr_assert_null(runtime);
	cr_assert_not_null(strstr(scratch_log(), "worker"));
}
