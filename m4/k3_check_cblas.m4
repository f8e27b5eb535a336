# K3_CHECK_CBLAS
# --------------
# Matrix products of the CPU kernels; required.  Takes the first that has cblas.h and links cblas_sgemm:
# CBLAS_LIBS if given, then the pkg-config modules openblas, cblas, blas.
#
# Variables: CBLAS_CFLAGS, CBLAS_LIBS   another library, e.g. CBLAS_LIBS="-lblis"
# Results:   CBLAS_CFLAGS, CBLAS_LIBS, k3_cblas_summary
#            K3_HAVE_OPENBLAS defined when openblas_set_num_threads exists: a kernel runs inside one StarPU
#            worker, so the library's own threads must be switched off
AC_DEFUN([K3_CHECK_CBLAS], [
AC_ARG_VAR([CBLAS_CFLAGS], [C compiler flags for CBLAS, overriding pkg-config])
AC_ARG_VAR([CBLAS_LIBS], [linker flags for CBLAS, overriding pkg-config])
k3_cblas_summary=
AS_IF([test -n "$CBLAS_LIBS"],
	[K3_TRY_CBLAS([$CBLAS_CFLAGS], [$CBLAS_LIBS])],
	[for k3_module in openblas cblas blas; do
		AS_IF([$PKG_CONFIG --exists $k3_module],
			[K3_TRY_CBLAS([`$PKG_CONFIG --cflags $k3_module`], [`$PKG_CONFIG --libs $k3_module`])])
		AS_IF([test -n "$k3_cblas_summary"], [break])
	done])
AS_IF([test -z "$k3_cblas_summary"],
	[AC_MSG_ERROR([no CBLAS: tried ${CBLAS_LIBS:-the pkg-config modules openblas, cblas, blas} with cblas.h.
Debian: apt-get install libopenblas-dev.  Elsewhere set CBLAS_CFLAGS and CBLAS_LIBS.])])

k3_saved_libs=$LIBS
LIBS="$CBLAS_LIBS $LIBS"
AC_CHECK_FUNC([openblas_set_num_threads],
	[AC_DEFINE([K3_HAVE_OPENBLAS], [1], [openblas_set_num_threads exists])
	 k3_cblas_summary="OpenBLAS, $k3_cblas_summary"])
LIBS=$k3_saved_libs
])

# K3_TRY_CBLAS(CFLAGS, LIBS)
# --------------------------
# Sets CBLAS_CFLAGS, CBLAS_LIBS and k3_cblas_summary when they work.
AC_DEFUN([K3_TRY_CBLAS], [
k3_try_cflags="$1"
k3_try_libs="$2"
K3_SYSTEM_INCLUDES([k3_try_cflags])
k3_saved_cppflags=$CPPFLAGS
k3_saved_libs=$LIBS
CPPFLAGS="$CPPFLAGS $k3_try_cflags"
LIBS="$k3_try_libs $LIBS"
AC_MSG_CHECKING([for cblas_sgemm with $k3_try_libs])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cblas.h>]],
	[[float x = 1.0f;
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, x, &x, 1, &x, 1, x, &x, 1);]])],
	[AC_MSG_RESULT([yes])
	 CBLAS_CFLAGS=$k3_try_cflags
	 CBLAS_LIBS=$k3_try_libs
	 k3_cblas_summary=$k3_try_libs],
	[AC_MSG_RESULT([no])])
CPPFLAGS=$k3_saved_cppflags
LIBS=$k3_saved_libs
])
