/* The file that a writer of .k3t files fills from front to end, header last (inside common/). */
#ifndef K3_K3T_SINK_H
#define K3_K3T_SINK_H

#include <stddef.h>
#include <stdint.h>

enum { K3I_SINK_BUFFER_BYTES = 1 << 16 };

struct k3i_sink {
	char *path, *partial;
	int fd;
	uint64_t file_bytes, fnv; /* fnv: of all that was appended */
	size_t used;		  /* bytes of buffer */
	unsigned char buffer[K3I_SINK_BUFFER_BYTES];
};

/** Starts path.partial; the first header_bytes are left out. To be finished in any case. */
int k3i_sink_init(struct k3i_sink *s, const char *path, size_t header_bytes);
int k3i_sink_append(struct k3i_sink *s, const void *data, size_t bytes);
int k3i_sink_append_zeros(struct k3i_sink *s, uint64_t bytes);
/** Position in the file of the next byte. */
uint64_t k3i_sink_position(const struct k3i_sink *s);
/** Writes what the buffer holds. */
int k3i_sink_flush(struct k3i_sink *s);
/** Writes the header and makes the file durable. */
int k3i_sink_header(struct k3i_sink *s, const void *header, size_t bytes);
/** Gives the complete file its name. */
int k3i_sink_publish(struct k3i_sink *s);
/** Removes what was not published. */
void k3i_sink_fini(struct k3i_sink *s);

#endif
