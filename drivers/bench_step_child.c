/* A case in a child process.  The result comes through one pipe, its messages through another; they
 * are passed on, and the last one that tells of a fault is kept as the reason.  The trap: a child
 * that hangs holds its pipes open, so everything is read against a deadline. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/clock.h"
#include "../common/log.h"
#include "../common/status.h"
#include "bench_step.h"

enum { LINE = 400 };

struct child {
	pid_t pid;
	int result, messages; /* ends to read from */
	char line[LINE], last[LINE];
	size_t length; /* of line */
	bool fault;    /* last tells of one */
};

/* In the child; does not return. */
static void
be_child(const struct k3i_step_case *what, int result_fd, int messages_fd)
{
	struct k3i_step_result result;
	const char *from = (const char *)&result;

	dup2(messages_fd, STDERR_FILENO);
	if (what->scheduler)
		setenv("STARPU_SCHED", what->scheduler, 1);
	int ret = k3i_step_run(what, &result);
	for (size_t left = sizeof(result); left > 0;) {
		ssize_t put = write(result_fd, from, left);
		if (put <= 0)
			_exit(1);
		from += put;
		left -= (size_t)put;
	}
	_exit(ret == K3_OK ? 0 : ret == K3_EDIFFER ? 3 : result.opened ? 1 : 2);
}

static int
start(struct child *c, const struct k3i_step_case *what)
{
	int result[2] = {-1, -1}, messages[2] = {-1, -1};

	fflush(NULL);
	if (pipe(result) == 0 && pipe(messages) == 0)
		c->pid = fork();
	else
		c->pid = -1;
	int failed = errno;
	if (c->pid == 0) {
		close(result[0]);
		close(messages[0]);
		be_child(what, result[1], messages[1]);
	}
	c->result = result[0];
	c->messages = messages[0];
	close(result[1]);
	close(messages[1]);
	if (c->pid > 0)
		return K3_OK;
	k3_error("drivers", "no child process: %s", strerror(failed));
	close(result[0]);
	close(messages[0]);
	return K3_ENODEV;
}

static void
take_line(struct child *c)
{
	c->line[c->length] = 0;
	c->length = 0;
	bool fault = strstr(c->line, "ssert") || strstr(c->line, "rror");
	fprintf(stderr, "%s\n", c->line);
	/* what comes after a fault are its consequences */
	if (c->line[0] && !c->fault) {
		memcpy(c->last, c->line, sizeof(c->last));
		c->fault = fault;
	}
}

static void
take_messages(struct child *c, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (text[i] != '\n' && c->length < LINE - 1)
			c->line[c->length++] = text[i] == '\t' ? ' ' : text[i];
		else if (text[i] == '\n')
			take_line(c);
	}
}

/* Reads both pipes until they close. @return false when the time is over */
static bool
listen_to(struct child *c, double deadline, struct k3i_step_result *result, size_t *got)
{
	struct pollfd fd[2] = {{c->result, POLLIN, 0}, {c->messages, POLLIN, 0}};
	char text[4096];

	while (fd[0].fd >= 0 || fd[1].fd >= 0) {
		double left_s = deadline - k3_clock_s(CLOCK_MONOTONIC);
		if (left_s <= 0)
			return false;
		int n = poll(fd, 2, left_s > 1 ? 1000 : (int)(left_s * 1e3) + 1);
		for (int i = 0; i < 2 && n > 0; i++) {
			if (!fd[i].revents)
				continue;
			ssize_t k = read(fd[i].fd, text, sizeof(text));
			size_t room = sizeof(*result) - *got, part = k > 0 ? (size_t)k : 0;
			if (k <= 0) {
				fd[i].fd = -1; /* closed; poll passes over it */
			} else if (i) {
				take_messages(c, text, part);
			} else {
				part = part < room ? part : room;
				memcpy((char *)result + *got, text, part);
				*got += part;
			}
		}
	}
	return true;
}

int
k3i_step_child(const struct k3i_step_case *what, double limit_s, struct k3i_step_result *result,
	       char *reason, size_t reason_bytes)
{
	struct child c = {0};
	size_t got = 0;
	int status = 0, ret;

	memset(result, 0, sizeof(*result));
	K3_TRY(start(&c, what));
	bool in_time = listen_to(&c, k3_clock_s(CLOCK_MONOTONIC) + limit_s, result, &got);
	if (!in_time)
		kill(c.pid, SIGKILL);
	waitpid(c.pid, &status, 0);
	if (c.length)
		take_line(&c);
	close(c.result);
	close(c.messages);
	snprintf(reason, reason_bytes, "ok");
	if (!in_time) {
		snprintf(reason, reason_bytes, "not done after %g s", limit_s);
		ret = K3_ELIMIT;
	} else if (WIFSIGNALED(status)) {
		snprintf(reason, reason_bytes, "signal %d: %s", WTERMSIG(status), c.last);
		ret = K3_ENODEV;
	} else if (WEXITSTATUS(status) != 0 || got != sizeof(*result)) {
		snprintf(reason, reason_bytes, "%s", c.last);
		ret = WEXITSTATUS(status) == 3	 ? K3_EDIFFER
		      : WEXITSTATUS(status) == 2 ? K3_EINVAL
						 : K3_ENODEV;
	}
out:
	return ret;
}
