# K3_CHECK_COMPILER
# -----------------
# Flags of our own code.  -std=gnu11 because plain C11 does not compile StarPU's headers.  The compiler may
# contract a*b+c and forget errno and traps, but never reorder sums: results must not depend on vector width.
#
# Options: --disable-native   portable binaries; the default is to use every instruction of this machine
# Results: K3_CFLAGS (language, warnings, floating point), K3_ARCH_CFLAGS (-march=native or nothing),
#          k3_arch_summary
AC_DEFUN([K3_CHECK_COMPILER], [
AC_ARG_ENABLE([native],
	[AS_HELP_STRING([--disable-native],
		[portable binaries; default: for the processor that configures])],
	[], [enable_native=yes])

K3_CFLAGS="-std=gnu11 -Wall -Wextra -Wconversion -Wno-sign-conversion"
K3_TRY_CFLAG([-fno-math-errno], [K3_CFLAGS="$K3_CFLAGS -fno-math-errno"])
K3_TRY_CFLAG([-fno-trapping-math], [K3_CFLAGS="$K3_CFLAGS -fno-trapping-math"])

K3_ARCH_CFLAGS=
k3_arch_summary="any processor of this family"
AS_IF([test "x$enable_native" != xno && test "x$cross_compiling" != xyes],
	[K3_TRY_CFLAG([-march=native],
		[K3_ARCH_CFLAGS=-march=native
		 k3_arch_summary="this processor (-march=native; --disable-native for portable ones)"])])
AC_SUBST([K3_CFLAGS])
AC_SUBST([K3_ARCH_CFLAGS])
])

# K3_TRY_CFLAG(FLAG, ACTION-IF-ACCEPTED)
# --------------------------------------
# -Werror, since clang only warns about an option that it does not know.
AC_DEFUN([K3_TRY_CFLAG], [
k3_saved_cflags=$CFLAGS
CFLAGS="$CFLAGS -Werror $1"
AC_MSG_CHECKING([whether $CC accepts $1])
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[]], [[volatile double x = 2.0; return x * x + 1.0 < 0.0;]])],
	[k3_accepted=yes], [k3_accepted=no])
CFLAGS=$k3_saved_cflags
AC_MSG_RESULT([$k3_accepted])
AS_IF([test "$k3_accepted" = yes], [$2])
])

# K3_SYSTEM_INCLUDES(VARIABLE)
# ----------------------------
# Turns the -I of other people's headers into -isystem, so that our warnings do not fire inside them.
AC_DEFUN([K3_SYSTEM_INCLUDES], [
$1=`AS_ECHO([" $$1"]) | $SED 's/ -I */ -isystem /g'`
])
