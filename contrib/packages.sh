# shellcheck shell=sh disable=SC2034
# The Debian packages that starpu-k3 needs, in one place; sourced by the scripts here and .ci/run.
# packages_need NAME... installs what is missing when root, and otherwise names it and goes on: libraries may
# come from elsewhere, and configure has the last word.

packages_build="gcc libc6-dev make autoconf automake libtool pkg-config libhwloc-dev libopenblas-dev
	libjansson-dev libpng-dev libjpeg62-turbo-dev"
packages_starpu="libstarpu-dev"
packages_test="libcriterion-dev"
packages_plot="gnuplot-nox"
packages_picture="vite librsvg2-bin"
packages_golden="python3-numpy"
packages_starpu_source="dpkg-dev g++ libfxt-dev xz-utils"

packages_missing()
{
	for package in "$@"; do
		dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
			printf ' %s' "$package"
	done
}

# Another apt at work is waited for, five minutes at most; any other failure ends it at once.
packages_apt()
{
	packages_log=$(mktemp)
	packages_tries=0
	while ! DEBIAN_FRONTEND=noninteractive apt-get "$@" >"$packages_log" 2>&1; do
		packages_tries=$((packages_tries + 1))
		if [ "$packages_tries" -gt 30 ] ||
			! grep -qE 'Could not get lock|Unable to (lock|acquire)' "$packages_log"; then
			tail -n 20 "$packages_log" >&2
			rm -f "$packages_log"
			return 1
		fi
		sleep 10
	done
	rm -f "$packages_log"
}

packages_need()
{
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "No apt-get here. Needed, by their Debian names:" "$@" >&2
		return 0
	fi
	packages_absent=$(packages_missing "$@")
	[ -n "$packages_absent" ] || return 0
	if [ "$(id -u)" -ne 0 ]; then
		echo "Missing Debian packages; as root: apt-get install$packages_absent" >&2
		return 0
	fi
	echo "Installing$packages_absent" >&2
	packages_apt update || echo "apt-get update failed; going on with the lists at hand" >&2
	# shellcheck disable=SC2086 # a list of words
	packages_apt install -y --no-install-recommends $packages_absent
}
