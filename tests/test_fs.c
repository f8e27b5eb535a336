/* Small files and folders: what is there afterwards, and what is refused with a reason. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/fs.h"
#include "../common/status.h"
#include "scratch.h"

static int
is_there(const char *name)
{
	struct stat st;

	return lstat(scratch_path(name), &st) == 0;
}

TestSuite(fs, .init = scratch_start, .fini = scratch_stop, .timeout = 60);

Test(fs, read_gives_all_bytes_and_a_zero_behind)
{
	char *text = NULL;
	size_t bytes = 0;

	scratch_write("a", "x\0y\n", 4);
	cr_assert_eq(k3_fs_read(scratch_path("a"), 4, &text, &bytes), K3_OK);
	cr_expect_eq(bytes, 4u);
	cr_expect_eq(memcmp(text, "x\0y\n", 5), 0);
	free(text);
}

Test(fs, read_of_an_empty_file_gives_an_empty_text)
{
	char *text = NULL;
	size_t bytes = 7;

	scratch_write("a", "", 0);
	cr_assert_eq(k3_fs_read(scratch_path("a"), 4, &text, &bytes), K3_OK);
	cr_expect_eq(bytes, 0u);
	cr_expect_str_eq(text, "");
	free(text);
}

Test(fs, read_refuses_a_file_above_the_limit)
{
	char *text = NULL;
	size_t bytes;

	scratch_write("a", "12345", 5);
	cr_expect_eq(k3_fs_read(scratch_path("a"), 4, &text, &bytes), K3_ELIMIT);
	cr_expect_null(text);
	scratch_expect_logged("5 bytes");
}

Test(fs, read_refuses_what_is_absent_a_folder_or_a_pipe)
{
	char *text = NULL;
	size_t bytes;

	cr_expect_eq(k3_fs_read(scratch_path("none"), 9, &text, &bytes), K3_EIO);
	scratch_expect_logged("none");
	cr_expect_eq(k3_fs_read(scratch_path(""), 9, &text, &bytes), K3_EIO);
	cr_assert_eq(mkfifo(scratch_path("pipe"), 0600), 0);
	cr_expect_eq(k3_fs_read(scratch_path("pipe"), 9, &text, &bytes), K3_EIO);
	scratch_expect_logged("not a regular file");
	cr_expect_null(text);
}

Test(fs, write_replaces_the_file_and_leaves_no_other)
{
	size_t bytes;

	cr_assert_eq(k3_fs_write_atomic(scratch_path("a"), "first text", 10), K3_OK);
	cr_assert_eq(k3_fs_write_atomic(scratch_path("a"), "new", 3), K3_OK);
	unsigned char *text = scratch_read("a", &bytes);
	cr_expect_eq(bytes, 3u);
	cr_expect_str_eq((char *)text, "new");
	cr_expect_eq(scratch_files(), 1u);
	free(text);
}

Test(fs, write_that_fails_keeps_the_old_and_leaves_no_other)
{
	cr_expect_eq(k3_fs_write_atomic(scratch_path("no/such/a"), "x", 1), K3_EIO);
	scratch_expect_logged("no/such/a");
	cr_assert_eq(mkdir(scratch_path("folder"), 0700), 0);
	/* a device stays a device, also for those who may replace it */
	cr_assert_eq(mkfifo(scratch_path("pipe"), 0600), 0);
	cr_expect_eq(k3_fs_write_atomic(scratch_path("pipe"), "x", 1), K3_EIO);
	struct stat st;
	cr_expect(stat(scratch_path("pipe"), &st) == 0 && S_ISFIFO(st.st_mode));
	cr_expect_eq(k3_fs_write_atomic(scratch_path("folder"), "x", 1), K3_EIO);
	cr_expect_eq(scratch_files(), 0u, "the temporary file is still there");
	cr_expect(is_there("folder"));
}

Test(fs, write_knows_the_folder_of_a_bare_name)
{
	cr_assert_eq(chdir(scratch_path("")), 0);
	cr_expect_eq(k3_fs_write_atomic("bare", "x", 1), K3_OK);
	cr_expect(is_there("bare"));
}

Test(fs, mkdirs_makes_every_level_and_accepts_what_exists)
{
	struct stat st;

	cr_expect_eq(k3_fs_mkdirs(scratch_path("a/b/c")), K3_OK);
	cr_expect_eq(k3_fs_mkdirs(scratch_path("a/b/c")), K3_OK);
	cr_expect_eq(k3_fs_mkdirs(scratch_path("a//d/")), K3_OK);
	cr_assert_eq(stat(scratch_path("a/b/c"), &st), 0);
	cr_expect(S_ISDIR(st.st_mode));
	cr_expect(is_there("a/d"));
	cr_assert_eq(chdir(scratch_path("")), 0);
	cr_expect_eq(k3_fs_mkdirs("relative/x"), K3_OK);
	cr_expect(is_there("relative/x"));
}

Test(fs, mkdirs_refuses_a_file_in_the_way_and_an_empty_path)
{
	scratch_write("file", "x", 1);
	cr_expect_eq(k3_fs_mkdirs(scratch_path("file")), K3_EIO);
	cr_expect_eq(k3_fs_mkdirs(scratch_path("file/below")), K3_EIO);
	scratch_expect_logged("file/below");
	cr_expect_eq(k3_fs_mkdirs(""), K3_EIO);
}

Test(fs, remove_tree_takes_all_and_does_not_follow_links)
{
	cr_assert_eq(k3_fs_mkdirs(scratch_path("kept")), K3_OK);
	scratch_write("kept/file", "x", 1);
	cr_assert_eq(k3_fs_mkdirs(scratch_path("gone/deep/er")), K3_OK);
	scratch_write("gone/deep/er/file", "x", 1);
	scratch_write("gone/.hidden", "x", 1);
	cr_assert_eq(symlink(scratch_path("kept"), scratch_path("gone/link")), 0);
	cr_assert_eq(symlink("nowhere", scratch_path("gone/broken")), 0);
	cr_expect_eq(k3_fs_remove_tree(scratch_path("gone")), K3_OK);
	cr_expect_not(is_there("gone"));
	cr_expect(is_there("kept/file"));
}

Test(fs, remove_tree_of_a_link_leaves_its_target)
{
	cr_assert_eq(k3_fs_mkdirs(scratch_path("kept")), K3_OK);
	cr_assert_eq(symlink(scratch_path("kept"), scratch_path("link")), 0);
	cr_expect_eq(k3_fs_remove_tree(scratch_path("link")), K3_OK);
	cr_expect_not(is_there("link"));
	cr_expect(is_there("kept"));
}

Test(fs, remove_tree_accepts_what_is_absent)
{
	cr_expect_eq(k3_fs_remove_tree(scratch_path("none")), K3_OK);
}

Test(fs, remove_tree_refuses_paths_that_end_in_no_name)
{
	static const char *const refused[] = {"a/..", "a/.", "a/"};

	cr_assert_eq(k3_fs_mkdirs(scratch_path("a/b")), K3_OK);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		cr_expect_eq(k3_fs_remove_tree(scratch_path(refused[i])), K3_EINVAL, "%s",
			     refused[i]);
	cr_expect_eq(k3_fs_remove_tree(""), K3_EINVAL);
	cr_expect(is_there("a/b"));
}

Test(fs, sync_folder_reports_what_is_absent)
{
	cr_expect_eq(k3_fs_sync_folder(scratch_path("")), K3_OK);
	cr_expect_neq(k3_fs_sync_folder(scratch_path("none")), K3_OK);
	scratch_expect_logged("none");
}
