/* Buffered writing with a checksum.
 *
 * The trap: the checksum is of what was meant to be written, so that a disk which loses bytes is
 * found out when the file is verified.
 */
#include "k3t_sink.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "log.h"
#include "rng.h"
#include "status.h"

int
k3i_sink_init(struct k3i_sink *s, const char *path, size_t header_bytes)
{
	s->fd = -1;
	s->used = 0;
	s->fnv = K3_FNV_START;
	s->file_bytes = header_bytes;
	s->path = strdup(path);
	s->partial = k3i_path_partial(path);
	if (!s->path || !s->partial)
		return K3_ENOMEM;
	s->fd = k3i_file_create(s->partial);
	return s->fd < 0 ? K3_EIO : K3_OK;
}

int
k3i_sink_append(struct k3i_sink *s, const void *data, size_t bytes)
{
	const unsigned char *from = data;
	int ret = K3_OK;

	s->fnv = k3_fnv1a(s->fnv, data, bytes);
	while (bytes > 0) {
		size_t room = sizeof(s->buffer) - s->used, part = room < bytes ? room : bytes;
		memcpy(s->buffer + s->used, from, part);
		s->used += part;
		from += part;
		bytes -= part;
		if (s->used == sizeof(s->buffer))
			K3_TRY(k3i_sink_flush(s));
	}
out:
	return ret;
}

int
k3i_sink_append_zeros(struct k3i_sink *s, uint64_t bytes)
{
	static const unsigned char zeros[64];
	int ret = K3_OK;

	for (; bytes > 0 && ret == K3_OK; bytes -= bytes < 64 ? bytes : 64)
		ret = k3i_sink_append(s, zeros, bytes < 64 ? (size_t)bytes : 64);
	return ret;
}

uint64_t
k3i_sink_position(const struct k3i_sink *s)
{
	return s->file_bytes + s->used;
}

int
k3i_sink_flush(struct k3i_sink *s)
{
	int ret = k3i_write_at(s->fd, s->partial, s->buffer, s->used, s->file_bytes);

	s->file_bytes += s->used;
	s->used = 0;
	return ret;
}

int
k3i_sink_header(struct k3i_sink *s, const void *header, size_t bytes)
{
	int ret = k3i_write_at(s->fd, s->partial, header, bytes, 0);

	if (ret == K3_OK && fsync(s->fd) != 0) {
		k3_error("common", "%s: %s", s->partial, strerror(errno));
		ret = K3_EIO;
	}
	return ret;
}

int
k3i_sink_publish(struct k3i_sink *s)
{
	int ret = k3i_file_publish(s->fd, s->partial, s->path);

	if (ret != K3_OK)
		return ret;
	close(s->fd);
	s->fd = -1;
	char *copy = strdup(s->path);
	if (!copy)
		return K3_ENOMEM;
	ret = k3i_folder_sync(dirname(copy));
	free(copy);
	return ret;
}

void
k3i_sink_fini(struct k3i_sink *s)
{
	if (s->fd >= 0) {
		close(s->fd);
		unlink(s->partial);
	}
	free(s->path);
	free(s->partial);
}
