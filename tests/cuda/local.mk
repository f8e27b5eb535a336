# Device tests; without a device they skip.  Built with --with-cuda and Criterion.
if HAVE_CUDA
if HAVE_CRITERION
cuda_tests = \
	tests/cuda/test_cuda_glu \
	tests/cuda/test_cuda_kda \
	tests/cuda/test_cuda_kda_conv
check_PROGRAMS += $(cuda_tests)
check_LTLIBRARIES += tests/cuda/libcase.la
endif
endif

tests_cuda_libcase_la_SOURCES = tests/cuda/cuda_case.c tests/cuda/cuda_case.h

tests_cuda_test_cuda_glu_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_LDADD = tests/cuda/libcase.la $(LDADD)
tests_cuda_test_cuda_kda_conv_LDADD = tests/cuda/libcase.la $(LDADD)

EXTRA_DIST += \
	tests/cuda/cuda_case.c \
	tests/cuda/cuda_case.h \
	tests/cuda/test_cuda_glu.c \
	tests/cuda/test_cuda_kda.c \
	tests/cuda/test_cuda_kda_conv.c
