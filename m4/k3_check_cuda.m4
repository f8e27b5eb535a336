# K3_CHECK_CUDA
# -------------
# nvcc of CUDA 12.4 or newer, the CUDA runtime and cuBLASLt; after K3_CHECK_STARPU.  No device and no driver are needed.  Where StarPU has no
# CUDA, --with-cuda builds the kernels and their tests alone, and the default builds nothing.
#
# Options:   --with-cuda[=DIR], --without-cuda   default: check, in $CUDA_HOME and /usr/local/cuda
# Variables: NVCC, NVCCFLAGS, CUDA_ARCH (list such as "90a 100", each tried with NVCC, none below 90; default 90a; PTX
#            of compute_90 goes with it)
# Results:   NVCC, NVCCFLAGS, CUDA_CFLAGS, CUDA_LIBS, K3_HAVE_CUDA in CUDA_CFLAGS, conditional HAVE_CUDA,
#            k3_cuda_summary
AC_DEFUN([K3_CHECK_CUDA], [
AC_ARG_WITH([cuda],
	[AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [CUDA toolkit in DIR; default: check])],
	[], [with_cuda=check])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags of the CUDA compiler])
AC_ARG_VAR([CUDA_ARCH], [architectures that the CUDA code is compiled for, e.g. "90a 100"; default 90a])
have_cuda=no
k3_cuda_summary=no
AS_CASE([$with_cuda],
	[yes|no|check], [k3_cuda_dir=${CUDA_HOME:-/usr/local/cuda}],
	[k3_cuda_dir=$with_cuda])
AS_IF([test "x$with_cuda" != xno],
	[AC_MSG_CHECKING([for CUDA in $k3_cuda_dir])
	 k3_cuda_missing=
	 k3_cuda_lib=
	 AS_IF([test -z "$NVCC"], [NVCC=$k3_cuda_dir/bin/nvcc])
	 AS_IF([test -x "$NVCC" || command -v "$NVCC" >/dev/null 2>&1], [],
		[k3_cuda_missing="no compiler $NVCC"])
	 k3_cuda_version=`"$NVCC" --version 2>/dev/null | sed -n 's/.*release \([[0-9.]]*\).*/\1/p'`
	 AS_VERSION_COMPARE([${k3_cuda_version:-99}], [12.4],
		[k3_cuda_missing="$NVCC is of CUDA $k3_cuda_version, needed is 12.4 or newer"])
	 AS_IF([test -e "$k3_cuda_dir/include/cuda_runtime.h"], [],
		[k3_cuda_missing="${k3_cuda_missing:+$k3_cuda_missing, }no $k3_cuda_dir/include/cuda_runtime.h"])
	 for k3_dir in "$k3_cuda_dir/lib64" "$k3_cuda_dir/lib"; do
		AS_IF([test -e "$k3_dir/libcudart.so"], [k3_cuda_lib=$k3_dir; break])
	 done
	 AS_IF([test -z "$k3_cuda_lib"],
		[k3_cuda_missing="${k3_cuda_missing:+$k3_cuda_missing, }no libcudart.so in $k3_cuda_dir/lib64"])
	 AS_IF([test -e "$k3_cuda_dir/include/cublasLt.h"], [],
		[k3_cuda_missing="${k3_cuda_missing:+$k3_cuda_missing, }no $k3_cuda_dir/include/cublasLt.h"])
	 saved_CPPFLAGS=$CPPFLAGS
	 CPPFLAGS="$CPPFLAGS $STARPU_CFLAGS"
	 AC_PREPROC_IFELSE([AC_LANG_PROGRAM([[#include <starpu_config.h>
#ifndef STARPU_USE_CUDA
#error without CUDA
#endif]])], [k3_cuda_starpu=yes], [k3_cuda_starpu=no])
	 CPPFLAGS=$saved_CPPFLAGS
	 AS_IF([test -n "$k3_cuda_missing"], [],
		[test "x$with_cuda$k3_cuda_starpu" = xcheckno],
		[AC_MSG_RESULT([yes, but not in StarPU])
		 NVCC=
		 k3_cuda_summary="no: this StarPU has none (--with-cuda builds the kernels and their tests)"],
		[AC_MSG_RESULT([yes])
		 have_cuda=yes
		 CUDA_CFLAGS="-isystem $k3_cuda_dir/include -DK3_HAVE_CUDA"
		 CUDA_LIBS="-L$k3_cuda_lib -lcublasLt -lcudart -lstdc++"
		 : "${NVCCFLAGS=-O3 -lineinfo}"
		 CUDA_ARCH=`echo $CUDA_ARCH`
		 k3_cuda_known=`"$NVCC" --list-gpu-code 2>/dev/null | sed -n '/^sm_.[[0-9]]$/{/^sm_9/!d;};s/^sm_90$/sm_90a/;s/^sm_//p' | tr '\n' ' '`
		 for k3_arch in ${CUDA_ARCH:-90a}; do
			AS_IF([test "x$k3_arch" = x90],
				[AC_MSG_ERROR([CUDA_ARCH=90: Hopper needs 90a, which has its matrix instructions])])
			AS_CASE([$k3_arch],
				[[[0-8]][[0-9]]|[[0-8]][[0-9]][[a-z]]],
				[AC_MSG_ERROR([CUDA_ARCH=$CUDA_ARCH: the kernels need compute capability 9.0, $k3_arch is below; allowed are: ${k3_cuda_known:-none}])])
			AS_IF(["$NVCC" -gencode "arch=compute_$k3_arch,code=sm_$k3_arch" --dryrun -x cu -c -o conftest.o \
				/dev/null >/dev/null 2>&1], [],
				[AC_MSG_ERROR([CUDA_ARCH=${CUDA_ARCH:-$k3_arch}: $NVCC does not compile for $k3_arch; allowed are: ${k3_cuda_known:-none}])])
			NVCCFLAGS="$NVCCFLAGS -gencode arch=compute_$k3_arch,code=sm_$k3_arch"
		 done
		 AS_IF([test -z "$CUDA_ARCH"],
			[NVCCFLAGS="$NVCCFLAGS -gencode arch=compute_90,code=compute_90"])
		 k3_cuda_summary="$k3_cuda_dir, for ${CUDA_ARCH:-90a and PTX of 90}"
		 AS_IF([test "$k3_cuda_starpu" = no],
			[k3_cuda_summary="$k3_cuda_summary; kernels and tests alone, as this StarPU has no CUDA"])])
	 AS_IF([test -z "$k3_cuda_missing"], [],
		[AC_MSG_RESULT([no])
		 NVCC=
		 AS_IF([test "x$with_cuda" != xcheck],
			[AC_MSG_ERROR([--with-cuda: CUDA was not found in $k3_cuda_dir: $k3_cuda_missing])])])])
AC_SUBST([CUDA_CFLAGS])
AC_SUBST([CUDA_LIBS])
AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])
