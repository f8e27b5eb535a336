# CUDA kernels of all families, built with --with-cuda.
if HAVE_CUDA
libk3_la_SOURCES += \
	codelets/cuda/cuda.cu \
	codelets/cuda/gemm.cu \
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
	codelets/kda/kda_table_cuda.cu
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
	codelets/kda/kda_chunk.cuh \
	codelets/kda/kda_chunk_cuda.cu \
	codelets/kda/kda_conv.cuh \
	codelets/kda/kda_conv_bwd_cuda.cu \
	codelets/kda/kda_conv_cuda.cu \
	codelets/kda/kda_gate_cuda.cu \
	codelets/kda/kda_intra_cuda.cu \
	codelets/kda/kda_local.cuh \
	codelets/kda/kda_local_cuda.cu \
	codelets/kda/kda_mma.cuh \
	codelets/kda/kda_out_cuda.cu \
	codelets/kda/kda_proj_cuda.cu \
	codelets/kda/kda_ptx.cuh \
	codelets/kda/kda_rows.cuh \
	codelets/kda/kda_scan.cuh \
	codelets/kda/kda_sums.cuh \
	codelets/kda/kda_scan_back_cuda.cu \
	codelets/kda/kda_scan_cuda.cu \
	codelets/kda/kda_table_cuda.cu
