/* The trap: a fixed unit rounds a small size to 0, and a user who gave a small limit can't tell
 * what was read. */
#include "size.h"

#include <stdio.h>

struct k3_size_text
k3_scaled_text(double x, double step, const char *const *unit, size_t n)
{
	struct k3_size_text t;
	size_t i = 0;

	while (i + 1 < n && x >= 999.5) {
		x /= step;
		i++;
	}
	snprintf(t.at, sizeof(t.at), "%.3g %s", x, unit[i]);
	return t;
}

struct k3_size_text
k3_size_text(double bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

	return k3_scaled_text(bytes, 1024, unit, sizeof(unit) / sizeof(unit[0]));
}
