# K3_CHECK_CUDA
# -------------
# nvcc and the CUDA runtime.  They are only detected: no code of this version uses them.
#
# Options:   --with-cuda[=DIR], --without-cuda   default: check, in $CUDA_HOME and /usr/local/cuda
# Variables: NVCC, NVCCFLAGS, CUDA_ARCH (e.g. sm_90; default: what nvcc takes)
# Results:   NVCC, NVCCFLAGS, CUDA_CFLAGS, CUDA_LIBS, conditional HAVE_CUDA, k3_cuda_summary
AC_DEFUN([K3_CHECK_CUDA], [
AC_ARG_WITH([cuda],
	[AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [CUDA toolkit in DIR; default: check])],
	[], [with_cuda=check])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags of the CUDA compiler])
AC_ARG_VAR([CUDA_ARCH], [architecture that the CUDA code is compiled for, e.g. sm_90])
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
	 AS_IF([test -e "$k3_cuda_dir/include/cuda_runtime.h"], [],
		[k3_cuda_missing="${k3_cuda_missing:+$k3_cuda_missing, }no $k3_cuda_dir/include/cuda_runtime.h"])
	 for k3_dir in "$k3_cuda_dir/lib64" "$k3_cuda_dir/lib"; do
		AS_IF([test -e "$k3_dir/libcudart.so"], [k3_cuda_lib=$k3_dir; break])
	 done
	 AS_IF([test -z "$k3_cuda_lib"],
		[k3_cuda_missing="${k3_cuda_missing:+$k3_cuda_missing, }no libcudart.so in $k3_cuda_dir/lib64"])
	 AS_IF([test -z "$k3_cuda_missing"],
		[AC_MSG_RESULT([yes])
		 have_cuda=yes
		 CUDA_CFLAGS="-isystem $k3_cuda_dir/include"
		 CUDA_LIBS="-L$k3_cuda_lib -lcudart"
		 : "${NVCCFLAGS=-O3 -g}"
		 AS_IF([test -n "$CUDA_ARCH"], [NVCCFLAGS="$NVCCFLAGS -arch=$CUDA_ARCH"])
		 k3_cuda_summary="found in $k3_cuda_dir; this version does not use it"],
		[AC_MSG_RESULT([no])
		 NVCC=
		 AS_IF([test "x$with_cuda" != xcheck],
			[AC_MSG_ERROR([--with-cuda: CUDA was not found in $k3_cuda_dir: $k3_cuda_missing])])])])
AC_SUBST([CUDA_CFLAGS])
AC_SUBST([CUDA_LIBS])
AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])
