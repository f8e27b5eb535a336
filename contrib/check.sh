#!/bin/sh
# Installs what the tests need, builds out of tree, runs all tests.
#   usage: sh contrib/check.sh [--starpu PREFIX] [--build DIR] [--sanitize]
# --starpu PREFIX  another StarPU than the one that pkg-config finds
# --build DIR      build folder (build-check, or build-sanitize with --sanitize)
# --sanitize       AddressSanitizer and UndefinedBehaviorSanitizer; a report in a log counts as a failure
# The last line is `N passed, N failed, N skipped`; status 0 only when something ran and nothing failed.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"

starpu=
build=
sanitize=no
limit_s=1500
while [ $# -gt 0 ]; do
	case $1 in
	--starpu) starpu=$(cd "${2:?--starpu needs a PREFIX}" && pwd) || exit 2; shift ;;
	--build) build=${2:?--build needs a DIR}; shift ;;
	--sanitize) sanitize=yes ;;
	--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) echo "check.sh: unknown option $1; known: --starpu PREFIX, --build DIR, --sanitize" >&2; exit 2 ;;
	esac
	shift
done
if [ -z "$build" ]; then
	[ "$sanitize" = yes ] && build=$top/build-sanitize || build=$top/build-check
fi

# The results of the run so far, and the end.
finish()
{
	results=$(cat "$build"/tests/*.trs 2>/dev/null | sed -n 's/^:test-result: *\([A-Z]*\).*/\1/p')
	passed=$(printf '%s\n' "$results" | grep -c '^PASS$')
	skipped=$(printf '%s\n' "$results" | grep -c '^SKIP$')
	failed=$(printf '%s\n' "$results" | grep -cE '^(FAIL|ERROR|XPASS|XFAIL)$')
	status=$1
	if [ "$sanitize" = yes ]; then
		for log in $(reports); do
			echo "check.sh: sanitizer report in $log" >&2
			status=1
			# already counted where the case failed too
			grep -qE '^:test-result: *(FAIL|ERROR)' "${log%.*}.trs" || failed=$((failed + 1))
		done
	fi
	if [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then
		echo "check.sh: no test ran" >&2
		status=1
	fi
	[ "$failed" -eq 0 ] || status=1
	echo "$passed passed, $failed failed, $skipped skipped"
	exit "$status"
}

# Logs of test programs that hold a sanitizer report.
reports()
{
	grep -lE 'runtime error:|(Address|Leak|UndefinedBehavior)Sanitizer' "$build"/tests/*.log 2>/dev/null
}

# A stage with its wall time; what it prints goes to a log, whose end is shown when it fails.
stage()
{
	name=$1
	shift
	begin=$(date +%s)
	if ! "$@" >"$build/$name.out" 2>&1; then
		tail -n 40 "$build/$name.out" >&2
		echo "check.sh: $name failed after $(($(date +%s) - begin)) s; all of it: $build/$name.out" >&2
		finish 1
	fi
	echo "check.sh: $name: $(($(date +%s) - begin)) s" >&2
}

# A file that no list names would be left out, and a test with it, without a word.
all_listed()
{
	cd "$top" || return 1
	unlisted=0
	for file in $(find common planner codelets tasks drivers -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh') \
		$(find tests -maxdepth 1 -name '*.[ch]') $(find tests/bench tests/cuda -name '*.[ch]'); do
		list=${file%%/*}/local.mk
		case $file in
		*.cu | *.cuh | codelets/cuda/*) word=$file list=codelets/cuda/local.mk ;;
		tests/cuda/test_*) word=${file%.c} list=tests/cuda/local.mk ;;
		tests/cuda/*) word=$file list=tests/cuda/local.mk ;;
		tests/test_*) word=${file%.c} ;;
		tests/bench/*) word=$file list=tests/bench/local.mk ;;
		*) word=$file ;;
		esac
		if ! grep -qE "(^|[[:space:]])$word([[:space:]]|\$)" "$list"; then
			echo "$file is in no list of $list"
			unlisted=1
		fi
	done
	return "$unlisted"
}

configure_build()
{
	cd "$build" || return 1
	set -- --with-criterion
	[ -z "$starpu" ] || set -- "$@" "--with-starpu=$starpu"
	if [ "$sanitize" = yes ]; then
		flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
		set -- "$@" "CFLAGS=-O2 -g $flags"
	fi
	if [ -f Makefile ] && [ "$*" = "$(cat configured-with 2>/dev/null)" ]; then
		echo "configured before, with $*"
		return 0
	fi
	ASAN_OPTIONS=detect_leaks=0 "$top/configure" "$@" && printf '%s\n' "$*" >configured-with
}

mkdir -p "$build" || exit 2
build=$(cd "$build" && pwd)
rm -f "$build"/tests/*.trs "$build"/tests/*.log
wanted="$packages_build $packages_test"
[ -n "$starpu" ] || wanted="$wanted $packages_starpu"
# shellcheck disable=SC2086 # a list of words
stage packages packages_need $wanted
stage lists all_listed
if [ ! -x "$top/configure" ] || [ ! -f "$top/build-aux/ltmain.sh" ]; then
	stage autogen sh "$top/autogen.sh"
fi
stage configure configure_build
sed -n '/^  starpu-k3 /,/^ *CUDA/p' "$build/configure.out" >&2
stage make make -C "$build" -j2

begin=$(date +%s)
timeout "$limit_s" make -C "$build" --no-print-directory -j2 check
status=$?
[ "$status" -ne 124 ] || echo "check.sh: the tests ran past $limit_s s" >&2
echo "check.sh: check: $(($(date +%s) - begin)) s" >&2
finish "$status"
