#!/bin/sh
# Makes configure and Makefile.in after a checkout.  Needs autoconf, automake, libtool and pkg-config.
set -eu
cd "$(dirname "$0")"
for tool in autoreconf automake libtoolize pkg-config; do
	if ! command -v "$tool" >/dev/null 2>&1; then
		echo "autogen.sh: $tool is missing; Debian: apt-get install autoconf automake libtool pkg-config" >&2
		exit 1
	fi
done
exec autoreconf --install
