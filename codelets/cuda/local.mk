# CUDA kernels of all families, built with --with-cuda.
if HAVE_CUDA
libk3_la_SOURCES += \
	codelets/attnres/mix_norm_bwd_cuda.cu \
	codelets/attnres/mix_norm_fwd_cuda.cu \
	codelets/cuda/cuda.cu \
	codelets/cuda/gemm.cu \
	codelets/embed/embed_cuda.cu \
	codelets/glu/glu_cuda.cu \
	codelets/loss/lm_head_cuda.cu \
	codelets/loss/lm_head_grad_cuda.cu \
	codelets/loss/loss_sum_cuda.cu \
	codelets/norm/rms_cuda.cu \
	codelets/optim/adamw_cuda.cu \
	codelets/optim/hash_cuda.cu \
	codelets/optim/norm_cuda.cu \
	codelets/optim/param_init_cuda.cu \
	codelets/optim/router_bias_cuda.cu \
	codelets/vit/vision_scatter_cuda.cu \
	codelets/vit/vit_merge_cuda.cu \
	codelets/vit/vit_mlp_cuda.cu \
	codelets/vit/vit_out_cuda.cu \
	codelets/vit/vit_patch_embed_cuda.cu \
	codelets/vit/vit_project_cuda.cu \
	codelets/vit/vit_qkv_cuda.cu
endif

EXTRA_DIST += \
	codelets/attnres/mix.cuh \
	codelets/attnres/mix_bwd.cuh \
	codelets/attnres/mix_norm_bwd_cuda.cu \
	codelets/attnres/mix_norm_fwd_cuda.cu \
	codelets/cuda/cuda.cu \
	codelets/cuda/cuda.h \
	codelets/cuda/device.cuh \
	codelets/cuda/gemm.cu \
	codelets/cuda/gemm.h \
	codelets/cuda/gemm_plans.h \
	codelets/cuda/kernels.h \
	codelets/cuda/pointers.cuh \
	codelets/cuda/runs.cuh \
	codelets/cuda/situ.cuh \
	codelets/embed/embed_cuda.cu \
	codelets/glu/glu_cuda.cu \
	codelets/loss/lm_head_cuda.cu \
	codelets/loss/lm_head_grad_cuda.cu \
	codelets/loss/loss_sum_cuda.cu \
	codelets/norm/rms_cuda.cu \
	codelets/optim/adamw_cuda.cu \
	codelets/optim/flat.cuh \
	codelets/optim/hash_cuda.cu \
	codelets/optim/norm_cuda.cu \
	codelets/optim/param_init_cuda.cu \
	codelets/optim/router_bias_cuda.cu \
	codelets/vit/gelu.cuh \
	codelets/vit/vision_scatter_cuda.cu \
	codelets/vit/vit.cuh \
	codelets/vit/vit_merge_cuda.cu \
	codelets/vit/vit_mlp_cuda.cu \
	codelets/vit/vit_out_cuda.cu \
	codelets/vit/vit_patch_embed_cuda.cu \
	codelets/vit/vit_project_cuda.cu \
	codelets/vit/vit_qkv_cuda.cu
