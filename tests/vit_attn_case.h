/* The attention kernels of the vision tower on the tiles of vit_case.h. */
#ifndef K3_TESTS_VIT_ATTN_CASE_H
#define K3_TESTS_VIT_ATTN_CASE_H
#include "../codelets/vit/vit_attn.h"
#include "vit_case.h"

/* Rows in the order of the dump. */
struct vit_attn {
	const char *dump;
	const struct vit_grid *items;
	size_t n, h, hd;
	float *qkv, *dout, *lse, *delta;
};

/** Case `dump` of vit_block.safetensors. */
struct vit_attn vit_attn_golden(const char *dump, const struct vit_grid *items, size_t n, size_t h,
				size_t hd);
/** What this processor runs; returns the number. */
size_t vit_attn_widths(const struct k3i_vit_attn *table[3]);
void vit_attn_forward(const struct k3i_vit_attn *run, const struct vit_attn *d,
		      const struct vit_tile *tile, const struct vit_tile *keys, size_t n_keys,
		      float *o, float *lse);
/** Adds to dq and dkv of the tiles unless told to write them. */
void vit_attn_backward(const struct k3i_vit_attn *run, const struct vit_attn *d,
		       const struct vit_tile *tile, const struct vit_tile *keys, int init_dq,
		       int init_dkv, float *dq, float *dkv);

#endif
