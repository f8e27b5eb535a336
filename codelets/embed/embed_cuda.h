/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_EMBED_CUDA_H
#define K3_EMBED_CUDA_H

#define K3_EMBED_CUDA_MAP(X)                                                                       \
	X(EMBED_FWD, k3_embed_args, embed_fwd, 0)                                                  \
	X(EMBED_BWD, k3_embed_args, embed_bwd, 1)

#endif
