#!/bin/sh
# Runs one Criterion program for automake's TAP driver: usage run-crit.sh PROGRAM.
# The TAP goes through a file, because --tap=- drops what the test processes print, sanitizer reports
# included.  Their output is indented, so that no line of it can be taken for TAP.
set -u
program=$1
tap=$program.tap
out=$program.out
case $(basename "$program") in
*run_*) leaks=0 ;; # starts StarPU 1.3, which leaks about 1 kB itself
*) leaks=1 ;;
esac
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=$leaks
export ASAN_OPTIONS

rm -f "$tap"
"$program" --tap="$tap" -j1 >"$out" 2>&1
rc=$?
sed 's/^/  /' "$out"
[ -f "$tap" ] && cat "$tap"
# A failed case is a line already; any other failure, and a program that died before its TAP, is an error.
if [ "$rc" -eq 1 ] && grep -q '^not ok' "$tap" 2>/dev/null; then
	rc=0
fi
rm -f "$tap" "$out"
exit "$rc"
