/* The learned position table at any grid (model.md 6.2): bilinear, without antialias, corners
 * not aligned; each axis reads two entries.  The trap: weights belong to the whole item, a band
 * takes the rows from its first one on; a table of the band's own height would give every band
 * the first one's positions. */
#ifndef K3_VIT_POSITION_H
#define K3_VIT_POSITION_H
#include <stddef.h>

struct taps {
	size_t at[2];
	float weight[2];
};

/* Position `at` of an axis of n_out entries, on a table of n_in. */
static inline struct taps
position_taps(size_t at, size_t n_out, size_t n_in)
{
	double source = ((double)at + 0.5) * ((double)n_in / (double)n_out) - 0.5;

	if (source < 0)
		source = 0;
	size_t low = (size_t)source;
	if (low > n_in - 1)
		low = n_in - 1;
	float share = (float)(source - (double)low);
	return (struct taps){{low, low + 1 < n_in ? low + 1 : n_in - 1}, {1 - share, share}};
}

#endif
