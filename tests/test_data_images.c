/* k3_data images: what a list of samples becomes, and that a fault names list, line and both counts
 * and leaves no file. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/k3t.h"
#include "../common/status.h"
#include "image_case.h"
#include "scratch.h"
#include "tool_case.h"

#define TEST(name) Test(data_images, name, .init = images_start, .fini = tool_stop, .timeout = 60)

enum { N_PICTURES = 4 };

/* Pictures of one colour each, named a.png to d.png, and the grids that they must get. */
static const struct {
	uint32_t width, height;
	uint8_t rgb[3];
	struct k3_grid grid;
} pictures[N_PICTURES] = {
	{28, 28, {10, 20, 30}, {1, 2, 2}},
	{57, 30, {40, 50, 60}, {1, 4, 6}},
	{14, 29, {70, 80, 90}, {1, 4, 2}},
	{140, 140, {100, 110, 120}, {1, 10, 10}},
};

static void
images_start(void)
{
	static uint8_t pixels[140 * 140 * 3];

	scratch_start();
	for (int i = 0; i < N_PICTURES; i++) {
		char name[] = {(char)('a' + i), '.', 'p', 'n', 'g', '\0'};
		for (size_t p = 0; p < sizeof(pixels); p++)
			pixels[p] = pictures[i].rgb[p % 3];
		image_png_write(name, pictures[i].width, pictures[i].height, 3, pixels);
	}
}

/* Makes x.k3t from these lines; more options follow. */
#define IMAGES(lines, ...)                                                                         \
	(scratch_write("list.jsonl", lines, sizeof(lines) - 1),                                    \
	 tool_run((const char *const[TOOL_WORDS]){"images", scratch_path("list.jsonl"), "-o",      \
						  scratch_path("x.k3t"), __VA_ARGS__}))

static struct k3_k3t
file_open(const char *name)
{
	struct k3_k3t f;

	cr_assert_eq(k3_k3t_open(&f, scratch_path(name)), K3_OK, "%s", scratch_log());
	cr_assert_eq(k3_k3t_verify(&f, name), K3_OK);
	return f;
}

/* A document as text, with the digits 0 to 3 for the pictures a to d; n bytes. */
static void
expect_doc(const struct k3_k3t *f, uint64_t doc, const char *text, size_t n, uint64_t *item)
{
	uint64_t at = f->offsets[doc];

	for (size_t i = 0; i < n; i++) {
		if (text[i] < '0' || text[i] >= '0' + N_PICTURES) {
			cr_assert_eq(k3_k3t_token(f, at++), (unsigned char)text[i], "byte %zu", i);
			continue;
		}
		const struct k3_k3t_item *got = &f->items[*item];
		struct k3_image image = {.grid = got->grid,
					 .bytes = (uint8_t *)k3_k3t_item_data(f, (*item)++)};
		const struct k3_grid *grid = &pictures[text[i] - '0'].grid;
		cr_assert_eq(got->first_token, at);
		cr_assert_eq(memcmp(grid, &got->grid, sizeof(*grid)), 0, "grid %ux%u", got->grid.h,
			     got->grid.w);
		at += grid->h / 2 * grid->w / 2;
		for (uint32_t y = 0; y < 14 * grid->h; y++)
			for (uint32_t x = 0; x < 14 * grid->w; x++)
				for (uint32_t c = 0; c < 3; c++) {
					int p = text[i] - '0';
					bool inside =
						y < pictures[p].height && x < pictures[p].width;
					cr_assert_eq(image_pixel(&image, 14, y, x, c),
						     inside ? pictures[p].rgb[c] : 0);
				}
	}
	cr_assert_eq(at, f->offsets[doc + 1], "document %d ends elsewhere", (int)doc);
}

#define EXPECT_DOC(f, doc, text, item) expect_doc(f, doc, text, sizeof(text) - 1, item)

TEST(samples_become_documents_with_their_own_images)
{
	uint64_t item = 0;

	cr_assert_eq(
		IMAGES("{\"text\": \"x <image>, <image> and <image>.\", \"images\": [\"b.png\", "
		       "\"a.png\", \"c.png\"]}\n"
		       "{\"text\": \"text alone\"}\r\n"
		       "{\"images\": [\"a.png\", \"a.png\"], \"text\": \"<image><image>\"}\n"
		       "{\"text\": \"z\\u0000\\u00e9<imag<image>e>\", \"images\": [\"c.png\"]}\n"
		       "{\"text\": \"no\", \"images\": []}",
		       "--holdout", "0"),
		0, "%s", scratch_log());
	struct k3_k3t f = file_open("x.k3t");
	cr_assert(f.n_docs == 5 && f.n_items == 6 && f.ids.vocab == 260 &&
		  f.ids.placeholder == 258 && f.patches.patch == 14);
	EXPECT_DOC(&f, 0, "x 1, 0 and 2.", &item);
	EXPECT_DOC(&f, 1, "text alone", &item);
	EXPECT_DOC(&f, 2, "00", &item);
	EXPECT_DOC(&f, 3, "z\0\xc3\xa9<imag2e>", &item);
	EXPECT_DOC(&f, 4, "no", &item);
	char want[200];
	snprintf(want, sizeof(want), "x.k3t\t5\t6\t52\t%d\n", (int)f.n_tokens);
	cr_assert_eq(strncmp(tool_table(), "file\tsamples\timages\tpatches\ttokens\n", 34), 0);
	cr_assert_not_null(strstr(tool_table(), want), "\"%s\" is not in: %s", want, tool_table());
	cr_assert_neq(access(scratch_path("x.val.k3t"), F_OK), 0);
	k3_k3t_close(&f);
}

TEST(names_are_relative_to_the_list)
{
	uint64_t item = 0;
	char line[5000];
	int n = snprintf(line, sizeof(line),
			 "{\"text\": \"<image><image>\", \"images\": [\"../a.png\", \"%s\"]}\n",
			 scratch_path("b.png"));

	mkdir(scratch_path("sub"), 0700);
	scratch_write("sub/list.jsonl", line, (size_t)n);
	cr_assert_eq(tool_run((const char *const[]){"images", scratch_path("sub/list.jsonl"),
						    "--holdout=0", "--vocab", "300", "-o",
						    scratch_path("x.k3t"), NULL}),
		     0, "%s", scratch_log());
	struct k3_k3t f = file_open("x.k3t");
	EXPECT_DOC(&f, 0, "01", &item);
	cr_assert(f.ids.vocab == 300 && f.ids.placeholder == 298);
	k3_k3t_close(&f);
}

/* 10 x 10 patches: 4 or fewer are 2 x 2, a side of 4 gives 4 x 4. */
TEST(large_images_are_reduced_to_the_limits)
{
#define ONE "{\"text\": \"<image>\", \"images\": [\"d.png\"]}\n"
	static const struct {
		const char *option, *value;
		uint32_t side;
	} cases[] = {{"--limit-patches", "4", 2},
		     {"--side-patches", "4", 4},
		     {"--side-patches", "512", 10},
		     {"--limit-patches", "100", 10}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_assert_eq(IMAGES(ONE, "--holdout", "0", cases[i].option, cases[i].value), 0);
		struct k3_k3t f = file_open("x.k3t");
		cr_assert(f.items[0].grid.h == cases[i].side && f.items[0].grid.w == cases[i].side,
			  "%s %s: %ux%u", cases[i].option, cases[i].value, f.items[0].grid.h,
			  f.items[0].grid.w);
		k3_k3t_close(&f);
	}
}

TEST(whole_samples_are_held_out_evenly)
{
	uint64_t item = 0;

#define TEXT(t) "{\"text\": \"" t "\"}\n"
	cr_assert_eq(IMAGES(TEXT("1") TEXT("2") TEXT("3") ONE TEXT("5") TEXT("6") TEXT("7") ONE,
			    "--holdout", "0.25"),
		     0);
	struct k3_k3t train = file_open("x.k3t"), val = file_open("x.val.k3t");
	cr_assert(train.n_docs == 6 && train.n_items == 0 && val.n_docs == 2 && val.n_items == 2);
	for (uint64_t i = 0; i < 6; i++)
		cr_assert_eq(k3_k3t_token(&train, i), (unsigned char)"123567"[i]);
	EXPECT_DOC(&val, 0, "3", &item);
	EXPECT_DOC(&val, 1, "3", &item);
	cr_assert_not_null(strstr(tool_table(), "x.k3t\t6\t0\t0\t6\n"), "%s", tool_table());
	cr_assert_not_null(strstr(tool_table(), "x.val.k3t\t2\t2\t200\t50\n"), "%s", tool_table());
	k3_k3t_close(&train);
	k3_k3t_close(&val);
	/* the default holds out the last of ten */
	cr_assert_eq(IMAGES(TEXT("a") TEXT("b") TEXT("c") TEXT("d") TEXT("e") TEXT("f") TEXT("g")
				    TEXT("h") TEXT("i") TEXT("j") TEXT("k"),
			    NULL),
		     0);
	val = file_open("x.val.k3t");
	cr_assert(val.n_tokens == 1 && k3_k3t_token(&val, 0) == 'j');
	k3_k3t_close(&val);
}

TEST(the_same_list_gives_the_same_bytes)
{
	unsigned char *files[2];
	size_t bytes[2];

	for (int i = 0; i < 2; i++) {
		cr_assert_eq(IMAGES(ONE TEXT("between") ONE, "--holdout", "0"), 0);
		files[i] = scratch_read("x.k3t", &bytes[i]);
	}
	cr_assert_eq(bytes[0], bytes[1]);
	cr_assert_eq(memcmp(files[0], files[1], bytes[0]), 0);
	free(files[0]);
	free(files[1]);
}

/* Every fault stands in line 2; the first line is good. */
TEST(a_broken_sample_is_named_and_nothing_is_written)
{
#define GOOD "{\"text\": \"<image>\", \"images\": [\"a.png\"]}\n"
#define CASE(line, message)                                                                        \
	{                                                                                          \
		GOOD line "\n" GOOD, sizeof(GOOD line "\n" GOOD) - 1, message                      \
	}
	static const struct {
		const char *lines;
		size_t bytes;
		const char *message;
	} cases[] = {
		CASE("{\"text\": \"<image>\", \"images\": [\"a.png\", \"b.png\"]}",
		     "the text of sample 2 has 1 times <image>, but \"images\" has 2 entries"),
		CASE("{\"text\": \"<image><image>\", \"images\": [\"a.png\"]}",
		     "the text of sample 2 has 2 times <image>, but \"images\" has 1 entries"),
		CASE("{\"text\": \"a <image>\"}", "has 1 times <image>, but \"images\" has 0"),
		CASE("{\"text\": \"a\", \"images\": [\"a.png\"]}", "has 0 times <image>"),
		CASE("", "the line is empty"),
		CASE(" \t", "the line is empty"),
		CASE("{\"text\": \"a\"", "column"),
		CASE("{\"text\": \"a\"} x", "end of file expected"),
		CASE("{\"text\": \"a\", \"text\": \"b\"}", "duplicate"),
		CASE("{\"text\": \"\xff\"}", "unable to decode byte 0xff"),
		CASE("{\"text\": \"a\0\"}", "control character"),
		CASE("[\"text\"]", "must be an object"),
		CASE("\"text\"", "expected near"),
		CASE("{\"text\": 5}", "\"text\" must be there and a string"),
		CASE("{\"images\": []}", "\"text\" must be there and a string"),
		CASE("{\"text\": \"\"}", "\"text\" is empty"),
		CASE("{\"text\": \"<image>\", \"images\": \"a.png\"}", "\"images\" must be a list"),
		CASE("{\"text\": \"a\", \"images\": null}", "\"images\" must be a list"),
		CASE("{\"text\": \"<image>\", \"images\": [1]}", "entry 1 of \"images\" must be"),
		CASE("{\"text\": \"<image>\", \"images\": [\"\"]}", "entry 1 of \"images\""),
		CASE("{\"text\": \"<image>\", \"images\": [\"a.png\\u0000x\"]}", "entry 1 of"),
		CASE("{\"text\": \"a\", \"image\": \"a.png\"}", "key \"image\", allowed are"),
		CASE("{\"text\": \"<image><image>\", \"images\": [\"a.png\", \"no.png\"]}",
		     "image 2, "),
		CASE("{\"text\": \"<image>\", \"images\": [\"list.jsonl\"]}",
		     "that was image 1 of 1 of the sample"),
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		scratch_write("list.jsonl", cases[i].lines, cases[i].bytes);
		int status = tool_run((const char *const[]){"images", scratch_path("list.jsonl"),
							    "-o", scratch_path("x.k3t"),
							    "--holdout", "0.5", NULL});
		const char *log = scratch_log();
		cr_assert_eq(status, 2, "case %zu: status %d", i, status);
		cr_assert_not_null(strstr(log, "list.jsonl:2: "), "case %zu: %s", i, log);
		cr_assert_not_null(strstr(log, cases[i].message), "case %zu: \"%s\" is not in: %s",
				   i, cases[i].message, log);
		const char *error = strstr(log, "error: ");
		cr_assert(error && !strstr(error + 1, "error: "), "not one error: %s", log);
		cr_assert_str_empty(tool_table());
		cr_assert_eq(scratch_files(), N_PICTURES + 1, "case %zu left files", i);
	}
}

TEST(damaged_images_name_their_line)
{
	static const char *const names[] = {"bad_cmyk.jpg", "bad_gray16.png", "bad_rgb16.png"};
	char line[5000];

	for (int i = 0; i < 3; i++) {
		int n = snprintf(line, sizeof(line),
				 GOOD "{\"text\": \"<image>\", \"images\": [\"%s\"]}\n",
				 image_data_path(names[i]));
		scratch_write("list.jsonl", line, (size_t)n);
		cr_assert_eq(tool_run((const char *const[]){"images", scratch_path("list.jsonl"),
							    "-o", scratch_path("x.k3t"),
							    "--holdout", "0", NULL}),
			     2);
		const char *log = scratch_log();
		cr_assert(strstr(log, names[i]) && strstr(log, "list.jsonl:2: that was image 1"),
			  "%s", log);
		cr_assert_eq(scratch_files(), N_PICTURES + 1);
	}
}

/* A long list is not mended line by line, each after minutes of reading images. */
TEST(all_faults_of_a_list_are_told_before_an_image_is_read)
{
	static const char list[] = GOOD "{\"text\": \"<image>\", \"images\": [\"no1.png\"]}\n"
					"{\"text\": \"<image>\", \"images\": []}\n"
					"{\"text\": \"<image>\", \"images\": [\"no2.png\"]}\n" GOOD;
	static const char *const told[] = {"list.jsonl:2: image 1, ", "no1.png: No such file",
					   "list.jsonl:3: the text of sample 3 has 1 times",
					   "list.jsonl:4: image 1, ", "no2.png: No such file"};

	scratch_write("list.jsonl", list, sizeof(list) - 1);
	cr_assert_eq(tool_run((const char *const[]){"images", scratch_path("list.jsonl"), "-o",
						    scratch_path("x.k3t"), "--holdout", "0", NULL}),
		     2);
	const char *log = scratch_log();
	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
		cr_expect(strstr(log, told[i]), "no \"%s\": %s", told[i], log);
	cr_assert_eq(scratch_files(), N_PICTURES + 1);
}

TEST(wrong_usage_is_refused)
{
	const char *list = scratch_path("list.jsonl"), *out = scratch_path("x.k3t");
	const struct {
		const char *words[TOOL_WORDS], *message;
	} cases[] = {
		{{"images", "-o", out}, "takes one list"},
		{{"images", list, list, "-o", out}, "takes one list"},
		{{"images", list}, "-o X.k3t is missing"},
		{{"images", list, "-o", "x.bin"}, "x.bin: the name must end in .k3t"},
		{{"images", list, "-o", out, "--vocab", "259"}, "--vocab 259: must be"},
		{{"images", list, "-o", out, "--limit-patches", "0"}, "--limit-patches 0"},
		{{"images", list, "-o", out, "--side-patches", "513"}, "--side-patches 513"},
		{{"images", list, "-o", out, "--holdout", "1"}, "--holdout 1"},
		{{"images", list, "-o", out},
		 "of 1 samples none is held out with --holdout 0.1, allowed: 0\n"},
		{{"images", scratch_path("no.jsonl"), "-o", out}, "No such file"},
		{{"images", scratch_path("empty"), "-o", out}, "no sample"},
		{{"images", scratch_path(""), "-o", out}, "not a regular file"},
		{{"images", "/dev/zero", "-o", out}, "/dev/zero: not a regular file"},
		{{"images", scratch_path("fifo"), "-o", out}, "fifo: not a regular file"},
		{{"images", list, "-o", scratch_path("no/x.k3t"), "--holdout", "0"},
		 "No such file"},
		{{"images", list, "-o", scratch_path("folder.k3t"), "--holdout", "0"},
		 "folder.k3t: exists and is no regular file"},
	};

	scratch_write("list.jsonl", GOOD, sizeof(GOOD) - 1);
	scratch_write("empty", "", 0);
	cr_assert_eq(mkfifo(scratch_path("fifo"), 0600), 0);
	cr_assert_eq(mkdir(scratch_path("folder.k3t"), 0700), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int status = tool_run(cases[i].words);
		const char *log = scratch_log();
		cr_assert_eq(status, 2, "case %zu: status %d", i, status);
		cr_assert_not_null(strstr(log, cases[i].message), "case %zu: \"%s\" is not in: %s",
				   i, cases[i].message, log);
		cr_assert_eq(strchr(log, '\n'), log + strlen(log) - 1, "more than a line: %s", log);
		cr_assert_str_empty(tool_table());
		cr_assert_eq(scratch_files(), N_PICTURES + 2);
	}
}

/* Words of a run that must be refused with one line, and leave this file as it is. */
static void
expect_kept(const char *const *words, const char *message, const char *name)
{
	size_t bytes, n_after;
	unsigned char *before = scratch_read(name, &bytes);
	size_t files = scratch_files();
	int status = tool_run(words);
	const char *log = scratch_log();

	cr_assert_eq(status, 2, "%s: status %d, %s", name, status, log);
	cr_assert_not_null(strstr(log, message), "\"%s\" is not in: %s", message, log);
	cr_assert_eq(scratch_files(), files);
	unsigned char *after = scratch_read(name, &n_after);
	cr_assert(bytes == n_after && memcmp(before, after, bytes) == 0, "%s changed", name);
	free(before);
	free(after);
}

TEST(an_output_that_would_replace_an_input_is_refused_and_the_input_stays)
{
	static const char *const lists[] = {"x.k3t", "x.val.k3t", "x.k3t.partial",
					    "x.val.k3t.partial"};
	char line[200];

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		scratch_write(lists[i], GOOD GOOD, 2 * sizeof(GOOD) - 2);
		expect_kept((const char *const[]){"images", scratch_path(lists[i]), "-o",
						  scratch_path("x.k3t"), "--holdout", "0.5", NULL},
			    "replaced by the output", lists[i]);
		unlink(scratch_path(lists[i]));
	}
	/* by another name, and as an image */
	cr_assert_eq(rename(scratch_path("a.png"), scratch_path("x.k3t")), 0);
	cr_assert_eq(symlink("x.k3t", scratch_path("a.png")), 0);
	for (int i = 0; i < 2; i++) {
		int n = snprintf(line, sizeof(line),
				 "{\"text\": \"<image>\", \"images\": [\"%s\"]}\n",
				 i ? "a.png" : "x.k3t");
		scratch_write("list.jsonl", line, (size_t)n);
		expect_kept((const char *const[]){"images", scratch_path("list.jsonl"), "-o",
						  scratch_path("x.k3t"), "--holdout", "0", NULL},
			    "replaced by the output", "x.k3t");
	}
}

TEST(images_that_never_end_are_refused)
{
	static const char *const names[] = {"fifo", "/dev/zero", "."};
	char line[200];

	cr_assert_eq(mkfifo(scratch_path("fifo"), 0600), 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int n = snprintf(line, sizeof(line),
				 "{\"text\": \"<image>\", \"images\": [\"%s\"]}\n", names[i]);
		scratch_write("list.jsonl", line, (size_t)n);
		expect_kept((const char *const[]){"images", scratch_path("list.jsonl"), "-o",
						  scratch_path("x.k3t"), "--holdout", "0", NULL},
			    "not a regular file", "list.jsonl");
	}
}

/* A parsed line of empty lists takes about 60 times its bytes. */
TEST(a_line_above_the_limit_is_refused_before_it_is_parsed)
{
	static const char sample[] = "{\"text\": \"a\"}\n";
	const size_t most = 16 << 20, n_sample = sizeof(sample) - 1;
	char *line = malloc(most + 1);

	memset(line, ' ', most + 1);
	for (size_t n = most; n <= most + 1; n++) {
		memcpy(line + n - n_sample, sample, n_sample);
		line[n - n_sample - 1] = ' ';
		scratch_write("list.jsonl", line, n);
		int status = tool_run((const char *const[]){"images", scratch_path("list.jsonl"),
							    "-o", scratch_path("x.k3t"),
							    "--holdout", "0", NULL});
		const char *log = scratch_log();
		cr_assert_eq(status, n > most ? 2 : 0, "status %d: %s", status, log);
		cr_assert(n <= most || strstr(log, "list.jsonl:1: the line has 16777217 bytes, "
						   "allowed are 16777216"),
			  "%s", log);
	}
	free(line);
}

TEST(a_name_longer_than_any_path_is_refused_with_the_reason)
{
	static const char *const why[] = {"must be a file name of 1 to 4095 bytes",
					  ": File name too long"};
	char line[5000] = "{\"text\": \"<image>\", \"images\": [\"";
	size_t head = strlen(line);

	for (size_t i = 0, n = 4096; i < 2; i++, n--) {
		memset(line + head, 'x', n);
		strcpy(line + head + n, "\"]}");
		scratch_write("list.jsonl", line, strlen(line));
		cr_assert_eq(tool_run((const char *const[]){"images", scratch_path("list.jsonl"),
							    "-o", scratch_path("x.k3t"), NULL}),
			     2);
		const char *log = scratch_log();
		cr_assert(strstr(log, why[i]), "%s", log);
	}
}

TEST(line_feeds_and_escape_codes_of_a_list_make_no_lines_of_their_own)
{
	static const char *const lines[] = {
		"{\"text\": \"<image>\", \"images\": [\"a\\nk3_data: error: b\\u001b[2J.png\"]}",
		"{\"text\": \"a\", \"a\\nk3_data: error: b\\u001b[2J\": 1}",
	};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		scratch_write("list.jsonl", lines[i], strlen(lines[i]));
		int status = tool_run((const char *const[]){"images", scratch_path("list.jsonl"),
							    "-o", scratch_path("x.k3t"), NULL});
		const char *log = scratch_log();
		cr_assert_eq(status, 2);
		cr_assert(strstr(log, "a?k3_data: error: b?[2J"), "%s", log);
		cr_assert_eq(strchr(log, '\n'), log + strlen(log) - 1, "more than a line: %s", log);
	}
}
