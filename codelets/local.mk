# Kernels and codelets; the headers here are for the folder itself, the contracts are in common/op.
libk3_la_SOURCES += \
	codelets/kda/exp_neg.h \
	codelets/kda/flush.h \
	codelets/kda/kda_chunk.h \
	codelets/kda/kda_chunk_cpu.c \
	codelets/kda/kda_lanes.h \
	codelets/kda/kda_lanes_avx2_cpu.c \
	codelets/kda/kda_lanes_avx512_cpu.c \
	codelets/kda/kda_lanes_body.h \
	codelets/kda/kda_lanes_cpu.c \
	codelets/kda/kda_tile.h \
	codelets/linalg/linear.h \
	codelets/linalg/linear_cpu.c
