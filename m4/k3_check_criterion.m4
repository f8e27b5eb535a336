# K3_CHECK_CRITERION
# ------------------
# Criterion runs the tests.  Without it everything else builds, and `make check` fails and says why.
#
# Options:   --with-criterion, --without-criterion   default: check
# Variables: CRITERION_CFLAGS, CRITERION_LIBS   override pkg-config
# Results:   CRITERION_CFLAGS, CRITERION_LIBS, conditional HAVE_CRITERION, k3_criterion_summary
AC_DEFUN([K3_CHECK_CRITERION], [
AC_ARG_WITH([criterion],
	[AS_HELP_STRING([--with-criterion], [the tests of make check; default: check])],
	[], [with_criterion=check])
have_criterion=no
k3_criterion_summary="no: make check will fail"
AS_IF([test "x$with_criterion" != xno],
	[PKG_CHECK_MODULES([CRITERION], [criterion >= 2.4],
		[have_criterion=yes
		 k3_criterion_summary=`$PKG_CONFIG --modversion criterion 2>/dev/null`
		 K3_SYSTEM_INCLUDES([CRITERION_CFLAGS])],
		[AS_IF([test "x$with_criterion" != xcheck],
			[AC_MSG_ERROR([--with-criterion: Criterion >= 2.4 was not found (pkg-config module criterion).
Debian: apt-get install libcriterion-dev])])])])
AM_CONDITIONAL([HAVE_CRITERION], [test "$have_criterion" = yes])
])
