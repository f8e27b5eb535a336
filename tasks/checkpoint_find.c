/* Which checkpoint is meant, and is it whole?  The trap: the marker says that all files were written,
 * not that they are still there; a file that was cut later (a full disk, a copy that broke off)
 * shows when what its header promises is compared with its length. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/log.h"
#include "../common/status.h"
#include "checkpoint.h"

static bool
is_complete(const char *path)
{
	char marker[4300];
	struct stat st;

	snprintf(marker, sizeof(marker), "%s/%s", path, K3_CHECKPOINT_MARKER);
	return stat(marker, &st) == 0 && S_ISREG(st.st_mode);
}

/* Step of a folder's name. */
static bool
step_of(const char *name, unsigned long long *step)
{
	char end;

	return sscanf(name, "step-%llu%c", step, &end) == 1;
}

/* The newest complete step-... of a folder that is older than `before`. */
static int
newest(char **found, const char *path, unsigned long long before)
{
	unsigned long long best = 0, step;
	char name[4200];
	DIR *d = opendir(path);

	*found = NULL;
	if (!d) {
		k3_error("tasks", "no checkpoint at %s: %s", path, strerror(errno));
		return K3_ENOENT;
	}
	for (struct dirent *e = readdir(d); e; e = readdir(d)) {
		if (!step_of(e->d_name, &step) || step >= before)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		if (is_complete(name) && (!*found || step > best)) {
			best = step;
			free(*found);
			*found = strdup(name);
		}
	}
	closedir(d);
	return K3_OK;
}

int
k3_checkpoint_newest(char **found, const char *path)
{
	return newest(found, path, ~0ull);
}

int
k3_checkpoint_find(char **found, const char *path)
{
	int ret = K3_OK;

	*found = NULL;
	if (is_complete(path)) {
		*found = strdup(path);
		return *found ? K3_OK : K3_ENOMEM;
	}
	K3_TRY(k3_checkpoint_newest(found, path));
	if (!*found) {
		k3_error("tasks",
			 "no complete checkpoint at %s: neither it nor a folder step-... below it "
			 "holds the file %s",
			 path, K3_CHECKPOINT_MARKER);
		ret = K3_ENOENT;
	}
out:
	return ret;
}

int
k3_checkpoint_open_optimizer(struct k3_st **st, const char *path)
{
	char file[4300];

	snprintf(file, sizeof(file), "%s/optimizer.safetensors.index.json", path);
	if (access(file, F_OK) != 0)
		snprintf(file, sizeof(file), "%s/optimizer.safetensors", path);
	return k3_st_open(st, file);
}

static int
check_json(const char *folder, const char *name)
{
	char path[4300];
	json_error_t error;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	bool whole = json_is_object(root);
	if (!whole)
		k3_error("tasks", "%s: %s", path, root ? "must be a JSON object" : error.text);
	json_decref(root);
	return whole ? K3_OK : K3_EFORMAT;
}

int
k3_checkpoint_check(const char *folder, bool weights_alone)
{
	struct k3_st *weights = NULL, *optimizer = NULL;
	int ret;

	K3_TRY(check_json(folder, "config.json"));
	K3_TRY(k3_st_open(&weights, folder));
	if (weights_alone)
		goto out;
	K3_TRY(check_json(folder, "run.json"));
	K3_TRY(k3_checkpoint_open_optimizer(&optimizer, folder));
out:
	k3_st_close(weights);
	k3_st_close(optimizer);
	return ret;
}

int
k3_checkpoint_check_or_advise(const char *folder, bool weights_alone, const char *option)
{
	int ret = k3_checkpoint_check(folder, weights_alone);
	unsigned long long step;
	char *whole, *above, *older = NULL;

	if (ret == K3_OK)
		return K3_OK;
	whole = realpath(folder, NULL);
	if (!whole || !step_of(basename(whole), &step))
		goto out;
	above = dirname(whole);
	while (newest(&older, above, step) == K3_OK && older &&
	       k3_checkpoint_check(older, weights_alone) != K3_OK) {
		step_of(strrchr(older, '/') + 1, &step);
		free(older);
		older = NULL;
	}
	if (older)
		k3_error("tasks", "%s is not whole; the newest one before it that is: %s %s",
			 folder, option, older);
	else
		k3_error("tasks", "%s is not whole, and %s holds no older one that is", folder,
			 above);
out:
	free(older);
	free(whole);
	return ret;
}
