/* StarPU's history models: are they fit to schedule by?
 *
 * StarPU keeps one file per codelet, codelets/45/<symbol>.<host> below its model directory: per
 * worker and implementation a list of footprints with the mean time and the number of measurements
 * behind it.  A scheduler of the dmda family believes them, however few they are, or however much
 * workers of one kind differ.
 */
#ifndef K3_TASKS_PERFMODEL_CHECK_H
#define K3_TASKS_PERFMODEL_CHECK_H
#include <stdbool.h>
#include <stddef.h>

enum {
	K3_PERFMODEL_SAMPLES = 10, /* fewer are no measurement: StarPU's own limit */
	K3_PERFMODEL_APART = 5	   /* means of workers of one kind differ by less */
};

struct k3_perfmodel_report {
	size_t files, entries;
	size_t few;   /* entries of fewer than K3_PERFMODEL_SAMPLES samples */
	size_t apart; /* entries of a footprint on whose mean workers of a kind disagree */
};

/**
 * Checks a model file and adds to the report. Each footprint whose means lie more than
 * K3_PERFMODEL_APART times apart, between workers of one kind that run the same implementation, is
 * said in one warning with the least and the greatest; files whose workers are combined of several
 * devices are counted, not compared.
 * @param repair  takes those entries out of the file, of all workers of the kind since nothing
 *                tells which is right, so that StarPU measures them anew; entries of few samples
 *                stay, as it goes on measuring them
 * @return K3_OK; K3_EIO, K3_ELIMIT (logged); K3_EFORMAT (logged with file and line: not as StarPU
 * writes it, nothing was changed); K3_ENOMEM
 */
int k3_perfmodel_check(struct k3_perfmodel_report *report, const char *path, bool repair);

/** The same for the files of all our codelets that exist. StarPU must have been started. */
int k3_perfmodel_check_all(struct k3_perfmodel_report *report, bool repair);

#endif
