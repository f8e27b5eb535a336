/* Numbers for people: few digits, in the unit that fits. */
#ifndef K3_SIZE_H
#define K3_SIZE_H
#include <stddef.h>

/* The struct keeps the text alive within an expression. */
struct k3_size_text {
	char at[24];
};

/** Bytes, "7 B", "64 MiB", "1.27 GiB"; three digits. */
struct k3_size_text k3_size_text(double bytes);
/** x in the first of n units, each `step` of the one before, in which three digits hold it. */
struct k3_size_text k3_scaled_text(double x, double step, const char *const *unit, size_t n);

#endif
