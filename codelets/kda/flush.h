/* Denormal numbers read and written as zero between begin and end, on the calling thread. */
#ifndef K3_KDA_FLUSH_H
#define K3_KDA_FLUSH_H
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

static inline unsigned
k3i_flush_begin(void)
{
#ifdef __SSE2__
	unsigned mode = _mm_getcsr();

	_mm_setcsr(mode | 0x8040); /* flush to zero, denormals are zero */
	return mode;
#else
	return 0;
#endif
}

static inline void
k3i_flush_end(unsigned mode)
{
#ifdef __SSE2__
	_mm_setcsr((_mm_getcsr() & ~0x8040u) | (mode & 0x8040u));
#else
	(void)mode;
#endif
}

#endif
