/* Command line of k3_data images.
 *
 * The summary is printed when both files have their names, so a table means that they are there.
 */
#include "data_images.h"

#include <inttypes.h>
#include <stdlib.h>

#include "../common/k3t_images.h"
#include "../common/k3t_import.h"
#include "../common/log.h"
#include "../common/options.h"
#include "../common/status.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char images_about[] =
	"The list has one JSON object a line, {\"text\": \"... <image> ...\", \"images\": "
	"[\"a.png\"]}:\n"
	"each <image> of the text stands for the next file of \"images\", PNG or JPEG, named "
	"relative\n"
	"to the list; a text without images is a sample too.  Tokens are bytes as k3_data tokens\n"
	"--bytes has them.  Of every 1/PART samples the last goes to X.val.k3t (--holdout).  "
	"Prints\n"
	"what both files hold; tokens without bos and eos, an image has one for 2 x 2 patches.";

static void
images_print(FILE *out, const char *path, const struct k3_k3t_images_count *count)
{
	fprintf(out, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", path,
		count->samples, count->images, count->patches, count->tokens);
}

int
k3i_data_images(int argc, char **argv, FILE *out)
{
	struct k3_k3t_images_options o;
	struct k3_k3t_images_count count[2];
	const char *output = NULL;
	k3_k3t_images_options_init(&o);
	long long vocab = o.vocab, limit = o.limit_patches, side = o.side_patches;
	struct k3_option options[] = {
		{"output", "X.k3t", K3_OPT_STRING, &output, 0, 0, "file made, also -o", false},
		{"limit-patches", "N", K3_OPT_INT, &limit, 1,
		 (double)K3_K3T_MAX_SIDE * K3_K3T_MAX_SIDE,
		 "larger images are reduced to N patches of 14 x 14 pixels before they are filled "
		 "up (65536)",
		 false},
		{"side-patches", "N", K3_OPT_INT, &side, 1, K3_K3T_MAX_SIDE,
		 "and to N patches a side (512)", false},
		{"vocab", "V", K3_OPT_INT, &vocab, K3_K3T_BYTE_VOCAB, INT32_MAX,
		 "ids are below V, at least 260 (260)", false},
		{"holdout", "PART", K3_OPT_REAL, &o.holdout, 0, 0.999,
		 "part of the samples for X.val.k3t, default 0.1; 0: none", false},
	};
	int first;
	int ret = k3_options_parse("k3_data images", "LIST.jsonl -o X.k3t [OPTIONS]", images_about,
				   options, LENGTH(options), argc, argv, &first);

	if (ret != K3_OK)
		return ret;
	if (argc - first != 1)
		k3_error("drivers", "k3_data images takes one list; --help says more");
	if (!output)
		k3_error("drivers", "-o X.k3t is missing; --help says more");
	if (argc - first != 1 || !output)
		return K3_EINVAL;
	o.vocab = (uint32_t)vocab;
	o.limit_patches = (uint32_t)limit;
	o.side_patches = (uint32_t)side;
	ret = k3_k3t_import_images(argv[first], output, &o, count);
	if (ret != K3_OK)
		return ret;
	fputs("file\tsamples\timages\tpatches\ttokens\n", out);
	images_print(out, output, &count[0]);
	if (o.holdout > 0) {
		char *val = k3_k3t_val_path(output);
		if (!val)
			return K3_ENOMEM;
		images_print(out, val, &count[1]);
		free(val);
	}
	return K3_OK;
}
