/* k3_eval: held-out loss of a checkpoint, or text that it writes, with or without images before
 * it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "eval.h"

struct arguments {
	const char *load, *data, *prompt, *caption, *trace, *machine, *device, *dtype, *comm;
	long long tokens, bytes, seed, tile, window, trace_tasks, samples;
	double temperature;
	bool cut_state;
};

static int
loss(struct k3_session *session, const char *data, size_t tokens)
{
	struct k3_eval_result r;
	int ret = k3_session_eval(session, data, tokens, &r);

	if (ret != K3_OK)
		return ret;
	if (r.tokens == 0 || !isfinite(r.loss_sum)) {
		k3_error("drivers", "%s: loss %g over %.0f labels: there is no mean to print", data,
			 r.loss_sum, r.tokens);
		return K3_EMATH;
	}
	printf("tokens\tloss_nats\taccuracy\n%.0f\t%.9g\t%.9g\n", r.tokens, r.loss_sum / r.tokens,
	       r.correct / r.tokens);
	return K3_OK;
}

static int
text(struct k3_session *session, const struct arguments *a)
{
	size_t n_bytes = (size_t)a->bytes;
	unsigned char *out = malloc(n_bytes + 1);
	int ret = out ? k3_eval_generate(session, a->prompt, n_bytes, a->temperature,
					 (uint64_t)a->seed, out)
		      : K3_ENOMEM;

	if (ret == K3_OK) {
		fwrite(a->prompt, 1, strlen(a->prompt), stdout);
		fwrite(out, 1, n_bytes, stdout);
		printf("\n");
	}
	free(out);
	return ret;
}

/* Has a data set images?  Then the model is opened with its tower. */
static int
has_images(const char *path, bool *images)
{
	struct k3_k3t file;
	int ret = k3_k3t_open(&file, path);

	if (ret != K3_OK)
		return ret;
	*images = file.n_items > 0;
	k3_k3t_close(&file);
	return K3_OK;
}

/* One use at a time, and no option that it would pass over. */
static int
check_use(const struct arguments *a, const struct k3_option *table, size_t n)
{
	static const struct {
		const char *option, *uses;
	} of[] = {
		{"tokens", "--data or --caption"}, {"samples", "--caption"}, {"bytes", "--prompt"},
		{"temperature", "--prompt"},	   {"seed", "--prompt"},
	};
	const char *const given[] = {a->data ? "--data" : NULL, a->prompt ? "--prompt" : NULL,
				     a->caption ? "--caption" : NULL};
	const char *use = NULL;
	int ret = K3_OK;

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		if (given[i] && use) {
			k3_error("drivers", "%s and %s are given: one at a time is possible", use,
				 given[i]);
			return K3_EINVAL;
		}
		use = given[i] ? given[i] : use;
	}
	if (!use) {
		k3_error("drivers", "one of --data, --prompt and --caption is needed");
		return K3_EINVAL;
	}
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		if (k3_option_given(table, n, of[i].option) && !strstr(of[i].uses, use)) {
			k3_error("drivers", "--%s: belongs to %s, and %s was given", of[i].option,
				 of[i].uses, use);
			ret = K3_EINVAL;
		}
	return ret;
}

/* K3_EINTR: help was printed. */
static int
parse(struct arguments *a, int argc, char **argv)
{
	struct k3_option table[] = {
		{"load", "DIR", K3_OPT_STRING, &a->load, 0, 0,
		 "checkpoint, or the folder above: the newest complete one", false},
		{"data", "X.k3t", K3_OPT_STRING, &a->data, 0, 0,
		 "prints tokens, loss_nats and accuracy over its labels", false},
		{"tokens", "T", K3_OPT_INT, &a->tokens, 1, 1e7,
		 "tokens of a microbatch with --data, most tokens of a document with --caption "
		 "(1024)",
		 false},
		{"prompt", "TEXT", K3_OPT_STRING, &a->prompt, 0, 0,
		 "continues the text, byte by byte", false},
		{"caption", "X.k3t", K3_OPT_STRING, &a->caption, 0, 0,
		 "what the model writes greedily after the images of documents, beside what stands "
		 "there",
		 false},
		{"samples", "N", K3_OPT_INT, &a->samples, 1, 1e9,
		 "documents with images for --caption (2)", false},
		{"bytes", "N", K3_OPT_INT, &a->bytes, 1, 1e6,
		 "bytes to write after the prompt (200)", false},
		{"temperature", "X", K3_OPT_REAL, &a->temperature, 0, 100,
		 "of sampling; 0: the likeliest byte (0)", false},
		{"seed", "N", K3_OPT_INT, &a->seed, 0, 9e15, "of sampling (0)", false},
		{"tile-tokens", "N|all", K3_OPT_TILE, &a->tile, 0, 0,
		 "rows of a token tile: a multiple of 64, or all (all)", false},
		K3_MACHINE_OPTION(&a->machine),
		{"window", "N", K3_OPT_INT, &a->window, 0, 1e9,
		 "most tasks in flight; 0: unlimited (0)", false},
		{"cut-state", NULL, K3_OPT_SWITCH, &a->cut_state, 0, 0,
		 "for tests: KDA's state and convolution end at each tile", false},
		K3_DEVICE_OPTION(&a->device),
		K3_COMM_OPTION(&a->comm),
		K3_DTYPE_OPTION(&a->dtype),
		K3_TRACE_OPTIONS(&a->trace, &a->trace_tasks),
	};
	int first, ret;

	K3_TRY(k3_options_parse(
		"k3_eval", "--load DIR --data X.k3t|--prompt TEXT|--caption X.k3t [OPTIONS]",
		"Loss of a checkpoint on a dataset, a continuation of a prompt, or captions of "
		"images.",
		table, sizeof(table) / sizeof(table[0]), argc, argv, &first));
	if (first < argc) {
		k3_error("drivers", "%s: k3_eval takes options only", argv[first]);
		K3_TRY(K3_EINVAL);
	}
	if (!a->load) {
		k3_error("drivers", "--load is missing (--help tells more)");
		ret = K3_EINVAL;
	}
	if (check_use(a, table, sizeof(table) / sizeof(table[0])) != K3_OK)
		ret = K3_EINVAL;
out:
	return ret;
}

static int
open_session(struct k3_session *session, struct k3_machine *machine, const struct arguments *a)
{
	struct k3_runtime_options runtime = {.window = (uint32_t)a->window,
					     .trace_dir = a->trace,
					     .trace_most_tasks = (size_t)a->trace_tasks};
	enum k3_dtype dtype;
	bool images = false;
	int ret = k3_device_parse(&runtime.device, a->device);

	if (k3_transport_parse(&runtime.comm, a->comm) != K3_OK)
		ret = K3_EINVAL;
	if (k3_session_dtype(&dtype, "dtype", a->dtype) != K3_OK)
		ret = K3_EINVAL;
	K3_TRY(ret);
	if (a->data || a->caption)
		K3_TRY(has_images(a->data ? a->data : a->caption, &images));
	K3_TRY(k3_session_machine(machine, a->machine, runtime.device));
	K3_TRY(k3_eval_open(session, a->load, (uint32_t)a->tile, &runtime, a->cut_state, machine,
			    images, dtype));
	if (a->data)
		K3_TRY(k3_session_check_data(session, a->data, (size_t)a->tokens));
out:
	return ret;
}

static int
run(struct k3_session *session, const struct arguments *a)
{
	int ret;

	if (a->data)
		K3_TRY(loss(session, a->data, (size_t)a->tokens));
	else if (a->caption)
		K3_TRY(k3_eval_captions(session, a->caption, (size_t)a->samples, (size_t)a->tokens,
					stdout));
	else
		K3_TRY(text(session, a));
	K3_TRY(k3_runtime_trace_finish(session->runtime));
	if (fflush(stdout) != 0 || ferror(stdout)) {
		k3_error("drivers", "the result could not be written");
		ret = K3_EIO;
	}
out:
	return ret;
}

int
main(int argc, char **argv)
{
	struct arguments a = {.tokens = 1024,
			      .bytes = 200,
			      .samples = 2,
			      .device = "cpu",
			      .dtype = "fp32",
			      .comm = "none"};
	struct k3_session session = {0};
	struct k3_machine machine;
	int status = 2, ret;

	k3_log_program("k3_eval");
	ret = parse(&a, argc, argv);
	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
	K3_TRY(open_session(&session, &machine, &a));
	ret = run(&session, &a);
	/* data that the model can't take, memory that StarPU may not: both show with the first plan
	 */
	status = ret == K3_OK ? 0 : ret == K3_ELIMIT || ret == K3_EINVAL ? 2 : 1;
out:
	if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	k3_session_close(&session);
	return status;
}
