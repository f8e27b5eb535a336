# CUDA kernels of all families, built with --with-cuda.
if HAVE_CUDA
libk3_la_SOURCES += \
	codelets/cuda/cuda.cu \
	codelets/cuda/gemm.cu \
	codelets/glu/glu_cuda.cu \
	codelets/moe/expert_cuda.cu \
	codelets/moe/expert_fma.cu \
	codelets/moe/expert_wgmma.cu \
	codelets/moe/moe_combine_cuda.cu \
	codelets/moe/moe_count_cuda.cu \
	codelets/moe/moe_dispatch_cuda.cu \
	codelets/moe/moe_route_cuda.cu
endif

EXTRA_DIST += \
	codelets/cuda/cuda.cu \
	codelets/cuda/cuda.h \
	codelets/cuda/device.cuh \
	codelets/cuda/gemm.cu \
	codelets/cuda/gemm.h \
	codelets/cuda/gemm_plans.h \
	codelets/cuda/kernels.h \
	codelets/cuda/situ.cuh \
	codelets/glu/glu_cuda.cu \
	codelets/moe/expert_cuda.cu \
	codelets/moe/expert_finish.cuh \
	codelets/moe/expert_fma.cu \
	codelets/moe/expert_tiles.cuh \
	codelets/moe/expert_wgmma.cu \
	codelets/moe/expert_wgmma.cuh \
	codelets/moe/fast_situ.cuh \
	codelets/moe/moe_combine_cuda.cu \
	codelets/moe/moe_count_cuda.cu \
	codelets/moe/moe_dispatch_cuda.cu \
	codelets/moe/moe_route_cuda.cu \
	codelets/moe/rows.cuh \
	codelets/moe/wgmma.cuh
