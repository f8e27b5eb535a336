#!/bin/sh
# man.sh PAGE.1.in: the page on stdout.  A line "@OPTIONS@ PROGRAM [PART]" becomes the options that
# ./PROGRAM PART --help lists, "@VERSION@" what ./PROGRAM --version says, so that a page never lags behind its
# program.  Runs in the folder of the built programs.
set -eu

options()
{
	program=$1
	shift
	"./$program" "$@" --help | awk '
		/^options:/ { on = 1; next }
		on && /^$/ { exit }
		on {
			line = $0
			sub(/^ +/, "", line)
			gsub(/\\/, "\\e", line)
			at = match(line, /  +/)
			option = at ? substr(line, 1, at - 1) : line
			text = at ? substr(line, at + RLENGTH) : ""
			gsub(/-/, "\\-", option)
			value = ""
			if ((at = index(option, " ")) > 0) {
				value = substr(option, at + 1)
				option = substr(option, 1, at - 1)
			}
			sub(/^[.\047]/, "\\\\\\&&", text)
			printf ".TP\n"
			if (value != "")
				printf ".BI %s \" %s\"\n", option, value
			else
				printf ".B %s\n", option
			print text
		}'
}

while IFS= read -r line; do
	case $line in
	@OPTIONS@*)
		# shellcheck disable=SC2086 # a program and its part
		options ${line#@OPTIONS@ }
		;;
	*@VERSION@*)
		version=$(./k3_train --version | head -n 1)
		printf '%s\n' "$line" | sed "s|@VERSION@|$version|"
		;;
	*) printf '%s\n' "$line" ;;
	esac
done <"$1"
