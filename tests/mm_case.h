/* Runs of k3_train on texts with images: the model of the golden case mm_tiny, and data sets for
 * it in the scratch folder. */
#ifndef K3_TESTS_MM_CASE_H
#define K3_TESTS_MM_CASE_H
#include "../common/k3t.h"

/** Makes config.json. */
void mm_model(void);

/** A data set of that name; text, images and ends of documents follow. */
struct k3_k3t_writer *mm_begin(const char *name);
/** n tokens that depend on the seed. */
void mm_put_text(struct k3_k3t_writer *w, uint64_t seed, size_t n);
/** An image or video of random bytes, or of one brightness (level >= 0). */
void mm_put_image(struct k3_k3t_writer *w, uint64_t seed, uint32_t t, uint32_t h, uint32_t width,
		  int level);
void mm_end(struct k3_k3t_writer *w);

/**
 * mixed.k3t: documents with no, one, two and three images and a video of three frames, and long
 * text between, so that microbatches of 96 tokens hold none, one or several.  With MM_RUN the
 * images, of up to 48 patches with merge rows of up to 24, are cut in one, two or three bands.
 */
void mm_mixed(void);
#define MM_RUN "--tokens 96 --tile-tokens 64 --accumulate 2 --lr 2e-3 --vision-patches 24"

#endif
