/* Lists of buffers for kernels: pointers travel by value with the launch, so that nothing is copied
 * to the device.  Longer lists take several launches. */
#ifndef K3_CUDA_POINTERS_CUH
#define K3_CUDA_POINTERS_CUH
#include <stddef.h>
#include <stdint.h>

template <int MOST> struct k3_pointers {
	void *p[MOST];
};

/** Buffers first .. first + n - 1 of a task, n <= MOST. */
template <int MOST>
static inline struct k3_pointers<MOST>
pointers_of(void *const *buf, size_t first, size_t n) {
	struct k3_pointers<MOST> list = {
	};

	for (size_t i = 0; i < n; i++)
		list.p[i] = buf[first + i];
	return list;
}

/** Is every pointer of a list aligned to 16 bytes? */
static inline bool
all_aligned(void *const *buf, size_t first, size_t n)
{
	uintptr_t bits = 0;

	for (size_t i = 0; i < n; i++)
		bits |= (uintptr_t)buf[first + i];
	return bits % 16 == 0;
}

#endif
