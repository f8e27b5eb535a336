# K3_CHECK_STARPU
# ---------------
# Finds StarPU with pkg-config: starpu-1.4 first, then starpu-1.3 (>= 1.3.10).  The order matters, because a
# 1.4 also installs a starpu-1.3.pc; the older starpu-1.0 .. 1.2 files switch deprecated names on.
#
# Options:   --with-starpu=PREFIX   look in PREFIX/lib/pkgconfig before anywhere else
# Variables: STARPU_CFLAGS, STARPU_LIBS   override pkg-config
# Results:   STARPU_CFLAGS, STARPU_LIBS, K3_STARPU_MODULE (name for starpu-k3.pc), K3_STARPU_RPATH
#            (libtool flag, empty for a StarPU that the linker finds by itself), k3_starpu_summary
AC_DEFUN([K3_CHECK_STARPU], [
AC_ARG_WITH([starpu],
	[AS_HELP_STRING([--with-starpu=PREFIX], [StarPU installed in PREFIX; default: pkg-config's])],
	[], [with_starpu=yes])
k3_starpu_tried="pkg-config modules starpu-1.4, starpu-1.3 >= 1.3.10"
AS_CASE([$with_starpu],
	[no], [AC_MSG_ERROR([StarPU is required: --without-starpu is not possible])],
	[yes], [],
	[AS_IF([test ! -d "$with_starpu"],
		[AC_MSG_ERROR([--with-starpu: there is no folder $with_starpu])])
	 k3_starpu_pc=
	 for k3_dir in "$with_starpu"/lib/pkgconfig "$with_starpu"/lib64/pkgconfig "$with_starpu"/lib/*/pkgconfig; do
		AS_IF([test -d "$k3_dir"], [k3_starpu_pc="$k3_starpu_pc$k3_dir:"])
	 done
	 AS_IF([test -z "$k3_starpu_pc"],
		[AC_MSG_ERROR([--with-starpu: no StarPU in $with_starpu: there is no folder $with_starpu/lib/pkgconfig])])
	 PKG_CONFIG_PATH="$k3_starpu_pc$PKG_CONFIG_PATH"
	 export PKG_CONFIG_PATH
	 k3_starpu_tried="$k3_starpu_tried in $k3_starpu_pc"])

K3_STARPU_MODULE=starpu-1.4
PKG_CHECK_MODULES([STARPU], [starpu-1.4 >= 1.4], [],
	[K3_STARPU_MODULE=starpu-1.3
	 PKG_CHECK_MODULES([STARPU], [starpu-1.3 >= 1.3.10], [],
		[AC_MSG_ERROR([StarPU was not found ($k3_starpu_tried).
Debian: apt-get install libstarpu-dev.  A newer one without root: contrib/build-starpu.sh PREFIX,
then configure --with-starpu=PREFIX.])])])
k3_starpu_version=`$PKG_CONFIG --modversion $K3_STARPU_MODULE 2>/dev/null`
k3_starpu_libdir=`$PKG_CONFIG --variable=libdir $K3_STARPU_MODULE 2>/dev/null`
AS_CASE([$with_starpu], [yes], [],
	[AS_CASE([$k3_starpu_libdir], ["$with_starpu"*], [],
		[AC_MSG_ERROR([--with-starpu: no StarPU in $with_starpu ($k3_starpu_tried); the one in $k3_starpu_libdir is not asked for])])])
K3_SYSTEM_INCLUDES([STARPU_CFLAGS])

k3_saved_cppflags=$CPPFLAGS
k3_saved_libs=$LIBS
CPPFLAGS="$CPPFLAGS $STARPU_CFLAGS"
LIBS="$STARPU_LIBS $LIBS"
AC_MSG_CHECKING([whether a StarPU program compiles and links])
AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <starpu.h>]], [[return starpu_init(NULL);]])],
	[AC_MSG_RESULT([yes])],
	[AC_MSG_RESULT([no])
	 AC_MSG_ERROR([StarPU $k3_starpu_version ($k3_starpu_libdir) does not compile or link; config.log says why])])
CPPFLAGS=$k3_saved_cppflags
LIBS=$k3_saved_libs

dnl libtool writes the rpath by itself only where a .la file is installed.
K3_STARPU_RPATH=
AS_CASE([$k3_starpu_libdir],
	[/usr/lib|/usr/lib64|/lib|/usr/lib/*-linux-gnu*|""], [],
	[K3_STARPU_RPATH="-R $k3_starpu_libdir"])
k3_starpu_summary="$k3_starpu_version in $k3_starpu_libdir"
AC_SUBST([K3_STARPU_MODULE])
AC_SUBST([K3_STARPU_RPATH])
])
