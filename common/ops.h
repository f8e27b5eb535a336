/* The list of operations: enum, name in the trace, family (colour), and the kinds of communication.
 * Arguments and buffers of each: common/op/<family>.h.
 */
#ifndef K3_OPS_H
#define K3_OPS_H
#include "op/attnres.h"
#include "op/comm.h"
#include "op/embed.h"
#include "op/glu.h"
#include "op/io.h"
#include "op/kda.h"
#include "op/loss.h"
#include "op/mla.h"
#include "op/moe.h"
#include "op/optim.h"
#include "op/vit.h"

#define K3_FAMILY_MAP(X) \
	X(EMBED, "embed") X(ATTNRES, "attnres") X(KDA, "kda") X(MLA, "mla") X(MOE, "moe") X(GLU, "glu") \
	X(VIT, "vit") X(LOSS, "loss") X(OPTIM, "optim") X(COMM, "comm") X(IO, "io")
enum k3_family {
#define X(name, text) K3_FAMILY_##name,
	K3_FAMILY_MAP(X)
#undef X
	K3_N_FAMILIES
};

/* X(enum, name, family, arguments struct, CPU kernel) */
#define K3_COMPUTE_OP_MAP(X)                                                                            \
	X(EMBED_FWD, embed_fwd, EMBED, k3_embed_args, k3_embed_fwd_cpu_f32)                             \
	X(EMBED_BWD, embed_bwd, EMBED, k3_embed_args, k3_embed_bwd_cpu_f32)                             \
	X(MIX_NORM_FWD, mix_norm_fwd, ATTNRES, k3_mix_norm_fwd_args, k3_mix_norm_fwd_cpu_f32)           \
	X(MIX_NORM_BWD, mix_norm_bwd, ATTNRES, k3_mix_norm_bwd_args, k3_mix_norm_bwd_cpu_f32)           \
	X(KDA_PROJ_FWD, kda_proj_fwd, KDA, k3_kda_proj_args, k3_kda_proj_fwd_cpu_f32)                   \
	X(KDA_PROJ_BWD_DX, kda_proj_bwd_dx, KDA, k3_kda_proj_args, k3_kda_proj_bwd_dx_cpu_f32)          \
	X(KDA_PROJ_BWD_DW, kda_proj_bwd_dw, KDA, k3_kda_proj_args, k3_kda_proj_bwd_dw_cpu_f32)          \
	X(KDA_GATE_FWD, kda_gate_fwd, KDA, k3_kda_gate_args, k3_kda_gate_fwd_cpu_f32)                   \
	X(KDA_GATE_BWD_DX, kda_gate_bwd_dx, KDA, k3_kda_gate_args, k3_kda_gate_bwd_dx_cpu_f32)          \
	X(KDA_GATE_BWD_DW, kda_gate_bwd_dw, KDA, k3_kda_gate_args, k3_kda_gate_bwd_dw_cpu_f32)          \
	X(KDA_CONV_FWD, kda_conv_fwd, KDA, k3_kda_conv_args, k3_kda_conv_fwd_cpu_f32)                   \
	X(KDA_CONV_BWD, kda_conv_bwd, KDA, k3_kda_conv_args, k3_kda_conv_bwd_cpu_f32)                   \
	X(KDA_CHUNK_FWD, kda_chunk_fwd, KDA, k3_kda_chunk_args, k3_kda_chunk_fwd_cpu_f32)               \
	X(KDA_CHUNK_BWD, kda_chunk_bwd, KDA, k3_kda_chunk_args, k3_kda_chunk_bwd_cpu_f32)               \
	X(KDA_OUT_FWD, kda_out_fwd, KDA, k3_kda_out_args, k3_kda_out_fwd_cpu_f32)                       \
	X(KDA_OUT_BWD_DX, kda_out_bwd_dx, KDA, k3_kda_out_args, k3_kda_out_bwd_dx_cpu_f32)              \
	X(KDA_OUT_BWD_DW, kda_out_bwd_dw, KDA, k3_kda_out_args, k3_kda_out_bwd_dw_cpu_f32)              \
	X(MLA_PROJ_FWD, mla_proj_fwd, MLA, k3_mla_proj_args, k3_mla_proj_fwd_cpu_f32)                   \
	X(MLA_PROJ_BWD_DX, mla_proj_bwd_dx, MLA, k3_mla_proj_args, k3_mla_proj_bwd_dx_cpu_f32)          \
	X(MLA_PROJ_BWD_DW, mla_proj_bwd_dw, MLA, k3_mla_proj_args, k3_mla_proj_bwd_dw_cpu_f32)          \
	X(MLA_EXPAND_FWD, mla_expand_fwd, MLA, k3_mla_expand_args, k3_mla_expand_fwd_cpu_f32)           \
	X(MLA_EXPAND_BWD_DX, mla_expand_bwd_dx, MLA, k3_mla_expand_args, k3_mla_expand_bwd_dx_cpu_f32)  \
	X(MLA_EXPAND_BWD_DW, mla_expand_bwd_dw, MLA, k3_mla_expand_args, k3_mla_expand_bwd_dw_cpu_f32)  \
	X(MLA_ATTN_FWD, mla_attn_fwd, MLA, k3_mla_attn_args, k3_mla_attn_fwd_cpu_f32)                   \
	X(MLA_ATTN_BWD, mla_attn_bwd, MLA, k3_mla_attn_args, k3_mla_attn_bwd_cpu_f32)                   \
	X(MLA_OUT_FWD, mla_out_fwd, MLA, k3_mla_out_args, k3_mla_out_fwd_cpu_f32)                       \
	X(MLA_OUT_BWD_DX, mla_out_bwd_dx, MLA, k3_mla_out_args, k3_mla_out_bwd_dx_cpu_f32)              \
	X(MLA_OUT_BWD_DW, mla_out_bwd_dw, MLA, k3_mla_out_args, k3_mla_out_bwd_dw_cpu_f32)              \
	X(DENSE_FFN_FWD, dense_ffn_fwd, GLU, k3_glu_args, k3_glu_fwd_cpu_f32)                           \
	X(DENSE_FFN_GU, dense_ffn_gu, GLU, k3_glu_args, k3_glu_gu_cpu_f32)                              \
	X(DENSE_FFN_BWD_DX, dense_ffn_bwd_dx, GLU, k3_glu_args, k3_glu_bwd_dx_cpu_f32)                  \
	X(DENSE_FFN_BWD_DW, dense_ffn_bwd_dw, GLU, k3_glu_args, k3_glu_bwd_dw_cpu_f32)                  \
	X(SHARED_FFN_FWD, shared_ffn_fwd, GLU, k3_glu_args, k3_glu_fwd_cpu_f32)                         \
	X(SHARED_FFN_GU, shared_ffn_gu, GLU, k3_glu_args, k3_glu_gu_cpu_f32)                            \
	X(SHARED_FFN_BWD_DX, shared_ffn_bwd_dx, GLU, k3_glu_args, k3_glu_bwd_dx_cpu_f32)                \
	X(SHARED_FFN_BWD_DW, shared_ffn_bwd_dw, GLU, k3_glu_args, k3_glu_bwd_dw_cpu_f32)                \
	X(MOE_ROUTE_FWD, moe_route_fwd, MOE, k3_moe_route_args, k3_moe_route_fwd_cpu_f32)               \
	X(MOE_COUNT, moe_count, MOE, k3_moe_count_args, k3_moe_count_cpu)                               \
	X(MOE_DISPATCH_FWD, moe_dispatch_fwd, MOE, k3_moe_dispatch_args, k3_moe_dispatch_fwd_cpu_f32)   \
	X(MOE_DISPATCH_BWD_DX, moe_dispatch_bwd_dx, MOE, k3_moe_dispatch_args, k3_moe_dispatch_bwd_dx_cpu_f32) \
	X(MOE_DISPATCH_BWD_DW, moe_dispatch_bwd_dw, MOE, k3_moe_dispatch_args, k3_moe_dispatch_bwd_dw_cpu_f32) \
	X(EXPERT_FWD, expert_ffn, MOE, k3_expert_args, k3_expert_fwd_cpu_f32)                           \
	X(EXPERT_GU, expert_gu, MOE, k3_expert_args, k3_expert_gu_cpu_f32)                              \
	X(EXPERT_DGRAD, expert_dgrad, MOE, k3_expert_args, k3_expert_dgrad_cpu_f32)                     \
	X(EXPERT_WGRAD, expert_wgrad, MOE, k3_expert_args, k3_expert_wgrad_cpu_f32)                     \
	X(MOE_COMBINE_FWD, moe_combine_fwd, MOE, k3_moe_combine_args, k3_moe_combine_fwd_cpu_f32)       \
	X(MOE_COMBINE_BWD_DX, moe_combine_bwd_dx, MOE, k3_moe_combine_args, k3_moe_combine_bwd_dx_cpu_f32) \
	X(MOE_COMBINE_BWD_DW, moe_combine_bwd_dw, MOE, k3_moe_combine_args, k3_moe_combine_bwd_dw_cpu_f32) \
	X(VIT_PATCH_EMBED_FWD, vit_patch_embed_fwd, VIT, k3_vit_embed_args, k3_vit_patch_embed_fwd_cpu_f32) \
	X(VIT_PATCH_EMBED_BWD, vit_patch_embed_bwd, VIT, k3_vit_embed_args, k3_vit_patch_embed_bwd_cpu_f32) \
	X(VIT_QKV_FWD, vit_qkv_fwd, VIT, k3_vit_qkv_args, k3_vit_qkv_fwd_cpu_f32)                       \
	X(VIT_QKV_BWD_DX, vit_qkv_bwd_dx, VIT, k3_vit_qkv_args, k3_vit_qkv_bwd_dx_cpu_f32)              \
	X(VIT_QKV_BWD_DW, vit_qkv_bwd_dw, VIT, k3_vit_qkv_args, k3_vit_qkv_bwd_dw_cpu_f32)              \
	X(VIT_ATTN_FWD, vit_attn_fwd, VIT, k3_vit_attn_args, k3_vit_attn_fwd_cpu_f32)                   \
	X(VIT_ATTN_BWD, vit_attn_bwd, VIT, k3_vit_attn_args, k3_vit_attn_bwd_cpu_f32)                   \
	X(VIT_OUT_FWD, vit_out_fwd, VIT, k3_vit_out_args, k3_vit_out_fwd_cpu_f32)                       \
	X(VIT_OUT_BWD_DX, vit_out_bwd_dx, VIT, k3_vit_out_args, k3_vit_out_bwd_dx_cpu_f32)              \
	X(VIT_OUT_BWD_DW, vit_out_bwd_dw, VIT, k3_vit_out_args, k3_vit_out_bwd_dw_cpu_f32)              \
	X(VIT_MLP_FWD, vit_mlp_fwd, VIT, k3_vit_mlp_args, k3_vit_mlp_fwd_cpu_f32)                       \
	X(VIT_MLP_BWD_DX, vit_mlp_bwd_dx, VIT, k3_vit_mlp_args, k3_vit_mlp_bwd_dx_cpu_f32)              \
	X(VIT_MLP_BWD_DW, vit_mlp_bwd_dw, VIT, k3_vit_mlp_args, k3_vit_mlp_bwd_dw_cpu_f32)              \
	X(VIT_MERGE_FWD, vit_merge_fwd, VIT, k3_vit_merge_args, k3_vit_merge_fwd_cpu_f32)               \
	X(VIT_MERGE_BWD, vit_merge_bwd, VIT, k3_vit_merge_args, k3_vit_merge_bwd_cpu_f32)               \
	X(VIT_PROJECT_FWD, vit_project_fwd, VIT, k3_vit_project_args, k3_vit_project_fwd_cpu_f32)       \
	X(VIT_PROJECT_BWD_DX, vit_project_bwd_dx, VIT, k3_vit_project_args, k3_vit_project_bwd_dx_cpu_f32) \
	X(VIT_PROJECT_BWD_DW, vit_project_bwd_dw, VIT, k3_vit_project_args, k3_vit_project_bwd_dw_cpu_f32) \
	X(VISION_SCATTER_FWD, vision_scatter_fwd, VIT, k3_vision_scatter_args, k3_vision_scatter_fwd_cpu_f32) \
	X(VISION_SCATTER_BWD, vision_scatter_bwd, VIT, k3_vision_scatter_args, k3_vision_scatter_bwd_cpu_f32) \
	X(ZERO_GRADS, zero_grads, VIT, k3_zero_args, k3_zero_grads_cpu_f32)                             \
	X(LM_HEAD_CE, lm_head_ce, LOSS, k3_lm_head_args, k3_lm_head_ce_cpu_f32)                         \
	X(LM_HEAD_DX, lm_head_dx, LOSS, k3_lm_head_args, k3_lm_head_dx_cpu_f32)                         \
	X(LM_HEAD_DW, lm_head_dw, LOSS, k3_lm_head_args, k3_lm_head_dw_cpu_f32)                         \
	X(LOSS_SUM, loss_sum, LOSS, k3_loss_sum_args, k3_loss_sum_cpu)                                  \
	X(GRAD_NORM, grad_norm_partial, OPTIM, k3_grad_norm_args, k3_grad_norm_cpu_f32)                 \
	X(CLIP_FACTOR, clip_factor, OPTIM, k3_clip_args, k3_clip_factor_cpu)                            \
	X(ADAMW_STEP, adamw_step, OPTIM, k3_adamw_args, k3_adamw_step_cpu_f32)                          \
	X(CAST_PARAMS, cast_params, OPTIM, k3_cast_args, k3_cast_params_cpu)                            \
	X(ROUTER_BIAS_UPDATE, router_bias_update, OPTIM, k3_router_bias_args, k3_router_bias_update_cpu_f32) \
	X(HASH_DATA, hash_data, OPTIM, k3_hash_args, k3_hash_data_cpu)                                  \
	X(PARAM_INIT, param_init, IO, k3_param_init_args, k3_param_init_cpu_f32)

/* Operations whose CPU kernel takes bf16 operands as they are, beside the _f32 one where that does not:
 * X(enum, name, arguments struct, CPU kernel).  All others compute on float copies (tasks/convert.h). */
#define K3_BF16_OP_MAP(X)                                                   \
	X(EMBED_FWD, embed_fwd, k3_embed_args, k3_embed_fwd_cpu_bf16)       \
	X(ADAMW_STEP, adamw_step, k3_adamw_args, k3_adamw_step_cpu_f32)     \
	X(CAST_PARAMS, cast_params, k3_cast_args, k3_cast_params_cpu)       \
	X(PARAM_INIT, param_init, k3_param_init_args, k3_param_init_cpu_f32) \
	X(HASH_DATA, hash_data, k3_hash_args, k3_hash_data_cpu)

/* Operations whose arguments come with the submission: X(enum, name, family) */
#define K3_IO_OP_MAP(X)                 \
	X(BATCH_LOAD, batch_load, IO)   \
	X(STEP_LOAD, step_load, IO)     \
	X(VIT_LOAD, vit_load, IO)

/* Communication, planned for meshes of several ranks: X(enum, name, family) */
#define K3_COMM_OP_MAP(X)                                 \
	X(GATHER_PARAMS, gather_params, COMM)             \
	X(REDUCE_SCATTER_GRADS, reduce_scatter_grads, COMM) \
	X(ALLREDUCE, allreduce, COMM)                     \
	X(GATHER_KV, gather_kv, COMM)                     \
	X(SCATTER_KV_GRADS, scatter_kv_grads, COMM)       \
	X(GATHER_FEATURES, gather_features, COMM)         \
	X(SUM_FEATURE_GRADS, sum_feature_grads, COMM)     \
	X(HALO_SEND, halo_send, COMM)                     \
	X(HALO_RECV, halo_recv, COMM)                     \
	X(KDA_STATE_LOCAL, kda_state_local, KDA)          \
	X(KDA_STATE_GATHER, kda_state_gather, COMM)       \
	X(KDA_STATE_COMBINE, kda_state_combine, KDA)

enum k3_op {
#define X(id, name, family, args, kernel) K3_OP_##id,
	K3_COMPUTE_OP_MAP(X)
#undef X
#define X(id, name, family) K3_OP_##id,
	K3_IO_OP_MAP(X) K3_COMM_OP_MAP(X)
#undef X
	K3_N_OPS
};

/** Name in the trace, e.g. "kda_chunk_fwd". */
const char *k3_op_name(enum k3_op op);
enum k3_family k3_op_family(enum k3_op op);
const char *k3_family_name(enum k3_family family);
/** 1 for operations of K3_BF16_OP_MAP. */
int k3_op_takes_bf16(enum k3_op op);
/** 1 for operations that involve another rank. */
int k3_op_is_comm(enum k3_op op);
#endif
