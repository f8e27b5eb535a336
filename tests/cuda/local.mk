# Device tests, which skip without a device, and programs that time kernels on one; built with --with-cuda and
# Criterion.
if HAVE_CUDA
if HAVE_CRITERION
cuda_tests = \
	tests/cuda/test_cuda_attn \
	tests/cuda/test_cuda_attnres \
	tests/cuda/test_cuda_embed \
	tests/cuda/test_cuda_expert \
	tests/cuda/test_cuda_glu \
	tests/cuda/test_cuda_kda \
	tests/cuda/test_cuda_kda_chunk \
	tests/cuda/test_cuda_kda_conv \
	tests/cuda/test_cuda_kda_oracle \
	tests/cuda/test_cuda_linear \
	tests/cuda/test_cuda_loss \
	tests/cuda/test_cuda_mla \
	tests/cuda/test_cuda_moe \
	tests/cuda/test_cuda_moe_rows \
	tests/cuda/test_cuda_optim \
	tests/cuda/test_cuda_trace \
	tests/cuda/test_cuda_vit \
	tests/cuda/test_cuda_vit_attn \
	tests/cuda/test_cuda_vit_ends
cuda_times = \
	tests/cuda/time_cuda_attn \
	tests/cuda/time_cuda_kda \
	tests/cuda/time_cuda_memory \
	tests/cuda/time_cuda_moe
if HAVE_NCCL
cuda_tests += \
	tests/cuda/test_cuda_comm \
	tests/cuda/test_cuda_lane
endif
check_PROGRAMS += $(cuda_tests)
EXTRA_PROGRAMS = $(cuda_times)
check_LTLIBRARIES += tests/cuda/libcase.la
endif
endif

tests_cuda_libcase_la_SOURCES = \
	tests/cuda/cuda_case.c \
	tests/cuda/cuda_case.h \
	tests/cuda/kda_oracle.c \
	tests/cuda/kda_oracle.h \
	tests/cuda/kda_tile.h \
	tests/cuda/route_case.c \
	tests/cuda/route_case.h \
	tests/cuda/time_case.c \
	tests/cuda/time_case.h \
	tests/cuda/vit_tiles.h

tests_cuda_test_cuda_attn_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_attnres_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_comm_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_embed_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_expert_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_glu_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_chunk_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_conv_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_oracle_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_lane_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_linear_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_loss_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_mla_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_moe_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_moe_rows_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_optim_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_trace_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_vit_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_vit_attn_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_vit_ends_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_time_cuda_attn_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_time_cuda_kda_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_time_cuda_memory_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_time_cuda_moe_LDADD = tests/cuda/libcase.la $(LDADD)

EXTRA_DIST += \
	tests/cuda/cuda_case.c \
	tests/cuda/cuda_case.h \
	tests/cuda/kda_oracle.c \
	tests/cuda/kda_oracle.h \
	tests/cuda/kda_tile.h \
	tests/cuda/route_case.c \
	tests/cuda/route_case.h \
	tests/cuda/test_cuda_attn.c \
	tests/cuda/test_cuda_attnres.c \
	tests/cuda/test_cuda_comm.c \
	tests/cuda/test_cuda_embed.c \
	tests/cuda/test_cuda_expert.c \
	tests/cuda/test_cuda_glu.c \
	tests/cuda/test_cuda_kda.c \
	tests/cuda/test_cuda_kda_chunk.c \
	tests/cuda/test_cuda_kda_conv.c \
	tests/cuda/test_cuda_kda_oracle.c \
	tests/cuda/test_cuda_lane.c \
	tests/cuda/test_cuda_linear.c \
	tests/cuda/test_cuda_loss.c \
	tests/cuda/test_cuda_mla.c \
	tests/cuda/test_cuda_moe.c \
	tests/cuda/test_cuda_moe_rows.c \
	tests/cuda/test_cuda_optim.c \
	tests/cuda/test_cuda_trace.c \
	tests/cuda/test_cuda_vit.c \
	tests/cuda/test_cuda_vit_attn.c \
	tests/cuda/test_cuda_vit_ends.c \
	tests/cuda/time_case.c \
	tests/cuda/time_case.h \
	tests/cuda/time_cuda_attn.c \
	tests/cuda/time_cuda_kda.c \
	tests/cuda/time_cuda_memory.c \
	tests/cuda/time_cuda_moe.c \
	tests/cuda/vit_tiles.h
