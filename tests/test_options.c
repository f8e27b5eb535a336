/* Command lines: what is taken, and that every fault is one line with option, value and what is
 * allowed, before any variable of a later option is believed. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/options.h"
#include "../common/status.h"
#include "scratch.h"

enum { N_OPTIONS = 6, MOST_WORDS = 12 };

struct values {
	bool quiet;
	const char *save;
	long long steps, signed_number, tile;
	double rate;
	struct k3_option options[N_OPTIONS];
	int argc, first;
	char *argv[MOST_WORDS];
};

/* Parses the words after the program's name; NULL ends them. */
static int
parse(struct values *v, const char *const words[])
{
	const struct k3_option options[N_OPTIONS] = {
		{"quiet", NULL, K3_OPT_SWITCH, &v->quiet, 0, 0, "says nothing", false},
		{"save", "DIR", K3_OPT_STRING, &v->save, 0, 0, "folder of checkpoints", false},
		{"steps", "N", K3_OPT_INT, &v->steps, 1, 1000000, "optimizer steps", false},
		{"shift", "N", K3_OPT_INT, &v->signed_number, -5, 5, "a signed number", false},
		{"rate", "X", K3_OPT_REAL, &v->rate, 1e-9, 1, "learning rate", false},
		{"tile", "N|all", K3_OPT_TILE, &v->tile, 0, 0, "rows of a tile", false},
	};

	*v = (struct values){.steps = 7, .rate = 0.5, .tile = 64, .argc = 1};
	memcpy(v->options, options, sizeof(options));
	v->argv[0] = "k3_test";
	for (; words[v->argc - 1]; v->argc++)
		v->argv[v->argc] = (char *)(uintptr_t)words[v->argc - 1];
	return k3_options_parse("k3_test", "[OPTIONS] FILE...", "Does a test.", v->options,
				N_OPTIONS, v->argc, v->argv, &v->first);
}

#define PARSE(v, ...) parse((v), (const char *const[]){__VA_ARGS__, NULL})

/* The words are refused with one line that holds all needles. */
static void
expect_refused(const char *const words[], const char *const needles[])
{
	struct values v;
	int ret = parse(&v, words);
	const char *log = scratch_log();

	cr_expect_eq(ret, K3_EINVAL, "%s %s is taken", words[0], words[1] ? words[1] : "");
	cr_expect(*log && strchr(log, '\n') == log + strlen(log) - 1, "not one line: %s", log);
	for (; *needles; needles++)
		cr_expect_not_null(strstr(log, *needles), "\"%s\" is not in: %s", *needles, log);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

TestSuite(options, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

Test(options, both_spellings_set_the_variable_and_the_given_flag)
{
	struct values v;

	cr_assert_eq(PARSE(&v, "--steps", "12", "--rate=1e-3", "--quiet", "--save=a=b"), K3_OK);
	cr_expect_eq(v.steps, 12);
	cr_expect_eq(v.rate, 1e-3);
	cr_expect(v.quiet);
	cr_expect_str_eq(v.save, "a=b");
	cr_expect(k3_option_given(v.options, N_OPTIONS, "steps"));
	cr_expect_not(k3_option_given(v.options, N_OPTIONS, "tile"));
	cr_expect_eq(v.first, v.argc);
}

Test(options, variables_keep_their_defaults_when_nothing_is_given)
{
	struct values v;

	cr_assert_eq(parse(&v, WORDS(NULL)), K3_OK);
	cr_expect_eq(v.steps, 7);
	cr_expect_eq(v.rate, 0.5);
	cr_expect_null(v.save);
	cr_expect_eq(v.first, 1);
}

Test(options, positional_words_keep_their_order_wherever_they_stand)
{
	struct values v;

	cr_assert_eq(PARSE(&v, "one", "--steps", "3", "two", "--quiet", "-", "--", "--rate"),
		     K3_OK);
	cr_assert_eq(v.argc - v.first, 4);
	cr_expect_str_eq(v.argv[v.first], "one");
	cr_expect_str_eq(v.argv[v.first + 1], "two");
	cr_expect_str_eq(v.argv[v.first + 2], "-");
	cr_expect_str_eq(v.argv[v.first + 3], "--rate");
	cr_expect_not(k3_option_given(v.options, N_OPTIONS, "rate"));
}

Test(options, bounds_and_negative_numbers_are_taken)
{
	struct values v;

	cr_assert_eq(PARSE(&v, "--shift", "-5", "--steps", "1000000", "--rate", "1"), K3_OK);
	cr_expect_eq(v.signed_number, -5);
	cr_expect_eq(v.steps, 1000000);
	cr_expect_eq(v.rate, 1.0);
}

Test(options, integers_outside_their_range_or_no_integers_are_refused)
{
	static const char *const bad[] = {"0",	 "-1",	  "1000001", "2147483648",
					  "ten", "1e300", "NaN",     "inf",
					  "",	 " 5",	  "5 ",	     "0x10",
					  "1.5", "5,6",	  "+-5",     "99999999999999999999999"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		expect_refused(WORDS("--steps", bad[i]),
			       WORDS("--steps", bad[i], "an integer from 1 to 1000000"));
		char joined[64];
		snprintf(joined, sizeof(joined), "--steps=%s", bad[i]);
		expect_refused(WORDS(joined), WORDS("--steps", bad[i]));
	}
}

Test(options, reals_outside_their_range_or_no_numbers_are_refused)
{
	static const char *const bad[] = {"0",	    "-1",  "1.0001", "2147483648", "ten",  "1e300",
					  "1e999",  "NaN", "nan",    "inf",	   "-inf", "",
					  "0x1p-3", "1e",  ".",	     "0.5x",	   " 0.5"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_refused(WORDS("--rate", bad[i]),
			       WORDS("--rate", bad[i], "a number from 1e-09 to 1"));
}

Test(options, tiles_are_multiples_of_64_or_all)
{
	static const char *const bad[] = {"0",	 "63",	       "65",  "-64", "ALL",
					  "64x", "2147483648", "1e2", "NaN"};
	struct values v;

	cr_assert_eq(PARSE(&v, "--tile", "all"), K3_OK);
	cr_expect_eq(v.tile, 0);
	cr_assert_eq(PARSE(&v, "--tile", "128"), K3_OK);
	cr_expect_eq(v.tile, 128);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_refused(WORDS("--tile", bad[i]), WORDS("--tile", bad[i]));
}

Test(options, unknown_options_are_refused_with_their_word)
{
	expect_refused(WORDS("--stops", "3"), WORDS("--stops", "--help"));
	expect_refused(WORDS("--step=3"), WORDS("--step=3"));
	expect_refused(WORDS("-x"), WORDS("-x"));
	expect_refused(WORDS("--=3"), WORDS("--=3"));
}

/* Who has three words to mend learns of three. */
Test(options, all_faults_are_told)
{
	struct values v;

	cr_expect_eq(PARSE(&v, "--steps", "0", "--nope", "--rate", "x", "--help"), K3_EINVAL);
	const char *log = scratch_log();
	cr_expect(strstr(log, "--steps 0: must be") && strstr(log, "unknown option --nope") &&
			  strstr(log, "--rate x: must be"),
		  "%s", log);
	cr_expect(!strstr(log, "--help: "), "%s", log);
}

Test(options, an_option_given_twice_is_refused)
{
	expect_refused(WORDS("--steps", "3", "--steps=3"), WORDS("--steps", "twice"));
	expect_refused(WORDS("--quiet", "--quiet"), WORDS("--quiet", "twice"));
}

Test(options, a_missing_value_is_refused_and_takes_no_option_for_it)
{
	expect_refused(WORDS("--steps"), WORDS("--steps", "needs a value"));
	expect_refused(WORDS("--save", "--quiet"), WORDS("--save", "needs a value", "DIR"));
	expect_refused(WORDS("--save="), WORDS("--save", "not empty"));
}

Test(options, a_value_may_begin_with_dashes_after_an_equals_sign)
{
	struct values v;

	cr_assert_eq(PARSE(&v, "--save=--quiet"), K3_OK);
	cr_expect_str_eq(v.save, "--quiet");
	cr_expect_not(v.quiet);
}

Test(options, a_switch_refuses_a_value)
{
	expect_refused(WORDS("--quiet=yes"), WORDS("--quiet", "yes", "no value"));
}

/* What a parse prints on stdout, in a file of the scratch folder. */
static char *
stdout_of(const char *word, int *ret)
{
	struct values v;
	size_t bytes;
	int copy = dup(STDOUT_FILENO);
	int fd = open(scratch_path("stdout"), O_CREAT | O_WRONLY | O_TRUNC, 0600);

	cr_assert_geq(fd, 0);
	fflush(stdout);
	dup2(fd, STDOUT_FILENO);
	*ret = PARSE(&v, word, "--no-such-option");
	fflush(stdout);
	dup2(copy, STDOUT_FILENO);
	close(fd);
	close(copy);
	return (char *)scratch_read("stdout", &bytes);
}

Test(options, help_names_every_option_on_stdout_and_ends_the_parse)
{
	int ret;
	char *text = stdout_of("--help", &ret);
	static const char *const needles[] = {"usage: k3_test [OPTIONS] FILE...",
					      "Does a test.",
					      "--quiet",
					      "--save DIR",
					      "folder of checkpoints",
					      "--steps N",
					      "--shift N",
					      "--rate X",
					      "--tile N|all",
					      "--help",
					      "--version"};

	cr_expect_eq(ret, K3_EINTR);
	for (size_t i = 0; i < sizeof(needles) / sizeof(needles[0]); i++)
		cr_expect_not_null(strstr(text, needles[i]), "%s is not in the help", needles[i]);
	cr_expect_str_eq(scratch_log(), "");
	free(text);
}

Test(options, version_is_one_line_on_stdout)
{
	int ret;
	char *text = stdout_of("--version", &ret);

	cr_expect_eq(ret, K3_EINTR);
	cr_expect_eq(strncmp(text, "k3_test ", 8), 0);
	cr_expect_eq(strchr(text, '\n'), text + strlen(text) - 1);
	free(text);
}

Test(options, a_program_without_options_takes_words)
{
	char *argv[] = {"k3_test", "word", NULL};
	int first;

	cr_assert_eq(k3_options_parse("k3_test", "WORD", "", NULL, 0, 2, argv, &first), K3_OK);
	cr_expect_eq(first, 1);
	cr_expect_str_eq(argv[1], "word");
}

Test(options, auto_is_a_tile_where_the_option_allows_it)
{
	struct {
		const char *word;
		double lo;
		int ret;
		long long tile;
	} const cases[] = {
		{"auto", K3_TILE_AUTO, K3_OK, K3_TILE_AUTO},
		{"auto", 0, K3_EINVAL, 64},
		{"all", K3_TILE_AUTO, K3_OK, 0},
		{"192", K3_TILE_AUTO, K3_OK, 192},
		{"-1", K3_TILE_AUTO, K3_EINVAL, 64},
		{"automatic", K3_TILE_AUTO, K3_EINVAL, 64},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		long long tile = 64;
		struct k3_option option = {"tile", "N|all|auto", K3_OPT_TILE, &tile, cases[i].lo,
					   0,	   "",		 false};
		char *argv[] = {"k3_test", "--tile", (char *)(uintptr_t)cases[i].word, NULL};
		int first;
		cr_expect_eq(k3_options_parse("k3_test", "", "", &option, 1, 3, argv, &first),
			     cases[i].ret, "%s", cases[i].word);
		cr_expect_eq(tile, cases[i].tile, "%s: %lld", cases[i].word, tile);
	}
}
