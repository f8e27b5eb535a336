/* Command lines of k3_data.
 *
 * --bytes, --raw-u16 and --raw-u32 say what the files are, so they take no value and the files are
 * positional words.  The trap: an option that the chosen kind does not use is refused, because
 * whoever gave it expects an effect.
 */
#include "data_tool.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../common/k3t_import.h"
#include "../common/k3t_info.h"
#include "../common/k3t_recall.h"
#include "../common/log.h"
#include "../common/ngram.h"
#include "../common/options.h"
#include "../common/status.h"
#include "data_images.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char about[] =
	"Makes data sets of tokens and describes them.\n\n"
	"  k3_data tokens --bytes FILE|DIR... -o X.k3t [--vocab 260] [--holdout 0.1]\n"
	"  k3_data tokens --raw-u16|--raw-u32 FILE -o X.k3t --vocab V --eos ID\n"
	"                 [--bos ID] [--pad ID]\n"
	"  k3_data images LIST.jsonl -o X.k3t [--limit-patches 65536] [--side-patches 512]\n"
	"                 [--vocab 260] [--holdout 0.1]\n"
	"  k3_data recall --documents N --seed S -o X.k3t [OPTIONS]\n"
	"  k3_data info X.k3t...\n"
	"  k3_data info --ngram N X.k3t X.val.k3t\n\n"
	"k3_data tokens --help, and so with images, recall and info, say more.";

static const char tokens_about[] =
	"With --bytes each file is a document and its bytes are the tokens; files below a folder\n"
	"come in sorted order, symbolic links are skipped.  bos, eos, placeholder and pad are the\n"
	"last four ids of the vocabulary.  The end of every file goes to X.val.k3t (--holdout).\n"
	"With --raw-u16 or --raw-u32 the file is a little-endian dump of ids, cut at each eos.";

static const char recall_about[] =
	"Documents of random key-value pairs, filler, and the same keys in another order with\n"
	"their values; the loss counts on these values alone.  Prints the sizes and what a model\n"
	"reaches that remembers nothing.  The same options give the same bytes.";

static const char info_about[] =
	"Prints documents, tokens, ids and checksum of data sets after reading all of each.\n"
	"With --ngram N: the loss in nats per byte of interpolated n-gram models of orders 1 to\n"
	"N, counted on X.k3t, on X.val.k3t.";

struct tokens_options {
	bool bytes, raw_u16, raw_u32;
	const char *output;
	long long vocab, bos, eos, pad;
	double holdout;
};

static int
usage_refuse(const char *text)
{
	k3_error("drivers", "%s; --help says more", text);
	return K3_EINVAL;
}

/* Options that the kind of input has no use for. */
static int
unused_check(const struct k3_option *options, size_t n, const char *kind, const char *const *unused,
	     size_t n_unused)
{
	for (size_t i = 0; i < n_unused; i++)
		if (k3_option_given(options, n, unused[i])) {
			k3_error("drivers", "--%s has no effect together with --%s", unused[i],
				 kind);
			return K3_EINVAL;
		}
	return K3_OK;
}

static int
bytes_run(const struct tokens_options *o, const struct k3_option *options, size_t n, char **files,
	  size_t n_files)
{
	static const char *const unused[] = {"bos", "eos", "pad"};
	uint32_t vocab = k3_option_given(options, n, "vocab") ? (uint32_t)o->vocab : 260;
	int ret = unused_check(options, n, "bytes", unused, LENGTH(unused));

	if (ret != K3_OK)
		return ret;
	return k3_k3t_import_bytes((const char *const *)files, n_files, o->output, vocab,
				   o->holdout);
}

static int
raw_run(const struct tokens_options *o, const struct k3_option *options, size_t n, char **files,
	size_t n_files)
{
	static const char *const unused[] = {"holdout"};
	const char *kind = o->raw_u16 ? "raw-u16" : "raw-u32";
	int ret = unused_check(options, n, kind, unused, LENGTH(unused));

	if (ret != K3_OK)
		return ret;
	if (!k3_option_given(options, n, "vocab") || !k3_option_given(options, n, "eos"))
		return usage_refuse("a token dump needs --vocab and --eos");
	if (n_files != 1)
		return usage_refuse("a token dump is one file");
	struct k3_k3t_ids ids = {(uint32_t)o->vocab, K3_K3T_NO_ID, (uint32_t)o->eos, K3_K3T_NO_ID,
				 K3_K3T_NO_ID};
	if (k3_option_given(options, n, "bos"))
		ids.bos = (uint32_t)o->bos;
	if (k3_option_given(options, n, "pad"))
		ids.pad = (uint32_t)o->pad;
	return k3_k3t_import_raw(files[0], o->raw_u16 ? 2 : 4, o->output, &ids);
}

static int
tokens_run(int argc, char **argv)
{
	struct tokens_options o = {.holdout = 0.1};
	struct k3_option options[] = {
		{"bytes", NULL, K3_OPT_SWITCH, &o.bytes, 0, 0, "text, a byte a token", false},
		{"raw-u16", NULL, K3_OPT_SWITCH, &o.raw_u16, 0, 0, "file of 16-bit ids", false},
		{"raw-u32", NULL, K3_OPT_SWITCH, &o.raw_u32, 0, 0, "file of 32-bit ids", false},
		{"output", "X.k3t", K3_OPT_STRING, &o.output, 0, 0, "file made, also -o", false},
		{"vocab", "V", K3_OPT_INT, &o.vocab, 1, INT32_MAX,
		 "ids are below V; with --bytes at least and by default 260", false},
		{"holdout", "PART", K3_OPT_REAL, &o.holdout, 0, 0.999,
		 "end of each file for X.val.k3t, default 0.1; 0: none", false},
		{"eos", "ID", K3_OPT_INT, &o.eos, 0, INT32_MAX, "end of a document", false},
		{"bos", "ID", K3_OPT_INT, &o.bos, 0, INT32_MAX, "beginning of a document", false},
		{"pad", "ID", K3_OPT_INT, &o.pad, 0, INT32_MAX, "filling, default eos", false},
	};
	int first;
	int ret = k3_options_parse("k3_data tokens", "KIND FILE... -o X.k3t [OPTIONS]",
				   tokens_about, options, LENGTH(options), argc, argv, &first);

	if (ret != K3_OK)
		return ret;
	if (o.bytes + o.raw_u16 + o.raw_u32 != 1)
		ret = usage_refuse("give one of --bytes, --raw-u16 and --raw-u32");
	if (!o.output)
		ret = usage_refuse("-o X.k3t is missing");
	if (first == argc)
		ret = usage_refuse("no input file is given");
	if (ret != K3_OK)
		return ret;
	return (o.bytes ? bytes_run : raw_run)(&o, options, LENGTH(options), argv + first,
					       (size_t)(argc - first));
}

static int
recall_run(int argc, char **argv, FILE *out)
{
	struct k3_recall_options o;
	struct k3_recall_shape shape;
	const char *output = NULL;
	k3_recall_options_init(&o);
	long long documents = 0, seed = 0, pairs = o.pairs, key_bytes = o.key_bytes,
		  value_bytes = o.value_bytes, filler = o.filler_bytes, multiple = o.multiple,
		  vocab = o.vocab;
	struct k3_option options[] = {
		{"documents", "N", K3_OPT_INT, &documents, 1, UINT32_MAX, "documents", false},
		{"seed", "S", K3_OPT_INT, &seed, 0, 9e15, "of everything random (0)", false},
		{"output", "X.k3t", K3_OPT_STRING, &output, 0, 0, "file made, also -o", false},
		{"pairs", "N", K3_OPT_INT, &pairs, 1, K3_RECALL_MAX_PAIRS,
		 "pairs of a document (16)", false},
		{"key-bytes", "N", K3_OPT_INT, &key_bytes, 1, K3_RECALL_MAX_WORD_BYTES,
		 "letters of a key (1)", false},
		{"value-bytes", "N", K3_OPT_INT, &value_bytes, 1, K3_RECALL_MAX_WORD_BYTES,
		 "hexadecimal digits of a value (1)", false},
		{"filler", "N", K3_OPT_INT, &filler, 0, 1 << 24,
		 "at least N bytes between pairs and questions (512)", false},
		{"multiple", "N", K3_OPT_INT, &multiple, 1, 1 << 24,
		 "more filler, until a document with bos and eos has a multiple of N tokens (1024)",
		 false},
		{"vocab", "V", K3_OPT_INT, &vocab, K3_K3T_BYTE_VOCAB, INT32_MAX,
		 "ids are below V, at least 260 (260)", false},
	};
	int first;
	int ret = k3_options_parse("k3_data recall", "--documents N -o X.k3t [OPTIONS]",
				   recall_about, options, LENGTH(options), argc, argv, &first);

	if (ret != K3_OK)
		return ret;
	if (first < argc)
		ret = usage_refuse("k3_data recall takes options only");
	if (!output)
		ret = usage_refuse("-o X.k3t is missing");
	if (!documents)
		ret = usage_refuse("--documents N is missing");
	if (ret != K3_OK)
		return ret;
	o = (struct k3_recall_options){(uint64_t)documents, (uint64_t)seed,	   (uint32_t)pairs,
				       (uint32_t)key_bytes, (uint32_t)value_bytes, (uint32_t)filler,
				       (uint32_t)multiple,  (uint32_t)vocab};
	ret = k3_k3t_recall(output, &o, &shape);
	if (ret != K3_OK)
		return ret;
	fprintf(out,
		"documents\tdocument_tokens\tfiller_bytes\tlabels\tchance_accuracy\tchance_loss_"
		"nats\n%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%.9g\t%.9g\n",
		o.documents, shape.document_tokens, shape.filler_bytes, shape.labels,
		1.0 / K3_RECALL_VALUES, log(K3_RECALL_VALUES));
	return K3_OK;
}

static int
info_run(int argc, char **argv, FILE *out)
{
	long long order = 0;
	struct k3_option options[] = {
		{"ngram", "N", K3_OPT_INT, &order, 1, K3_NGRAM_MAX_ORDER,
		 "loss of n-gram models, counts from the first file, on the second", false},
	};
	int first;
	int ret = k3_options_parse("k3_data info", "[--ngram N] X.k3t...", info_about, options,
				   LENGTH(options), argc, argv, &first);

	if (ret != K3_OK)
		return ret;
	if (first == argc)
		return usage_refuse("no .k3t file is given");
	if (order > 0 && argc - first != 2)
		return usage_refuse("--ngram takes two files, X.k3t and X.val.k3t");
	if (order > 0)
		return k3_ngram_print(out, argv[first], argv[first + 1], (int)order);
	return k3_k3t_info_print(out, (const char *const *)argv + first, (size_t)(argc - first));
}

static int
command_run(int argc, char **argv, FILE *out)
{
	static char output[] = "--output";
	int first, ret;

	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "-o") == 0)
			argv[i] = output;
	if (argc > 1 && strcmp(argv[1], "tokens") == 0)
		return tokens_run(argc - 1, argv + 1);
	if (argc > 1 && strcmp(argv[1], "images") == 0)
		return k3i_data_images(argc - 1, argv + 1, out);
	if (argc > 1 && strcmp(argv[1], "recall") == 0)
		return recall_run(argc - 1, argv + 1, out);
	if (argc > 1 && strcmp(argv[1], "info") == 0)
		return info_run(argc - 1, argv + 1, out);
	ret = k3_options_parse("k3_data", "tokens|images|recall|info ...", about, NULL, 0, argc,
			       argv, &first);
	if (ret == K3_OK)
		k3_error("drivers",
			 "command \"%s\", allowed are tokens, images, recall and info; --help says "
			 "more",
			 first < argc ? argv[first] : "");
	return ret == K3_OK ? K3_EINVAL : ret;
}

int
k3_data_tool(int argc, char **argv, FILE *out)
{
	int ret = command_run(argc, argv, out);

	if (fflush(out) != 0 || ferror(out)) {
		k3_error("drivers", "the table could not be written");
		return 1;
	}
	if (ret == K3_OK || ret == K3_EINTR)
		return 0;
	return ret == K3_ENOMEM ? 1 : 2;
}
