/* Checking StarPU's model files, on a replay of models that made a scheduler use two GPUs of six.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fs.h"
#include "../common/status.h"
#include "../tasks/perfmodel_check.h"
#include "fixture.h"
#include "scratch.h"

TestSuite(perfmodel_check, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

/* The replayed model: 3 entries of cpu0, 2 of each of 6 GPUs. */
static char *
replay(void)
{
	const char *data = getenv("K3_TEST_DATA");
	char path[4200], *text;
	size_t bytes;

	cr_assert_not_null(data);
	snprintf(path, sizeof(path), "%s/perfmodel/k3_replay.host", data);
	cr_assert_eq(k3_fs_read(path, 1 << 20, &text, &bytes), K3_OK);
	return text;
}

static struct k3_perfmodel_report
check(const char *text, bool repair)
{
	struct k3_perfmodel_report report = {0};

	scratch_write("model", text, strlen(text));
	cr_assert_eq(k3_perfmodel_check(&report, scratch_path("model"), repair), K3_OK, "%s",
		     scratch_log());
	return report;
}

Test(perfmodel_check, workers_that_disagree_are_named_and_all_of_the_kind_are_doubted)
{
	char *text = replay();
	struct k3_perfmodel_report r = check(text, false);
	const char *log = scratch_log();

	cr_expect_eq(r.files, 1);
	cr_expect_eq(r.entries, 15);
	cr_expect_eq(r.apart, 6, "the 6 GPUs' entries, not the CPU's: %zu", r.apart);
	cr_expect_eq(r.few, 1);
	cr_expect_eq(fixture_count(log, "82f8634b"), 1, "%s", log);
	cr_expect(strstr(log, "190 us on cuda0_impl0"), "%s", log);
	cr_expect(strstr(log, "9.9e+04 us on cuda4_impl0"), "%s", log);
	cr_expect(!strstr(log, "1a2b3c4d"), "the size on which all agree is named: %s", log);
	free(text);
}

Test(perfmodel_check, a_repair_takes_out_what_is_doubted_and_nothing_else)
{
	char *text = replay(), *repaired;
	struct k3_perfmodel_report r = check(text, true);
	size_t bytes;

	cr_expect_eq(r.apart, 6);
	repaired = (char *)scratch_read("model", &bytes);
	/* the CPU's entry of that size is left; counts follow */
	cr_expect_eq(fixture_count(repaired, "82f8634b"), 1);
	cr_expect_eq(fixture_count(repaired, "1a2b3c4d"), 7);
	cr_expect_eq(fixture_count(repaired, "71560751"), 1);
	cr_expect_eq(fixture_count(repaired, "# number of entries\n3\n"), 1);
	cr_expect_eq(fixture_count(repaired, "# number of entries\n1\n"), 6);
	cr_expect_eq(strlen(text) - strlen(repaired),
		     6 * (strcspn(strstr(text, "82f8634b"), "\n") + 1));
	r = check(repaired, false);
	cr_expect_eq(r.apart, 0);
	cr_expect_eq(r.entries, 9);
	cr_expect_eq(r.few, 1);
	free(repaired);
	free(text);
}

Test(perfmodel_check, a_sound_file_is_left_as_it_is)
{
	char *text = replay(), *wrong;

	/* 190 us become 90 ms: nobody is five times apart */
	for (wrong = text; (wrong = strstr(wrong, "1.900000e+02")); wrong++)
		memcpy(wrong, "9.000000e+04", 12);
	struct k3_perfmodel_report r = check(text, true);
	cr_expect_eq(r.apart, 0);
	size_t bytes;
	char *after = (char *)scratch_read("model", &bytes);
	cr_expect_str_eq(after, text);
	free(after);
	free(text);
}

Test(perfmodel_check, five_times_apart_is_still_one_kind)
{
	char *text = replay(), *wrong;

	for (wrong = text; (wrong = strstr(wrong, "1.900000e+02")); wrong++)
		memcpy(wrong, "1.980000e+04", 12); /* 99 ms / 5 */
	cr_expect_eq(check(text, false).apart, 0);
	for (wrong = text; (wrong = strstr(wrong, "1.980000e+04")); wrong++)
		memcpy(wrong, "1.970000e+04", 12);
	cr_expect_eq(check(text, false).apart, 6);
	free(text);
}

/* The file with `was` replaced is refused with a message that holds `part`, and is not changed. */
static void
expect_refused(const char *was, const char *becomes, const char *part)
{
	struct k3_perfmodel_report report = {0};
	char *text = replay(), *at = strstr(text, was), *changed;
	size_t bytes, after_bytes;
	FILE *out = open_memstream(&changed, &bytes);

	cr_assert_not_null(at);
	fprintf(out, "%.*s%s%s", (int)(at - text), text, becomes, at + strlen(was));
	fclose(out);
	scratch_log();
	scratch_write("model", changed, bytes);
	int ret = k3_perfmodel_check(&report, scratch_path("model"), true);
	const char *log = scratch_log();
	cr_expect_eq(ret, K3_EFORMAT, "\"%s\" for \"%s\" is taken", becomes, was);
	cr_expect(strstr(log, part), "\"%s\" is not in: %s", part, log);
	char *after = (char *)scratch_read("model", &after_bytes);
	cr_expect_str_eq(after, changed);
	free(after);
	free(changed);
	free(text);
}

Test(perfmodel_check, what_starpu_does_not_write_is_refused_with_its_line)
{
	expect_refused("Version\n45", "Version\n46", "format 46");
	expect_refused("# Performance Model Version", "# Nothing", "format -1");
	expect_refused("# number of entries\n3", "# number of entries\nmany", "line 31");
	expect_refused("# number of entries\n3", "# number of entries\n-1", "line 31");
	expect_refused("# number of entries\n3", "# number of entries\n4", "hash, size");
	expect_refused("# number of entries\n3", "# number of entries\n999999", "as many entries");
	expect_refused("82f8634b\t3089680", "82f8634b\tlarge", "hash, size");
	expect_refused("# Model for cuda2_impl0", "# Model for ", "# Model for <worker>");
	expect_refused("# hash", "# mash", "# hash");
}

Test(perfmodel_check, a_missing_file_is_an_error_of_reading)
{
	struct k3_perfmodel_report report = {0};

	cr_expect_eq(k3_perfmodel_check(&report, scratch_path("nosuch"), true), K3_EIO);
	cr_expect(strstr(scratch_log(), "nosuch"));
}
