# Device tests; without a device they skip.  Built with --with-cuda and Criterion.
if HAVE_CUDA
if HAVE_CRITERION
cuda_tests = \
	tests/cuda/test_cuda_attn \
	tests/cuda/test_cuda_glu \
	tests/cuda/test_cuda_mla \
	tests/cuda/test_cuda_vit_attn
check_PROGRAMS += $(cuda_tests) tests/cuda/time_cuda_attn
check_LTLIBRARIES += tests/cuda/libcase.la
endif
endif

tests_cuda_libcase_la_SOURCES = tests/cuda/cuda_case.c tests/cuda/cuda_case.h

tests_cuda_test_cuda_attn_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_glu_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_mla_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_vit_attn_LDADD = tests/cuda/libcase.la $(LDADD)

EXTRA_DIST += \
	tests/cuda/cuda_case.c \
	tests/cuda/cuda_case.h \
	tests/cuda/time_cuda_attn.c \
	tests/cuda/test_cuda_attn.c \
	tests/cuda/test_cuda_glu.c \
	tests/cuda/test_cuda_mla.c \
	tests/cuda/test_cuda_vit_attn.c
