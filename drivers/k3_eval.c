/* k3_eval: held-out loss of a checkpoint, or text that it writes, with or without images before it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"
#include "eval.h"

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
text(struct k3_session *session, const char *prompt, size_t n_bytes, double temperature,
     uint64_t seed)
{
	unsigned char *out = malloc(n_bytes + 1);
	int ret = out ? k3_eval_generate(session, prompt, n_bytes, temperature, seed, out)
		      : K3_ENOMEM;

	if (ret == K3_OK) {
		fwrite(prompt, 1, strlen(prompt), stdout);
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

int
main(int argc, char **argv)
{
	const char *load = NULL, *data = NULL, *prompt = NULL, *caption = NULL;
	long long tokens = 1024, bytes = 200, seed = 0, tile = 0, window = 0, trace_tasks = 0,
		  samples = 2;
	enum k3_device place = K3_DEVICE_CPU;
	enum k3_dtype dtype = K3_F32;
	const char *device = "cpu", *types = "fp32", *trace = NULL, *machine_file = NULL;
	struct k3_machine machine;
	double temperature = 0;
	bool cut_state = false, images = false;
	struct k3_option table[] = {
		{"load", "DIR", K3_OPT_STRING, &load, 0, 0,
		 "checkpoint, or the folder above: the newest complete one", false},
		{"data", "X.k3t", K3_OPT_STRING, &data, 0, 0,
		 "prints tokens, loss_nats and accuracy over its labels", false},
		{"tokens", "T", K3_OPT_INT, &tokens, 1, 1e7,
		 "tokens of a microbatch with --data, most tokens of a document with --caption "
		 "(1024)",
		 false},
		{"prompt", "TEXT", K3_OPT_STRING, &prompt, 0, 0, "continues the text, byte by byte",
		 false},
		{"caption", "X.k3t", K3_OPT_STRING, &caption, 0, 0,
		 "what the model writes greedily after the images of documents, beside what stands "
		 "there",
		 false},
		{"samples", "N", K3_OPT_INT, &samples, 1, 1e9,
		 "documents with images for --caption (2)", false},
		{"bytes", "N", K3_OPT_INT, &bytes, 1, 1e6, "bytes to write after the prompt (200)",
		 false},
		{"temperature", "X", K3_OPT_REAL, &temperature, 0, 100,
		 "of sampling; 0: the likeliest byte (0)", false},
		{"seed", "N", K3_OPT_INT, &seed, 0, 9e15, "of sampling (0)", false},
		{"tile-tokens", "N|all", K3_OPT_TILE, &tile, 0, 0,
		 "rows of a token tile: a multiple of 64, or all (all)", false},
		K3_MACHINE_OPTION(&machine_file),
		{"window", "N", K3_OPT_INT, &window, 0, 1e9,
		 "most tasks in flight; 0: unlimited (0)", false},
		{"cut-state", NULL, K3_OPT_SWITCH, &cut_state, 0, 0,
		 "for tests: KDA's state and convolution end at each tile", false},
		K3_DEVICE_OPTION(&device),
		K3_DTYPE_OPTION(&types),
		K3_TRACE_OPTIONS(&trace, &trace_tasks),
	};
	struct k3_session session = {0};
	int first, status = 2, ret;

	k3_log_program("k3_eval");
	ret = k3_options_parse(
		"k3_eval", "--load DIR --data X.k3t|--prompt TEXT|--caption X.k3t [OPTIONS]",
		"Loss of a checkpoint on a dataset, a continuation of a prompt, or captions of "
		"images.",
		table, sizeof(table) / sizeof(table[0]), argc, argv, &first);
	if (ret == K3_EINTR)
		return 0;
	K3_TRY(ret);
	if (first < argc || !load || !!data + !!prompt + !!caption != 1) {
		k3_error("drivers", "%s",
			 first < argc ? "k3_eval takes options only"
			 : !load      ? "--load is missing (--help tells more)"
				      : "one of --data, --prompt and --caption is needed");
		K3_TRY(K3_EINVAL);
	}
	K3_TRY(k3_device_parse(&place, device));
	K3_TRY(k3_session_dtype(&dtype, types));
	if (data || caption)
		K3_TRY(has_images(data ? data : caption, &images));
	K3_TRY(k3_session_machine(&machine, machine_file));
	K3_TRY(k3_eval_open(&session, load, (uint32_t)tile,
			    &(struct k3_runtime_options){.window = (uint32_t)window,
							 .device = place,
							 .trace_dir = trace,
							 .trace_most_tasks = (size_t)trace_tasks},
			    cut_state, &machine, images, dtype));
	if (data)
		K3_TRY(k3_session_check_data(&session, data));
	status = 1;
	if (data)
		K3_TRY(loss(&session, data, (size_t)tokens));
	else if (caption)
		K3_TRY(k3_eval_captions(&session, caption, (size_t)samples, (size_t)tokens,
					stdout));
	else
		K3_TRY(text(&session, prompt, (size_t)bytes, temperature, (uint64_t)seed));
	K3_TRY(k3_runtime_trace_finish(session.runtime));
	if (fflush(stdout) != 0 || ferror(stdout)) {
		k3_error("drivers", "the result could not be written");
		K3_TRY(K3_EIO);
	}
	status = 0;
out:
	if (ret == K3_ENOMEM)
		k3_error("drivers", "%s", k3_status_text(ret));
	k3_session_close(&session);
	return status;
}
