/* The machine file, the cost of a task, rates from samples. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/status.h"
#include "../planner/rate_fit.h"
#include "scratch.h"

static void
quiet_start(void)
{
	scratch_start();
	unsetenv("K3_MACHINE");
	setenv("XDG_CONFIG_HOME", scratch_path("config"), 1);
}

TestSuite(machine, .init = quiet_start, .fini = scratch_stop, .timeout = 60);

/* A machine in which no two numbers are equal. */
static struct k3_machine
odd_machine(void)
{
	struct k3_machine m;
	double x = 1;

	k3_machine_init(&m, "Odd", 7);
	m.task_us = x += 0.125;
	m.bytes_per_us = x += 0.125;
	for (size_t i = 0; i < K3_GEMM_SIZES; i++)
		m.gemm_flops_per_us[i] = x += 0.125;
	for (int op = 0; op < K3_N_OPS; op++) {
		m.rate[op].call_us = x += 0.125;
		m.rate[op].flops_per_us = x += 0.125;
		m.rate[op].bytes_per_us = op % 3 ? x += 0.125 : 0;
		m.rate[op].param_bytes_per_us = op % 2 ? x += 0.1 : 0;
	}
	snprintf(m.gpu.name, sizeof(m.gpu.name), "Odd GPU");
	m.gpu.task_us = x += 0.125;
	m.gpu.f32_flops_per_us = x += 0.125;
	m.gpu.bf16_flops_per_us = x += 0.125;
	m.gpu.bytes_per_us = x += 0.125;
	m.measured = true;
	return m;
}

Test(machine, a_saved_machine_is_loaded_with_the_same_bits)
{
	struct k3_machine m = odd_machine(), back;

	cr_assert_eq(k3_machine_save(&m, scratch_path("a/b/m.json")), K3_OK, "%s", scratch_log());
	k3_machine_init(&back, "", 1);
	cr_assert_eq(k3_machine_load(&back, scratch_path("a/b/m.json")), K3_OK, "%s",
		     scratch_log());
	cr_expect_str_eq(back.host, m.host);
	cr_expect_str_eq(back.processor, m.processor);
	cr_expect_str_eq(back.blas, "Odd");
	cr_expect_eq(back.cores, 7);
	cr_expect(back.measured);
	cr_expect_eq(back.task_us, m.task_us);
	cr_expect_eq(back.bytes_per_us, m.bytes_per_us);
	cr_expect_arr_eq(back.gemm_flops_per_us, m.gemm_flops_per_us, sizeof(m.gemm_flops_per_us));
	cr_expect_arr_eq(back.rate, m.rate, sizeof(m.rate));
	cr_expect_arr_eq(&back.gpu, &m.gpu, sizeof(m.gpu));
	/* a machine without a GPU leaves what is known of one */
	m.gpu.name[0] = '\0';
	cr_assert_eq(k3_machine_save(&m, scratch_path("none.json")), K3_OK);
	back.gpu.task_us = 77;
	cr_assert_eq(k3_machine_load(&back, scratch_path("none.json")), K3_OK);
	cr_expect(back.gpu.task_us == 77 && strcmp(back.gpu.name, "Odd GPU") == 0);
}

/* The saved file with one field changed is refused; the message holds file, field and value, and
 * the machine is as it was. value NULL: the field is taken away. */
static void
expect_refused(const char *object, const char *field, const char *value)
{
	struct k3_machine m = odd_machine(), before = m;
	const char *path = scratch_path("bad.json");
	json_t *root, *o;

	cr_assert_eq(k3_machine_save(&m, path), K3_OK);
	root = o = json_load_file(path, 0, NULL);
	cr_assert_not_null(root);
	if (object && strncmp(object, "operations.", 11) == 0)
		o = json_object_get(json_object_get(root, "operations"), object + 11);
	else if (object)
		o = json_object_get(root, object);
	cr_assert_not_null(o, "%s", object);
	if (value)
		json_object_set_new(o, field, json_loads(value, JSON_DECODE_ANY, NULL));
	else
		json_object_del(o, field);
	json_dump_file(root, path, 0);
	json_decref(root);
	scratch_log();
	cr_expect_eq(k3_machine_load(&m, path), K3_EFORMAT, "%s = %s is taken", field, value);
	const char *log = scratch_log();
	cr_expect(strstr(log, "bad.json") && strstr(log, field) &&
			  strstr(log, value ? value : "missing"),
		  "file, %s and %s are not all in: %s", field, value ? value : "missing", log);
	cr_expect(*log && strchr(log, '\n') == log + strlen(log) - 1, "not one line: %s", log);
	cr_expect_arr_eq(&m, &before, sizeof(m));
}

Test(machine, every_fault_of_a_file_is_refused_with_file_field_and_value)
{
	static const struct {
		const char *object, *field, *value;
	} fault[] = {
		{NULL, "format", NULL},
		{NULL, "format", "2"},
		{NULL, "host", "3"},
		{NULL, "host", NULL},
		{NULL, "processor", "[]"},
		{NULL, "blas", "null"},
		{NULL, "cores", "0"},
		{NULL, "cores", "-1"},
		{NULL, "cores", "2.5"},
		{NULL, "cores", "70000"},
		{NULL, "cores", "\"two\""},
		{NULL, "task_us", "-0.5"},
		{NULL, "task_us", NULL},
		{NULL, "bytes_per_us", "0"},
		{NULL, "bytes_per_us", "1e300"},
		{NULL, "gemm_flops_per_us", "5"},
		{"gemm_flops_per_us", "256", NULL},
		{"gemm_flops_per_us", "64", "0"},
		{NULL, "gpu", "3"},
		{NULL, "gpu", "null"},
		{"gpu", "name", "7"},
		{"gpu", "name", NULL},
		{"gpu", "name", "\"\""},
		{"gpu", "flops_per_us", "12"},
		{"gpu", "task_us", "-1"},
		{"gpu", "f32_flops_per_us", NULL},
		{"gpu", "bf16_flops_per_us", "0"},
		{"gpu", "bytes_per_us", "\"much\""},
		{NULL, "operations", NULL},
		{NULL, "operations", "[1]"},
		{"operations", "nosuch_op", "{}"},
		{"operations", "embed_fwd", "{}"},
		{"operations", "embed_fwd", "7"},
		{"operations.adamw_step", "flops_per_us", "-3"},
		{"operations.adamw_step", "flops_per_us", "\"fast\""},
		{"operations.adamw_step", "flop_per_us", "12"},
		{"operations.adamw_step", "param_bytes_per_us", "0"},
	};

	for (size_t i = 0; i < sizeof(fault) / sizeof(fault[0]); i++)
		expect_refused(fault[i].object, fault[i].field, fault[i].value);
}

Test(machine, what_is_no_json_object_is_refused_with_its_line)
{
	static const char *const bad[] = {"", "{", "[]", "{\"format\": 1, \"format\": 1}"};
	struct k3_machine m;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		scratch_write("bad.json", bad[i], strlen(bad[i]));
		k3_machine_init(&m, "", 1);
		cr_expect_eq(k3_machine_load(&m, scratch_path("bad.json")), K3_EFORMAT, "%s",
			     bad[i]);
		cr_expect(strstr(scratch_log(), "bad.json"));
	}
}

Test(machine, the_place_is_named_or_in_the_users_configuration)
{
	setenv("K3_MACHINE", "/named", 1);
	char *path = k3_machine_path("node7");
	cr_expect_str_eq(path, "/named");
	free(path);
	unsetenv("K3_MACHINE");
	setenv("XDG_CONFIG_HOME", "/xdg", 1);
	path = k3_machine_path("node7");
	cr_expect_str_eq(path, "/xdg/starpu-k3/machine-node7.json");
	free(path);
	unsetenv("XDG_CONFIG_HOME");
	setenv("HOME", "/home/u", 1);
	path = k3_machine_path("node7");
	cr_expect_str_eq(path, "/home/u/.config/starpu-k3/machine-node7.json");
	free(path);
	unsetenv("HOME");
	cr_expect_null(k3_machine_path("node7"));
}

Test(machine, a_named_file_must_exist_and_the_default_place_may_be_empty)
{
	struct k3_machine m;

	cr_expect_eq(k3_machine_open(&m, NULL, "X", 3), K3_OK, "%s", scratch_log());
	cr_expect(!m.measured && m.cores == 3);
	cr_expect_neq(k3_machine_open(&m, scratch_path("nosuch"), "X", 3), K3_OK);
	cr_expect(strstr(scratch_log(), "nosuch"));
	setenv("K3_MACHINE", scratch_path("nosuch2"), 1);
	cr_expect_neq(k3_machine_open(&m, NULL, "X", 3), K3_OK);
	cr_expect(strstr(scratch_log(), "nosuch2"));
}

Test(machine, a_file_of_this_machine_is_used_without_a_word_and_another_with_a_warning)
{
	struct k3_machine m = odd_machine(), here;
	char *path = k3_machine_path(m.host);

	cr_assert_eq(k3_machine_save(&m, path), K3_OK);
	cr_expect_eq(k3_machine_open(&here, NULL, "Odd", 2), K3_OK);
	cr_expect_str_empty(scratch_log());
	cr_expect(here.measured && here.cores == 7, "cores are the file's");
	cr_expect_eq(k3_machine_open(&here, NULL, "Even", 2), K3_OK);
	const char *log = scratch_log();
	cr_expect(strstr(log, "warning") && strstr(log, "\"Odd\"") && strstr(log, "\"Even\""), "%s",
		  log);
	snprintf(m.host, sizeof(m.host), "elsewhere");
	snprintf(m.processor, sizeof(m.processor), "Abacus 3");
	cr_assert_eq(k3_machine_save(&m, path), K3_OK);
	cr_expect_eq(k3_machine_open(&here, path, "Odd", 2), K3_OK);
	log = scratch_log();
	cr_expect(strstr(log, "\"elsewhere\"") && strstr(log, "\"Abacus 3\""), "%s", log);
	cr_expect_eq(here.rate[K3_OP_EMBED_FWD].call_us, m.rate[K3_OP_EMBED_FWD].call_us);
	free(path);
}

Test(machine, the_cost_is_the_sum_of_the_terms)
{
	struct k3_machine m;

	k3_machine_init(&m, "", 1);
	m.task_us = 2;
	m.rate[K3_OP_EXPERT_FWD] = (struct k3_rate){3, 10, 4, 5};
	/* 2 + 3 + 1000/10 + (60 - 20)/4 + 20/5 */
	cr_expect_float_eq(k3_machine_cost_us(&m, K3_OP_EXPERT_FWD, 1000, 60, 20), 119, 1e-12);
	m.rate[K3_OP_EXPERT_FWD] = (struct k3_rate){3, 0, 0, 0};
	cr_expect_float_eq(k3_machine_cost_us(&m, K3_OP_EXPERT_FWD, 1000, 60, 20), 5, 1e-12);
}

Test(machine, every_operation_costs_something_even_when_it_does_nothing)
{
	struct k3_machine m;

	k3_machine_init(&m, "", 1);
	for (int op = 0; op < K3_N_OPS; op++) {
		double idle = k3_machine_cost_us(&m, (enum k3_op)op, 0, 0, 0);
		double work = k3_machine_cost_us(&m, (enum k3_op)op, 1e9, 1e9, 5e8);
		cr_expect_gt(idle, 0, "%s", k3_op_name((enum k3_op)op));
		cr_expect_gt(work, idle, "%s: work is free", k3_op_name((enum k3_op)op));
	}
	m.task_us = 0;
	m.rate[0] = (struct k3_rate){0};
	cr_expect_gt(k3_machine_cost_us(&m, (enum k3_op)0, 0, 0, 0), 0);
}

static struct k3_rate_sample
sample_of(const struct k3_rate *r, double flops, double bytes, double param_bytes)
{
	double us = r->call_us + flops / r->flops_per_us + (bytes - param_bytes) / r->bytes_per_us +
		    param_bytes / r->param_bytes_per_us;

	return (struct k3_rate_sample){flops, bytes, param_bytes, us};
}

Test(machine, exact_samples_give_back_their_rates)
{
	const struct k3_rate want = {17, 150e3, 9e3, 7e3};
	struct k3_rate_sample s[60];
	struct k3_rate got;
	size_t n = 0;

	for (size_t width = 128; width <= 1024; width *= 2)
		for (size_t t = 64; t <= 1024; t *= 2, n++) {
			double w = (double)width, rows = (double)t, weights = 4 * w * w;
			s[n] = sample_of(&want, 2 * rows * w * w, weights + 8 * rows * w, weights);
		}
	double error = k3_rate_fit(&got, s, n);
	cr_expect_lt(error, 1e-6);
	cr_expect_float_eq(got.call_us, want.call_us, 1e-3);
	cr_expect_lt(fabs(got.flops_per_us / want.flops_per_us - 1), 1e-4);
	cr_expect_lt(fabs(got.bytes_per_us / want.bytes_per_us - 1), 1e-4);
	cr_expect_lt(fabs(got.param_bytes_per_us / want.param_bytes_per_us - 1), 1e-4);
}

Test(machine, a_term_that_would_be_negative_is_left_out)
{
	/* falls with the bytes: time must not */
	const struct k3_rate_sample s[] = {{1e6, 1e3, 0, 30}, {1e6, 9e3, 0, 20}, {2e6, 9e3, 0, 45}};
	struct k3_rate got = {-1, -1, -1, -1};

	cr_expect_gt(k3_rate_fit(&got, s, 3), 0);
	cr_expect(got.call_us >= 0 && got.flops_per_us >= 0 && got.bytes_per_us >= 0 &&
		  got.param_bytes_per_us >= 0);
	cr_expect_gt(got.flops_per_us, 0);
}

Test(machine, one_sample_is_met_and_none_changes_nothing)
{
	const struct k3_rate_sample one = {5e6, 1e4, 1e3, 250}, zero = {5e6, 1e4, 1e3, 0};
	struct k3_rate got = {1, 2, 3, 4};
	struct k3_machine m;

	cr_expect_lt(k3_rate_fit(&got, NULL, 0), 0);
	cr_expect_lt(k3_rate_fit(&got, &zero, 1), 0);
	cr_expect(got.call_us == 1 && got.flops_per_us == 2 && got.bytes_per_us == 3 &&
		  got.param_bytes_per_us == 4);
	cr_expect_lt(k3_rate_fit(&got, &one, 1), 1e-9);
	k3_machine_init(&m, "", 1);
	m.task_us = 0;
	m.rate[K3_OP_LM_HEAD_DW] = got;
	cr_expect_float_eq(
		k3_machine_cost_us(&m, K3_OP_LM_HEAD_DW, one.flops, one.bytes, one.param_bytes),
		250, 1e-6);
}
