/* The family's operations on CUDA: X(operation, arguments, stem of its kernels, needs scratch). */
#ifndef K3_KDA_CUDA_H
#define K3_KDA_CUDA_H

#define K3_KDA_CUDA_MAP(X)                                                                         \
	X(KDA_PROJ_FWD, k3_kda_proj_args, kda_proj_fwd, 0)                                         \
	X(KDA_PROJ_BWD_DX, k3_kda_proj_args, kda_proj_bwd_dx, 0)                                   \
	X(KDA_PROJ_BWD_DW, k3_kda_proj_args, kda_proj_bwd_dw, 0)                                   \
	X(KDA_GATE_FWD, k3_kda_gate_args, kda_gate_fwd, 0)                                         \
	X(KDA_GATE_BWD_DX, k3_kda_gate_args, kda_gate_bwd_dx, 0)                                   \
	X(KDA_GATE_BWD_DW, k3_kda_gate_args, kda_gate_bwd_dw, 0)                                   \
	X(KDA_CONV_FWD, k3_kda_conv_args, kda_conv_fwd, 0)                                         \
	X(KDA_CONV_BWD, k3_kda_conv_args, kda_conv_bwd, 1)                                         \
	X(KDA_CHUNK_FWD, k3_kda_chunk_args, kda_chunk_fwd, 1)                                      \
	X(KDA_CHUNK_BWD, k3_kda_chunk_args, kda_chunk_bwd, 1)                                      \
	X(KDA_OUT_FWD, k3_kda_out_args, kda_out_fwd, 0)                                            \
	X(KDA_OUT_BWD_DX, k3_kda_out_args, kda_out_bwd_dx, 1)                                      \
	X(KDA_OUT_BWD_DW, k3_kda_out_args, kda_out_bwd_dw, 0)

#endif
