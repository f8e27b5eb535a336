# K3_CHECK_JANSSON
# ----------------
# jansson reads and writes config.json and safetensors headers; required.
#
# Variables: JANSSON_CFLAGS, JANSSON_LIBS   override pkg-config
# Results:   JANSSON_CFLAGS, JANSSON_LIBS, k3_jansson_summary
AC_DEFUN([K3_CHECK_JANSSON], [
PKG_CHECK_MODULES([JANSSON], [jansson >= 2.10], [],
	[AC_MSG_ERROR([jansson >= 2.10 was not found (pkg-config module jansson).  Debian: apt-get install libjansson-dev])])
k3_jansson_summary=`$PKG_CONFIG --modversion jansson 2>/dev/null`
K3_SYSTEM_INCLUDES([JANSSON_CFLAGS])
])
