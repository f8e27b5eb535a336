# K3_CHECK_HWLOC
# --------------
# hwloc 2 counts cores and memory; required.
#
# Variables: HWLOC_CFLAGS, HWLOC_LIBS   override pkg-config
# Results:   HWLOC_CFLAGS, HWLOC_LIBS, k3_hwloc_summary
AC_DEFUN([K3_CHECK_HWLOC], [
PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.0], [],
	[AC_MSG_ERROR([hwloc >= 2.0 was not found (pkg-config module hwloc).  Debian: apt-get install libhwloc-dev])])
k3_hwloc_summary=`$PKG_CONFIG --modversion hwloc 2>/dev/null`
K3_SYSTEM_INCLUDES([HWLOC_CFLAGS])
])
