#!/bin/sh
# From nothing to a small Kimi K3 that has learnt from text on this machine: about five minutes on 2 cores.
#   usage: sh contrib/demo.sh [TEXT...] | --images [LIST.jsonl]
# TEXT are files or folders; the default is the licences under /usr/share/common-licenses.
# Everything is made in build-demo; delete that folder to start again.  It ends with the picture of a step.
# With --images it learns captions of pictures instead: demo-images.sh.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"
. "$top/contrib/programs.sh"
build=$top/build-demo
out=$build/demo
steps=100

if [ "${1:-}" = --images ]; then
	shift
	exec sh "$top/contrib/demo-images.sh" "$@"
fi
[ $# -gt 0 ] || set -- /usr/share/common-licenses
for text in "$@"; do
	[ -r "$text" ] || { echo "demo.sh: cannot read $text" >&2; exit 2; }
done

say()
{
	printf '\n== %s\n' "$*" >&2
}

say "Packages and build in $build"
programs_build "$top" "$build"
# shellcheck disable=SC2086,SC2154 # a list of words, from packages.sh
packages_need $packages_picture
programs_environment "$top" "$build"
rm -rf "$out"
mkdir -p "$out"

say "Data set: every byte a token, the last tenth of each file held out"
"$build/k3_data" tokens --bytes "$@" -o "$out/demo.k3t"

say "Training: preset debug17, $steps steps of 2 x 1,024 tokens"
"$build/k3_train" --model debug17 --data "$out/demo.k3t" --eval-data "$out/demo.val.k3t" \
	--eval-every 25 --tokens 1024 --accumulate 2 --steps "$steps" --warmup 10 --lr 2e-3 --save "$out/checkpoints" |
	tee "$out/steps.tsv"
[ -f "$(printf '%s/checkpoints/step-%06d/COMPLETE' "$out" "$steps")" ] ||
	{ echo "demo.sh: training failed, see above" >&2; exit 1; }
checkpoint=$(printf '%s/checkpoints/step-%06d' "$out" "$steps")

say "Held-out loss of the model (nats a byte)"
"$build/k3_eval" --load "$checkpoint" --data "$out/demo.val.k3t" | tee "$out/held-out.tsv"
say "Held-out loss of a bigram model of the same text"
"$build/k3_data" info --ngram 2 "$out/demo.k3t" "$out/demo.val.k3t"
say "200 bytes that the model goes on with"
"$build/k3_eval" --load "$checkpoint" --prompt "This program is free software" --bytes 200 |
	tee "$out/generated.txt"
printf '\n'

say "A picture: three steps with --trace"
"$build/k3_train" --model debug17 --data "$out/demo.k3t" --init-from "$checkpoint" --tokens 1024 --accumulate 2 \
	--steps 3 --lr 1e-4 --trace "$out/trace" >"$out/trace-steps.tsv"

say "Done"
cat >&2 <<END
programs        $build/k3_train, k3_eval, k3_data, k3_plan, k3_verify
data set        $out/demo.k3t, $out/demo.val.k3t
losses          $out/steps.tsv (a line per step), $out/held-out.tsv
checkpoint      $checkpoint
generated text  $out/generated.txt
trace           $out/trace/trace.png (a step), trace-layer.png, summary.txt; k3.paje opens in ViTE
Train further   $build/k3_train --init-from $checkpoint --model debug17 --data $out/demo.k3t --save DIR ...
END
