# K3_CHECK_MPI
# ------------
# MPI and the MPI part of the StarPU that was found.  They are only detected: no code of this version uses them.
# Call it after K3_CHECK_STARPU.
#
# Options:   --with-mpi[=PREFIX], --without-mpi   default: check; PREFIX/lib/pkgconfig is searched first
# Variables: MPI_CFLAGS, MPI_LIBS, STARPUMPI_CFLAGS, STARPUMPI_LIBS   override pkg-config
# Results:   the same four, conditional HAVE_MPI, k3_mpi_summary
AC_DEFUN([K3_CHECK_MPI], [
AC_ARG_WITH([mpi],
	[AS_HELP_STRING([--with-mpi@<:@=PREFIX@:>@], [MPI; default: check])],
	[], [with_mpi=check])
have_mpi=no
k3_mpi_summary=no
k3_mpi_tried="pkg-config modules mpi-c, ompi-c, mpich"
AS_CASE([$with_mpi],
	[yes|no|check], [],
	[AS_IF([test ! -d "$with_mpi/lib/pkgconfig"],
		[AC_MSG_ERROR([--with-mpi: there is no folder $with_mpi/lib/pkgconfig])])
	 PKG_CONFIG_PATH="$with_mpi/lib/pkgconfig:$PKG_CONFIG_PATH"
	 export PKG_CONFIG_PATH
	 k3_mpi_tried="$k3_mpi_tried in $with_mpi/lib/pkgconfig"])
AS_IF([test "x$with_mpi" != xno],
	[k3_starpumpi=`AS_ECHO(["$K3_STARPU_MODULE"]) | $SED 's/starpu/starpumpi/'`
	 k3_mpi_missing=
	 PKG_CHECK_MODULES([MPI], [mpi-c], [],
		[PKG_CHECK_MODULES([MPI], [ompi-c], [],
			[PKG_CHECK_MODULES([MPI], [mpich], [], [k3_mpi_missing="MPI ($k3_mpi_tried)"])])])
	 PKG_CHECK_MODULES([STARPUMPI], [$k3_starpumpi], [],
		[k3_mpi_missing="${k3_mpi_missing:+$k3_mpi_missing and }StarPU-MPI (pkg-config module $k3_starpumpi)"])
	 AS_IF([test -z "$k3_mpi_missing"],
		[have_mpi=yes
		 k3_mpi_summary="found with $k3_starpumpi; this version does not use it"
		 K3_SYSTEM_INCLUDES([MPI_CFLAGS])
		 K3_SYSTEM_INCLUDES([STARPUMPI_CFLAGS])],
		[AS_IF([test "x$with_mpi" != xcheck],
			[AC_MSG_ERROR([--with-mpi: not found: $k3_mpi_missing])])])])
AM_CONDITIONAL([HAVE_MPI], [test "$have_mpi" = yes])
])
