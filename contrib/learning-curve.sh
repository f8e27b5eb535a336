#!/bin/sh
# The learning curve: trains debug17 on text, plots held-out loss against the step, with the losses of n-gram models
# of the same text as lines.
#   usage: sh contrib/learning-curve.sh [--steps N] [--every N] [--build DIR] [--out NAME] [TEXT...]
# --steps N    length of the schedule (1000); steps are of 2 x 1,024 tokens
# --every N    an evaluation every N steps (25)
# --build DIR  where k3_train lies (build-demo; built if it is not there)
# --out NAME   NAME.tsv and NAME.svg are written (doc/learning-curve)
# TEXT are files or folders; the default is the licences under /usr/share/common-licenses.
# A run that was interrupted goes on where its last checkpoint stands; delete DIR/curve to start again.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"
. "$top/contrib/programs.sh"
steps=1000
every=25
build=$top/build-demo
out=$top/doc/learning-curve

refuse()
{
	echo "learning-curve.sh: $*" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--steps) steps=${2:?--steps needs N}; shift ;;
	--every) every=${2:?--every needs N}; shift ;;
	--build) build=${2:?--build needs a DIR}; shift ;;
	--out) out=${2:?--out needs a NAME}; shift ;;
	--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
	-*) refuse "unknown option $1; --help lists what there is" ;;
	*) break ;;
	esac
	shift
done
case $steps$every in *[!0-9]*) refuse "--steps $steps, --every $every: whole numbers are needed" ;; esac
[ $# -gt 0 ] || set -- /usr/share/common-licenses
for text in "$@"; do
	[ -r "$text" ] || refuse "cannot read $text"
done
# shellcheck disable=SC2086,SC2154 # a list of words, from packages.sh
command -v gnuplot >/dev/null || packages_need $packages_plot
command -v gnuplot >/dev/null || refuse "gnuplot is needed for the plot (Debian: gnuplot-nox)"
programs_build "$top" "$build"
programs_environment "$top" "$build"

work=$build/curve
mkdir -p "$work"
# The same text gives the same bytes; with another one a run is not resumed.
"$build/k3_data" tokens --bytes "$@" -o "$work/text.k3t"
"$build/k3_data" info --ngram 3 "$work/text.k3t" "$work/text.val.k3t" >"$work/ngram.tsv"
if [ -n "$(find "$work/checkpoints" -name COMPLETE 2>/dev/null)" ]; then
	"$build/k3_train" --resume "$work/checkpoints" --steps "$steps" --eval-every "$every" >>"$work/steps.tsv"
else
	warmup=10
	[ "$steps" -ge "$warmup" ] || warmup=$steps
	"$build/k3_train" --model debug17 --data "$work/text.k3t" --eval-data "$work/text.val.k3t" --eval-every "$every" \
		--eval-log "$work/eval.tsv" --tokens 1024 --accumulate 2 --steps "$steps" --warmup "$warmup" --lr 2e-3 \
		--save "$work/checkpoints" --save-every 100 >"$work/steps.tsv"
fi

# A resumed run evaluates steps after its checkpoint again, to the same bits.
awk -F '\t' 'NR == 1 || !seen[$1]++' "$work/eval.tsv" >"$out.tsv"
loss()
{
	awk -F '\t' -v order="$1" '$1 == order { print $4 }' "$work/ngram.tsv"
}
bigram=$(loss 2)
trigram=$(loss 3)
tail -n +2 "$out.tsv" | awk -F '\t' -v bound="$trigram" -v bigram="$bigram" '
	$2 < bound && !at { at = $1 }
	{ last = $1; loss = $2 }
	END {
		print "step\tloss_nats\tbigram_nats\ttrigram_nats\tfirst_step_below_trigram"
		printf "%s\t%s\t%s\t%s\t%s\n", last, loss, bigram, bound, at ? at : "none"
	}'

gnuplot <<END
set terminal svg size 720,440 font "sans,13" background "white"
set output "$out.svg"
set datafile separator "\t"
set xlabel "step (2 x 1,024 tokens)"
set ylabel "held-out loss, nats a byte"
set grid lc rgb "#dddddd"
set key bottom left
set xrange [0:*]
set yrange [0:*]
plot "$out.tsv" skip 1 using 1:2 with linespoints pt 7 ps 0.4 lw 2 lc rgb "#1f5fa8" title "debug17", \
	$bigram with lines dt 2 lw 1.5 lc rgb "#888888" title sprintf("one byte of context, %.2f", $bigram), \
	$trigram with lines dt 4 lw 1.5 lc rgb "#b04020" title sprintf("two bytes of context, %.2f", $trigram)
END
echo "learning-curve.sh: $out.tsv, $out.svg" >&2
