/* Makes .k3t files from texts with images. */
#ifndef K3_K3T_IMAGES_H
#define K3_K3T_IMAGES_H

#include "k3t.h"

struct k3_k3t_images_options {
	uint32_t vocab;		/* 260 .. INT32_MAX */
	uint32_t limit_patches; /* of an image, before it is filled up to whole blocks */
	uint32_t side_patches;	/* of a side of it, 1 .. K3_K3T_MAX_SIDE */
	double holdout; /* 0 <= holdout < 1: part of the samples for X.val.k3t; 0: no such file */
};

/** Defaults: 260 ids, 65536 patches, 512 a side, a tenth is held out. */
void k3_k3t_images_options_init(struct k3_k3t_images_options *o);

struct k3_k3t_images_count {
	uint64_t samples, images, patches, tokens; /* tokens without bos and eos */
};

/**
 * A list of samples, one JSON object a line: {"text": "... <image> ...", "images": ["a.png", ...]}.
 * Each literal <image> of the text stands for the next file of "images", which may be absent when
 * there is none; names are relative to the folder of the list.  A sample becomes a document; text
 * and special ids as k3_k3t_import_bytes has them.  Sample i, from 0, is held out when
 * floor((i + 1) holdout) > floor(i holdout): with 0.1 the last of every ten.
 *
 * @param out    must end in .k3t
 * @param count  out [2]  of X.k3t and of X.val.k3t
 * @return K3_OK, or after a line that names list and line: K3_EFORMAT for a sample that breaks a
 * rule, or what k3_image_read returns.  On failure neither file is there.
 */
int k3_k3t_import_images(const char *list, const char *out, const struct k3_k3t_images_options *o,
			 struct k3_k3t_images_count *count);

#endif
