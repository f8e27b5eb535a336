# CUDA kernels of all families, built with --with-cuda.
if HAVE_CUDA
libk3_la_SOURCES += \
	codelets/cuda/attn_bwd.cu \
	codelets/cuda/attn_fwd.cu \
	codelets/cuda/cuda.cu \
	codelets/cuda/gemm.cu \
	codelets/glu/glu_cuda.cu \
	codelets/mla/mla_attn_cuda.cu \
	codelets/mla/mla_expand_cuda.cu \
	codelets/mla/mla_out_cuda.cu \
	codelets/mla/mla_proj_cuda.cu \
	codelets/vit/vit_attn_cuda.cu
endif

EXTRA_DIST += \
	codelets/cuda/attn.cuh \
	codelets/cuda/attn.h \
	codelets/cuda/attn_bwd.cu \
	codelets/cuda/attn_bwd_tensor.cuh \
	codelets/cuda/attn_fwd.cu \
	codelets/cuda/attn_fwd_tensor.cuh \
	codelets/cuda/attn_plain.cuh \
	codelets/cuda/attn_tiles.cuh \
	codelets/cuda/cuda.cu \
	codelets/cuda/cuda.h \
	codelets/cuda/device.cuh \
	codelets/cuda/gemm.cu \
	codelets/cuda/gemm.h \
	codelets/cuda/gemm_plans.h \
	codelets/cuda/kernels.h \
	codelets/cuda/situ.cuh \
	codelets/cuda/wgmma.cuh \
	codelets/glu/glu_cuda.cu \
	codelets/mla/mla_attn_cuda.cu \
	codelets/mla/mla_expand_cuda.cu \
	codelets/mla/mla_norm.cuh \
	codelets/mla/mla_out_cuda.cu \
	codelets/mla/mla_proj_cuda.cu \
	codelets/vit/vit_attn_cuda.cu
