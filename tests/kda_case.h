/* One call of a KDA chunk or recurrent kernel, with everything that it reads and writes. */
#ifndef K3_TESTS_KDA_CASE_H
#define K3_TESTS_KDA_CASE_H
#include "../common/op/kda.h"
#include "fixture.h"

typedef void kda_kernel(void *const *buf, const struct k3_kda_chunk_args *a);

struct kda_case {
	size_t t, h, k, v;
	uint32_t h0, h1; /* h1 = 0: all heads */
	int raw;
	float scale, lower_bound;
	int32_t *layout;
	const float *qkv, *f, *br, *a_log, *dt, *s_in, *d_o, *ds_out;
	int want_s_out, want_ds_in;
	/* results, poisoned before the call */
	float *o, *s_out, *dqkv, *df, *dbr, *dab, *ds_in;
};

/** A raw case of one document over all rows, scale 1, without states. */
struct kda_case kda_case(size_t t, size_t h, size_t k, size_t v);
void kda_forward(struct kda_case *c, kda_kernel *fwd);
void kda_backward(struct kda_case *c, kda_kernel *bwd);
void kda_case_free(struct kda_case *c);

/** q | k | v rows of h heads from uniform numbers, q and k of unit length. */
float *kda_random_qkv(uint64_t seed, size_t t, size_t h, size_t k, size_t v);
/** Log decays over the whole of [-5, 0], a quarter of them at either end, channels mixed. */
float *kda_mixed_gates(uint64_t seed, size_t n);
float *kda_random(uint64_t seed, size_t n, double lo, double hi);
float *kda_constant(size_t n, float value);

/** Fails when the RMS ratio is above tol and some element is off by more than 1e-7 (a true gradient
 * may be 0). */
void kda_expect_same(const float *got, const float *want, size_t n, double tol, const char *what);

#endif
