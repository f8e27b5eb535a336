# K3_CHECK_NCCL
# -------------
# NCCL moves data between ranks that have a GPU; after K3_CHECK_CUDA, without which there is none.  No device and no
# driver are needed.
#
# Options:   --with-nccl[=DIR], --without-nccl   default: check, in the CUDA toolkit and the system's folders;
#            DIR holds include/nccl.h and lib/libnccl.so
# Results:   NCCL_CFLAGS, NCCL_LIBS, K3_HAVE_NCCL in NCCL_CFLAGS, conditional HAVE_NCCL, k3_nccl_summary
AC_DEFUN([K3_CHECK_NCCL], [
AC_ARG_WITH([nccl],
	[AS_HELP_STRING([--with-nccl@<:@=DIR@:>@], [NCCL in DIR; default: check, with CUDA])],
	[], [with_nccl=check])
have_nccl=no
k3_nccl_summary=no
NCCL_CFLAGS=
NCCL_LIBS=
AS_IF([test "x$with_nccl" = xno], [],
	[test "$have_cuda" = no],
	[AS_CASE([$with_nccl],
		[check], [],
		[AC_MSG_ERROR([--with-nccl: needs --with-cuda, which is off])])],
	[k3_nccl_where="the CUDA toolkit and the system's folders"
	 AS_CASE([$with_nccl],
		[yes|check], [NCCL_LIBS=-lnccl],
		[AS_IF([test -e "$with_nccl/include/nccl.h"], [],
			[AC_MSG_ERROR([--with-nccl: there is no $with_nccl/include/nccl.h])])
		 k3_nccl_where=$with_nccl
		 NCCL_CFLAGS="-isystem $with_nccl/include"
		 NCCL_LIBS="-L$with_nccl/lib -lnccl"])
	 AC_MSG_CHECKING([for NCCL 2.18 or later in $k3_nccl_where])
	 saved_CPPFLAGS=$CPPFLAGS
	 saved_LIBS=$LIBS
	 CPPFLAGS="$CPPFLAGS $NCCL_CFLAGS $CUDA_CFLAGS"
	 LIBS="$NCCL_LIBS $CUDA_LIBS $LIBS"
	 AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <nccl.h>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 1)
#error too old
#endif]], [[return ncclCommSplit(0, 0, 0, 0, 0);]])],
		[have_nccl=yes
		 k3_nccl_summary=$k3_nccl_where
		 NCCL_CFLAGS="$NCCL_CFLAGS -DK3_HAVE_NCCL"],
		[NCCL_CFLAGS=
		 NCCL_LIBS=])
	 CPPFLAGS=$saved_CPPFLAGS
	 LIBS=$saved_LIBS
	 AC_MSG_RESULT([$have_nccl])
	 AS_IF([test "$have_nccl$with_nccl" = nocheck || test "$have_nccl" = yes], [],
		[AC_MSG_ERROR([--with-nccl: nccl.h and libnccl of 2.18 or later were not found in $k3_nccl_where])])])
AC_SUBST([NCCL_CFLAGS])
AC_SUBST([NCCL_LIBS])
AM_CONDITIONAL([HAVE_NCCL], [test "$have_nccl" = yes])
])
