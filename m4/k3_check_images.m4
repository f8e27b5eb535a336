# K3_CHECK_IMAGES
# ---------------
# libpng and libjpeg(-turbo) read images; required.
#
# Variables: LIBPNG_CFLAGS, LIBPNG_LIBS, LIBJPEG_CFLAGS, LIBJPEG_LIBS   override pkg-config
# Results:   IMAGES_CFLAGS, IMAGES_LIBS, k3_images_summary
AC_DEFUN([K3_CHECK_IMAGES], [
PKG_CHECK_MODULES([LIBPNG], [libpng >= 1.6], [],
	[AC_MSG_ERROR([libpng >= 1.6 was not found (pkg-config module libpng).  Debian: apt-get install libpng-dev])])
PKG_CHECK_MODULES([LIBJPEG], [libjpeg >= 1.5], [],
	[AC_MSG_ERROR([libjpeg-turbo >= 1.5 was not found (pkg-config module libjpeg).  Debian: apt-get install libjpeg62-turbo-dev])])
IMAGES_CFLAGS="$LIBPNG_CFLAGS $LIBJPEG_CFLAGS"
IMAGES_LIBS="$LIBPNG_LIBS $LIBJPEG_LIBS"
AC_SUBST([IMAGES_CFLAGS])
AC_SUBST([IMAGES_LIBS])
k3_images_summary="libpng `$PKG_CONFIG --modversion libpng 2>/dev/null`, libjpeg `$PKG_CONFIG --modversion libjpeg 2>/dev/null`"
K3_SYSTEM_INCLUDES([IMAGES_CFLAGS])
])
