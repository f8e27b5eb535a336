/* Text output for a signal handler: a buffer, write(2), numbers put together here, since neither
 * stdio nor malloc may be used there.  The normal writer uses it too, so that one format is tested.
 * The trap: errno belongs to the interrupted code and is kept. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trace_record.h"

static void
flush(struct k3i_out *out)
{
	int saved = errno;
	size_t at = 0;

	while (at < out->used && !out->failed) {
		ssize_t n = write(out->fd, out->buffer + at, out->used - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			out->failed = n < 0 ? errno : EIO;
		else
			at += (size_t)n;
	}
	out->bytes += at;
	out->used = 0;
	errno = saved;
}

void
k3i_out_open(struct k3i_out *out, const char *path)
{
	int saved = errno;

	out->failed = 0;
	out->bytes = 0;
	out->used = 0;
	out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (out->fd < 0)
		out->failed = errno;
	errno = saved;
}

int
k3i_out_close(struct k3i_out *out)
{
	int saved = errno;

	flush(out);
	if (out->fd >= 0 && close(out->fd) != 0 && !out->failed)
		out->failed = errno;
	out->fd = -1;
	errno = saved;
	return out->failed;
}

void
k3i_out_text(struct k3i_out *out, const char *text)
{
	for (; *text; text++) {
		if (out->used == sizeof(out->buffer))
			flush(out);
		out->buffer[out->used++] = *text;
	}
}

void
k3i_out_fixed(struct k3i_out *out, int64_t x, int digits)
{
	char text[32], *p = text + sizeof(text);
	uint64_t rest = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
	int done = 0;

	*--p = 0;
	do {
		*--p = (char)('0' + rest % 10);
		rest /= 10;
		if (++done == digits)
			*--p = '.';
	} while (rest > 0 || done <= digits);
	if (x < 0)
		*--p = '-';
	k3i_out_text(out, p);
}

void
k3i_out_int(struct k3i_out *out, int64_t x)
{
	k3i_out_fixed(out, x, 0);
}

static void
part(struct k3i_out *out, const char *letter, int32_t x)
{
	if (x < 0)
		return;
	k3i_out_text(out, letter);
	k3i_out_int(out, x);
}

void
k3i_out_name(struct k3i_out *out, const struct k3_trace_record *r)
{
	k3i_out_text(out, k3_op_name(r->op));
	part(out, " s", r->step);
	part(out, " m", r->microbatch);
	part(out, " l", r->layer);
	part(out, " t", r->tile);
	part(out, " g", r->group);
	if (r->pass == K3_PASS_RECOMPUTE)
		k3i_out_text(out, " again");
}

int
k3i_trace_publish(struct k3_trace *trace, const char *path, uint64_t *bytes)
{
	int saved = errno, failed = k3i_out_close(&trace->out);

	if (!failed && rename(trace->part, path) != 0)
		failed = errno;
	if (failed)
		unlink(trace->part);
	*bytes = trace->out.bytes;
	errno = saved;
	return failed;
}
