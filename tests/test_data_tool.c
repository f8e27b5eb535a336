/* Command lines of k3_data: what they make, and that a fault gives status 2, one message and no
 * file. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../common/k3t.h"
#include "../common/status.h"
#include "../drivers/data_tool.h"
#include "scratch.h"
#include "tool_case.h"

#define TEST(name) Test(data_tool, name, .init = scratch_start, .fini = tool_stop, .timeout = 60)

#define RUN(...) tool_run((const char *const[TOOL_WORDS]){__VA_ARGS__})

TEST(bytes_then_info_then_ngram)
{
	const char *out = scratch_path("x.k3t"), *val = scratch_path("x.val.k3t");
	struct k3_k3t f;

	scratch_write("text", "abababababababababab", 20);
	cr_assert_eq(RUN("tokens", "--bytes", scratch_path("text"), "-o", out), 0);
	cr_assert_str_empty(tool_table());
	cr_assert_eq(k3_k3t_open(&f, out), K3_OK);
	cr_assert(f.n_tokens == 18 && f.ids.vocab == 260 && f.ids.pad == 259);
	k3_k3t_close(&f);
	cr_assert_eq(RUN("info", out, val), 0);
	cr_assert_not_null(
		strstr(tool_table(), "x.val.k3t\t1\t2\t0\t2\t260\t256\t257\t258\t259\t"));
	cr_assert_eq(RUN("info", out, "--ngram", "2", val), 0);
	cr_assert_eq(strstr(tool_table(), "order\tcontext_bytes\ttokens\tloss_nats\n1\t0\t2\t"),
		     tool_table());
	cr_assert_not_null(strstr(tool_table(), "\n2\t1\t2\t"));
}

TEST(options_of_bytes_reach_the_file)
{
	struct k3_k3t f;

	scratch_write("text", "0123456789", 10);
	cr_assert_eq(RUN("tokens", "--output", scratch_path("x.k3t"), "--vocab=512", "--holdout",
			 "0.5", "--bytes", scratch_path("text")),
		     0);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.val.k3t")), K3_OK);
	cr_assert(f.n_tokens == 5 && k3_k3t_token(&f, 0) == '5' && f.ids.bos == 508);
	k3_k3t_close(&f);
}

/* 3 documents of 2 x 4 x 6 bytes, 3 newlines, bos and eos and 11 bytes of filler: 64 tokens each.
 */
TEST(recall_prints_its_sizes_and_what_chance_gives)
{
	struct k3_k3t f;

	cr_assert_eq(RUN("recall", "--documents", "3", "-o", scratch_path("x.k3t"), "--pairs", "4",
			 "--key-bytes=3", "--filler=9", "--multiple=64", "--seed=1", "--vocab=400"),
		     0);
	cr_assert_str_eq(tool_table(),
			 "documents\tdocument_tokens\tfiller_bytes\tlabels\tchance_accuracy\t"
			 "chance_loss_nats\n3\t64\t11\t12\t0.0625\t2.77258872\n");
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert(f.n_docs == 3 && f.n_tokens == 3 * 62 && f.ids.vocab == 400 && f.ids.eos == 397);
	k3_k3t_close(&f);
	cr_assert_eq(RUN("info", scratch_path("x.k3t")), 0);
	cr_assert_not_null(strstr(tool_table(), "\t3\t186\t174\t2\t400\t"));
}

TEST(a_token_dump_keeps_the_ids_that_were_given)
{
	static const uint16_t dump[] = {3, 4, 2, 5};
	struct k3_k3t f;

	scratch_write("dump", dump, sizeof(dump));
	cr_assert_eq(RUN("tokens", "--raw-u16", scratch_path("dump"), "-o", scratch_path("x.k3t"),
			 "--vocab", "9", "--eos", "2", "--bos", "0", "--pad", "8"),
		     0);
	cr_assert_eq(k3_k3t_open(&f, scratch_path("x.k3t")), K3_OK);
	cr_assert(f.n_docs == 2 && f.ids.vocab == 9 && f.ids.bos == 0 && f.ids.eos == 2 &&
		  f.ids.pad == 8 && f.ids.placeholder == K3_K3T_NO_ID);
	k3_k3t_close(&f);
	cr_assert_eq(RUN("info", scratch_path("x.k3t")), 0);
	cr_assert_not_null(strstr(tool_table(), "\t9\t0\t2\t-\t8\t"));
}

TEST(wrong_usage_gives_status_2_a_message_and_no_file)
{
	const char *text = scratch_path("text"), *out = scratch_path("x.k3t");
	const struct {
		const char *words[TOOL_WORDS], *message;
	} cases[] = {
		{{NULL}, "command \"\", allowed are tokens, images, recall and info"},
		{{"token"}, "command \"token\""},
		{{"tokens", text, "-o", out}, "give one of --bytes"},
		{{"tokens", "--bytes", "--raw-u16", text, "-o", out}, "give one of --bytes"},
		{{"tokens", "--bytes", text}, "-o X.k3t is missing"},
		{{"tokens", "--bytes", "-o", out}, "no input file"},
		{{"tokens", "--bytes", text, "-o"}, "--output needs a value"},
		{{"tokens", "--bytes", text, "-o", "x.bin"}, "x.bin: the name must end in .k3t"},
		{{"tokens", "--bytes", text, "-o", out, "--vocab", "259"}, "vocabulary 259"},
		{{"tokens", "--bytes", text, "-o", out, "--vocab", "ten"}, "--vocab ten"},
		{{"tokens", "--bytes", text, "-o", out, "--vocab", "2147483648"}, "2147483648"},
		{{"tokens", "--bytes", text, "-o", out, "--holdout", "1"}, "--holdout 1"},
		{{"tokens", "--bytes", text, "-o", out, "--holdout", "nan"}, "--holdout nan"},
		{{"tokens", "--bytes", text, "-o", out, "--eos", "1"}, "--eos has no effect"},
		{{"tokens", "--bytes", out, "-o", out}, "No such file"},
		{{"tokens", "--raw-u16", text, "-o", out, "--vocab", "9"},
		 "needs --vocab and --eos"},
		{{"tokens", "--raw-u16", text, "-o", out, "--eos", "9"}, "needs --vocab and --eos"},
		{{"tokens", "--raw-u16", text, text, "-o", out, "--vocab", "9", "--eos", "1"},
		 "is one file"},
		{{"tokens", "--raw-u32", text, "-o", out, "--vocab", "9", "--eos", "1", "--holdout",
		  "0.5"},
		 "--holdout has no effect together with --raw-u32"},
		{{"tokens", "--raw-u16", text, "-o", out, "--vocab", "9", "--eos", "9"},
		 "eos id 9"},
		{{"tokens", "--raw-u16", text, "-o", out, "--vocab", "9", "--eos", "1"},
		 "token 0 is"},
		{{"info"}, "no .k3t file"},
		{{"info", text}, "at least 128"},
		{{"info", "--ngram", "2", text}, "--ngram takes two files"},
		{{"info", "--ngram", "6", text, text}, "--ngram 6"},
		{{"recall", "-o", out}, "--documents N is missing"},
		{{"recall", "--documents", "1"}, "-o X.k3t is missing"},
		{{"recall", "--documents", "0", "-o", out}, "--documents 0"},
		{{"recall", "--documents", "1", "-o", out, text}, "takes options only"},
		{{"recall", "--documents", "1", "-o", out, "--key-bytes", "1", "--pairs", "27"},
		 "pairs 27, allowed are 1 to 26 (--pairs, --key-bytes)"},
		{{"recall", "--documents", "1", "-o", out, "--vocab", "259"},
		 "--vocab 259: must be"},
		{{"recall", "--documents", "1", "-o", out, "--seed", "-1"}, "--seed -1"},
	};

	scratch_write("text", "0123456789", 10);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = tool_run(cases[i].words);
		const char *log = scratch_log();
		cr_assert_eq(status, 2, "case %zu: status %d", i, status);
		cr_assert_not_null(strstr(log, cases[i].message), "case %zu: \"%s\" is not in: %s",
				   i, cases[i].message, log);
		cr_assert_eq(strchr(log, '\n'), log + strlen(log) - 1, "more than a line: %s", log);
		cr_assert_str_empty(tool_table());
		cr_assert_eq(scratch_files(), 1);
	}
}

TEST(a_table_that_cannot_be_written_is_a_failure)
{
	char *argv[] = {(char *)"k3_data", (char *)"info", (char *)scratch_path("x.k3t"), NULL};
	FILE *full = fopen("/dev/full", "w");

	scratch_write("text", "0123456789", 10);
	cr_assert_eq(RUN("tokens", "--bytes", scratch_path("text"), "-o", argv[2]), 0);
	cr_assert_eq(k3_data_tool(3, argv, full), 1);
	fclose(full);
}
