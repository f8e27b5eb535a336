# CUDA kernels of all families, built with --with-cuda.
cuda_sources = \
	codelets/attnres/mix_norm_bwd_cuda.cu \
	codelets/attnres/mix_norm_fwd_cuda.cu \
	codelets/cuda/attn_bwd.cu \
	codelets/cuda/attn_fwd.cu \
	codelets/cuda/cuda.cu \
	codelets/cuda/gemm.cu \
	codelets/cuda/linear.cu \
	codelets/embed/embed_cuda.cu \
	codelets/glu/glu_cuda.cu \
	codelets/kda/kda_chunk_cuda.cu \
	codelets/kda/kda_conv_bwd_cuda.cu \
	codelets/kda/kda_conv_cuda.cu \
	codelets/kda/kda_gate_cuda.cu \
	codelets/kda/kda_intra_cuda.cu \
	codelets/kda/kda_local_cuda.cu \
	codelets/kda/kda_out_cuda.cu \
	codelets/kda/kda_proj_cuda.cu \
	codelets/kda/kda_scan_back_cuda.cu \
	codelets/kda/kda_scan_cuda.cu \
	codelets/kda/kda_table_cuda.cu \
	codelets/loss/lm_head_cuda.cu \
	codelets/loss/lm_head_grad_cuda.cu \
	codelets/loss/loss_sum_cuda.cu \
	codelets/mla/mla_attn_cuda.cu \
	codelets/mla/mla_expand_cuda.cu \
	codelets/mla/mla_out_cuda.cu \
	codelets/mla/mla_proj_cuda.cu \
	codelets/moe/expert_cuda.cu \
	codelets/moe/expert_fma.cu \
	codelets/moe/expert_wgmma.cu \
	codelets/moe/moe_combine_cuda.cu \
	codelets/moe/moe_count_cuda.cu \
	codelets/moe/moe_dispatch_cuda.cu \
	codelets/moe/moe_route_cuda.cu \
	codelets/norm/rms_cuda.cu \
	codelets/optim/adamw_cuda.cu \
	codelets/optim/hash_cuda.cu \
	codelets/optim/norm_cuda.cu \
	codelets/optim/param_init_cuda.cu \
	codelets/optim/router_bias_cuda.cu \
	codelets/vit/vision_scatter_cuda.cu \
	codelets/vit/vit_attn_cuda.cu \
	codelets/vit/vit_merge_cuda.cu \
	codelets/vit/vit_mlp_cuda.cu \
	codelets/vit/vit_out_cuda.cu \
	codelets/vit/vit_patch_embed_cuda.cu \
	codelets/vit/vit_project_cuda.cu \
	codelets/vit/vit_qkv_cuda.cu

cuda_headers = \
	codelets/attnres/mix.cuh \
	codelets/attnres/mix_bwd.cuh \
	codelets/attnres/mix_bwd_team.cuh \
	codelets/attnres/mix_fwd.cuh \
	codelets/cuda/attn.cuh \
	codelets/cuda/attn.h \
	codelets/cuda/attn_bwd_tensor.cuh \
	codelets/cuda/attn_fwd_tensor.cuh \
	codelets/cuda/attn_plain.cuh \
	codelets/cuda/attn_tiles.cuh \
	codelets/cuda/cuda.h \
	codelets/cuda/device.cuh \
	codelets/cuda/gemm.h \
	codelets/cuda/gemm_plans.h \
	codelets/cuda/kernels.h \
	codelets/cuda/pointers.cuh \
	codelets/cuda/runs.cuh \
	codelets/cuda/situ.cuh \
	codelets/cuda/team.cuh \
	codelets/cuda/wgmma.cuh \
	codelets/kda/kda_chunk.cuh \
	codelets/kda/kda_conv.cuh \
	codelets/kda/kda_conv_bwd.cuh \
	codelets/kda/kda_local.cuh \
	codelets/kda/kda_mma.cuh \
	codelets/kda/kda_out.cuh \
	codelets/kda/kda_ptx.cuh \
	codelets/kda/kda_rows.cuh \
	codelets/kda/kda_scan.cuh \
	codelets/kda/kda_sums.cuh \
	codelets/mla/mla_gemm.cuh \
	codelets/mla/mla_norm.cuh \
	codelets/moe/expert_finish.cuh \
	codelets/moe/expert_tiles.cuh \
	codelets/moe/expert_wgmma.cuh \
	codelets/moe/fast_situ.cuh \
	codelets/moe/rows.cuh \
	codelets/moe/wgmma.cuh \
	codelets/norm/rms_any.cuh \
	codelets/optim/flat.cuh \
	codelets/optim/rng.cuh \
	codelets/vit/gelu.cuh \
	codelets/vit/vit.cuh

if HAVE_CUDA
libk3_la_SOURCES += $(cuda_sources)
# nvcc tells no dependencies
$(cuda_sources:.cu=.lo): $(cuda_headers)
endif

EXTRA_DIST += $(cuda_sources) $(cuda_headers)
