#!/bin/sh
# Does the model remember? Trains preset recall (KDA layers alone) on documents of 16 key-value pairs, 891 bytes of
# filler and questions, which cross 16 tiles of 64 tokens, and evaluates it on documents of another seed: as it is, with
# the hand-over of states between tiles cut, and after training with that cut.
#   usage: sh contrib/recall.sh [--build DIR] [--seed S]
# --build DIR  where k3_train lies (build-demo; built if it is not there)
# --seed S     of weights and documents (1)
# Prints a table; status 0 when the loss is below 0.1 nats, the accuracy 95 % or more, and the cut leaves chance.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"
. "$top/contrib/programs.sh"
build=$top/build-demo
seed=1

refuse()
{
	echo "recall.sh: $*" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--build) build=${2:?--build needs a DIR}; shift ;;
	--seed) seed=${2:?--seed needs S}; shift ;;
	--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) refuse "unknown word $1; --help lists what there is" ;;
	esac
	shift
done
case $seed in *[!0-9]* | "") refuse "--seed $seed: a whole number is needed" ;; esac
programs_build "$top" "$build"
programs_environment "$top" "$build"
work=$build/recall
rm -rf "$work"
mkdir -p "$work"
begin=$(date +%s)

column()
{
	awk -F '\t' -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } END { print $at }' "$2"
}

# data NAME SEED DOCUMENTS PAIRS FILLER MULTIPLE
data()
{
	"$build/k3_data" recall --documents "$3" --seed "$2" --pairs "$4" --filler "$5" --multiple "$6" \
		-o "$work/$1.k3t" >"$work/$1.tsv"
}

# train NAME DATA DOCUMENTS_A_STEP STEPS LR START [OPTION]: from the weights in folder START, "" for fresh ones
train()
{
	name=$1
	tokens=$(($(column document_tokens "$work/$2.tsv") * $3))
	set -- "$work/$2.k3t" "$4" "$5" "${6:+--init-from=$6}" "${7:-}"
	"$build/k3_train" --model recall --data "$1" --tokens "$tokens" --tile-tokens 64 --steps "$2" --warmup 10 \
		--decay 0.5 --lr "$3" --seed "$seed" ${4:+"$4"} ${5:+"$5"} --save "$work/$name" \
		>"$work/$name.steps.tsv" 2>"$work/$name.log" || { tail -n 5 "$work/$name.log" >&2; exit 1; }
	folder=$(printf '%s/step-%06d' "$work/$name" "$2")
	printf 'recall.sh: %-24s loss %s after %s steps, %s s\n' "$name" "$(column loss_nats "$work/$name.steps.tsv")" \
		"$2" "$(($(date +%s) - begin))" >&2
}

# evaluate NAME FOLDER [OPTION]: a line of the table
evaluate()
{
	"$build/k3_eval" --load "$2" --data "$work/held-out.k3t" --tile-tokens 64 ${3:+"$3"} \
		>"$work/$1.eval.tsv" 2>"$work/$1.log" || { tail -n 5 "$work/$1.log" >&2; exit 1; }
	printf '%s\t%s\t%s\t%s\n' "$1" "$(column tokens "$work/$1.eval.tsv")" \
		"$(column loss_nats "$work/$1.eval.tsv")" "$(column accuracy "$work/$1.eval.tsv")"
}

# Mean loss of the last 20 steps of a run is below a goal.
learnt()
{
	tail -n 20 "$work/$1.steps.tsv" | awk -F '\t' -v goal="$2" '{ sum += $2 } END { exit !(sum < goal * NR) }'
}

# A fresh model forgets within a few tokens (its decay is exp(-2.5) a token), and what is forgotten has no gradient.  So
# pairs and distance grow from stage to stage, and a stage is repeated, six times at most, until its loss is below a
# goal.  Each line: pairs, filler, multiple; documents a step, steps, learning rate; goal.
folder=
runs=0
while read -r pairs filler multiple documents steps lr goal; do
	before=$folder
	again=6
	while [ "$again" -gt 0 ]; do
		again=$((again - 1))
		runs=$((runs + 1))
		name=$(printf '%02d-pairs-%d-filler-%d' "$runs" "$pairs" "$filler")
		data "$name" $((1000 * seed + runs)) $((documents * steps)) "$pairs" "$filler" "$multiple"
		train "$name" "$name" "$documents" "$steps" "$lr" "$folder"
		if learnt "$name" "$goal"; then again=0; fi
	done
done <<END
1 0 1 40 60 1e-2 0.1
2 0 1 30 80 1e-2 0.2
4 0 1 14 80 1e-2 0.2
8 0 1 10 80 1e-2 0.2
16 0 1 6 100 1e-2 0.2
16 100 1 4 60 5e-3 0.1
16 300 1 3 60 3e-3 0.08
16 512 1024 3 120 2e-3 0.05
END
trained=$folder
train trained-with-the-cut "$name" 3 60 2e-3 "$before" --cut-state
with_cut=$folder

data held-out $((1000 * seed + 999)) 200 16 512 1024
printf 'what\tlabels\tloss_nats\taccuracy\n' >"$work/result.tsv"
{
	evaluate remembers "$trained"
	evaluate cut "$trained" --cut-state
	evaluate trained-with-the-cut "$with_cut" --cut-state
} >>"$work/result.tsv"
cat "$work/result.tsv"

# Chance, and five standard deviations of it.
awk -F '\t' -v chance="$(column chance_accuracy "$work/held-out.tsv")" -v seconds=$(($(date +%s) - begin)) '
	NR == 1 { next }
	{ most = chance + 5 * sqrt(chance * (1 - chance) / $2) }
	$1 == "remembers" && !($3 < 0.1 && $4 >= 0.95) { bad = bad " " $1 }
	$1 != "remembers" && !($4 <= most) { bad = bad " " $1 }
	END {
		printf "recall.sh: chance %.4g, with the cut at most %.4g; %d s\n", chance, most, seconds
		print bad ? "recall.sh: failed:" bad : "recall.sh: passed"
		exit bad || NR != 4
	}' "$work/result.tsv" >&2
