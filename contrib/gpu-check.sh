#!/bin/sh
# Checks and measures a build on the GPU of this machine, from programs that may have been built elsewhere.
#   usage: sh contrib/gpu-check.sh [--build DIR] [--data DIR] [--out DIR] [--only PART,...] [--limit SECONDS]
# --build DIR    holds the programs and device tests: a build tree, or a folder with all of them (build, beside contrib)
# --data DIR     holds golden/*.safetensors (tests/data)
# --out DIR      gets logs and tables (DIR of --build, gpu-check)
# --only PARTS   some of: tests verify train ops steps prints sanitizer
# --limit N      seconds for all of it (520); what does not fit is skipped with a line
# tests      every device test program
# verify     golden cases on the GPU, fp32 and bf16 with the routes of the file
# train      debug17 on the text of this project, and from a checkpoint half-way: equal losses and fingerprints
# ops        k3_bench op on the GPU, both types, sizes of debug24 at 8,192 tokens
# steps      k3_bench step on the GPU: debug24, 8,192 tokens, bf16; with less memory; with cores beside the GPU
# prints     fingerprints of a step under eager, lws, prio and dmdas, each twice: equal bits
# sanitizer  compute-sanitizer memcheck and racecheck on a small run
# Libraries are looked for in DIR, DIR/lib, DIR/.libs and LD_LIBRARY_PATH.  A figure below its target is told and is no
# failure.  The last line is `N passed, N failed`; status 0 only when something ran and nothing failed.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build
data=$top/tests/data
out=
only=tests,verify,train,ops,steps,prints,sanitizer
limit_s=520
begin=$(date +%s)

refuse()
{
	echo "gpu-check.sh: $*" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--build) build=${2:?--build needs a DIR}; shift ;;
	--data) data=${2:?--data needs a DIR}; shift ;;
	--out) out=${2:?--out needs a DIR}; shift ;;
	--only) only=${2:?--only needs names of parts}; shift ;;
	--limit) limit_s=${2:?--limit needs seconds}; shift ;;
	--help) sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) refuse "unknown option $1; --help tells more" ;;
	esac
	shift
done

wants()
{
	case ,$only, in *,$1,*) return 0 ;; esac
	return 1
}

set -f # a part may be any text
# shellcheck disable=SC2046 # a list of words
set -- $(echo "$only" | tr , ' ')
set +f
[ $# -gt 0 ] || refuse "--only $only: names no part; --help names all"
for part; do
	case $part in
	tests | verify | train | ops | steps | prints | sanitizer) ;;
	*) refuse "unknown part $part; --help names all" ;;
	esac
done
only=$(echo "$*" | tr ' ' ,)
case $limit_s in
*[!0-9]* | 0* | ??????*) refuse "--limit $limit_s: must be seconds from 1 to 99999" ;;
esac
[ -d "$build" ] || refuse "--build $build: there is no such folder"
build=$(cd "$build" && pwd) || exit 2
if wants tests || wants verify || wants sanitizer; then
	[ -f "$data/golden/text_tiny.safetensors" ] || refuse "--data $data holds no golden/text_tiny.safetensors"
	data=$(cd "$data" && pwd) || exit 2
fi

passed=0
failed=0
skipped=0

finish()
{
	[ "$skipped" -eq 0 ] || echo "$skipped skipped, see above"
	echo "took $(($(date +%s) - begin)) s; logs and tables: $out"
	if [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then
		echo "gpu-check.sh: nothing ran" >&2
		failed=1
	fi
	echo "$passed passed, $failed failed"
	[ "$failed" -eq 0 ] && exit 0
	exit 1
}

say()
{
	printf '\n== %s (%s s)\n' "$*" "$(($(date +%s) - begin))"
}

ok()
{
	passed=$((passed + 1))
	echo "ok      $*"
}

bad()
{
	failed=$((failed + 1))
	echo "FAILED  $*"
}

skip()
{
	skipped=$((skipped + 1))
	echo "skipped $*"
}

# program NAME: where it lies, a real program before libtool's wrapper.
program()
{
	for place in .libs . tests/cuda/.libs tests/cuda; do
		[ -f "$build/$place/$1" ] || continue
		[ -x "$build/$place/$1" ] || continue
		[ "$(head -c 2 "$build/$place/$1")" != '#!' ] || continue
		echo "$build/$place/$1"
		return 0
	done
	return 1
}

# within SECONDS COMMAND...: no longer than that, nor than what is left of all.
within()
{
	most=$1
	shift
	left=$((limit_s - ($(date +%s) - begin)))
	[ "$left" -ge 5 ] || return 125
	[ "$left" -ge "$most" ] || most=$left
	timeout -k 5 "$most" "$@"
}

# attempt NAME SECONDS COMMAND...: counts; stdout goes to out/NAME.tsv, stderr to out/NAME.log.
attempt()
{
	name=$1
	most=$2
	shift 2
	from=$(date +%s)
	within "$most" "$@" >"$out/$name.tsv" 2>"$out/$name.log"
	rc=$?
	took=$(($(date +%s) - from))
	case $rc in
	0) ok "$name ($took s)" ;;
	125) skip "$name: no time is left of $limit_s s" ;;
	124 | 137) bad "$name: not done after $took s: $out/$name.log" ;;
	*)
		bad "$name: status $rc: $out/$name.log"
		grep -v 'info:' "$out/$name.log" | tail -n 5 | sed 's/^/        /'
		;;
	esac
	return $rc
}

# column FILE ROW NAME: a value of a table with a header; row 1 is the first below it.
column()
{
	awk -F'\t' -v row="$2" -v name="$3" '!/^#/ { n++ }
		n == 1 && !/^#/ { for (i = 1; i <= NF; i++) if ($i == name) at = i }
		n == row + 1 && !/^#/ { print $at; exit }' "$1"
}

# columns FILE NAME...: those columns, aligned.
columns()
{
	file=$1
	shift
	awk -F'\t' -v names="$*" '/^#/ { print; next }
		!width { width = NF; k = split(names, want, " "); for (i = 1; i <= NF; i++) place[$i] = i }
		NF == width {
			line = ""
			for (j = 1; j <= k; j++) {
				value = $place[want[j]]
				if (value ~ /^-?[0-9]*\.[0-9]+(e[-+][0-9]+)?$/) value = sprintf("%.5g", value)
				line = line sprintf(j < 3 ? "%-25s " : "%-12s ", value)
			}
			sub(/ +$/, "", line)
			print line
		}' "$file"
}

# judge WHAT VALUE UNIT least|most BOUND: told, not counted.
judge()
{
	awk -v what="$1" -v got="$2" -v unit="$3" -v way="$4" -v bound="$5" 'BEGIN {
		verdict = got == "" || got == "-" ? "not measured" : (way == "least" ? got + 0 >= bound : got + 0 <= bound) ? "met" : "short"
		printf "target  %-58s %10.4g %-8s %s %g: %s\n", what, got, unit, way == "least" ? ">=" : "<=", bound, verdict }'
}

run_tests()
{
	say "device tests"
	for place in .libs . tests/cuda/.libs tests/cuda; do
		ls "$build/$place" 2>/dev/null
	done | grep '^test_cuda_[a-z_]*$' | sort -u >"$out/tests.list"
	while read -r test; do
		path=$(program "$test") || { bad "$test: is no program"; continue; }
		within 120 "$path" -j4 >"$out/$test.log" 2>&1
		rc=$?
		sum=$(sed -n 's/.*Synthesis: Tested: \([0-9]*\) | Passing: \([0-9]*\) | Failing: \([0-9]*\) | Crashing: \([0-9]*\).*/\1 \2 \3 \4/p' "$out/$test.log")
		if [ $rc -eq 125 ]; then
			skip "$test: no time is left of $limit_s s"
		elif [ -z "$sum" ]; then
			bad "$test: status $rc, no test ran to its end: $out/$test.log"
		else
			# shellcheck disable=SC2086 # four words
			set -- $sum
			if [ $rc -eq 0 ] && [ "$1" -gt 0 ]; then
				passed=$((passed + $2))
				echo "ok      $test: $2 tests"
			else
				passed=$((passed + $2))
				failed=$((failed + $3 + $4))
				[ $(($3 + $4)) -gt 0 ] || failed=$((failed + 1))
				echo "FAILED  $test: $(($3 + $4)) of $1 tests: $out/$test.log"
				grep '^\[FAIL\]\|^\[CRASH\]' "$out/$test.log" | sed 's/^/        /'
			fi
		fi
	done <"$out/tests.list"
	[ -s "$out/tests.list" ] || bad "tests: $build holds no test_cuda_*"
}

run_verify()
{
	say "golden cases on the GPU"
	for dtype in fp32 bf16; do
		for file in "$data"/golden/*.safetensors; do
			case=$(basename "$file" .safetensors)
			if [ "$dtype" = bf16 ]; then set -- --forced-routing; else set --; fi
			attempt "verify-$case-$dtype" 60 "$verify" --device cuda --dtype $dtype "$@" "$file"
			columns "$out/verify-$case-$dtype.tsv" class tensors rms_ratio tolerance verdict | sed 's/^/        /'
		done
	done
}

run_train()
{
	say "training on text, and on from a checkpoint"
	rm -rf "$out/train" && mkdir -p "$out/train"
	attempt train-data 30 "$tool" tokens --bytes "$top/README.md" "$top/doc" -o "$out/train/text.k3t" || return
	set -- --device cuda --dtype bf16 --model debug17 --data "$out/train/text.k3t" --tokens 2048 --tile-tokens all \
		--lr 1e-3 --steps 6 --fingerprint
	attempt train-straight 90 "$train" "$@" || return
	attempt train-half 90 "$train" "$@" --stop-after 3 --save "$out/train/run" || return
	attempt train-resumed 90 "$train" --device cuda --resume "$out/train/run" || return
	for run in straight resumed; do
		awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "fingerprint") at = i }
			NR > 1 && $1 > 3 { print $1, $2, $3, $at }' "$out/train-$run.tsv" >"$out/train/$run.txt"
	done
	if [ "$(wc -l <"$out/train/resumed.txt")" -eq 3 ] && cmp -s "$out/train/straight.txt" "$out/train/resumed.txt"; then
		ok "steps 4 to 6 have the same losses and fingerprints after a resume"
	else
		bad "steps 4 to 6 differ after a resume: $out/train/straight.txt, resumed.txt"
	fi
	rm -rf "$out/train/run"
	columns "$out/train-straight.tsv" step loss_nats tokens_per_s step_ms | sed 's/^/        /'
}

run_prints()
{
	say "fingerprints: two runs of each scheduler, all equal"
	for dtype in fp32 bf16; do
		attempt "prints-$dtype" 90 "$bench" step --device cuda --dtype $dtype --model debug17 --vocab 260 --tokens 1024 --tile-tokens 256 \
			--scheduler eager,lws,prio,dmdas --fingerprint --check
		columns "$out/prints-$dtype.tsv" scheduler fingerprint same first_loss_nats status | sed 's/^/        /'
	done
}

# Median in us and rate of a case's own line.
op_value()
{
	awk -F'\t' -v name="$2" -v at="$3" '$2 == name { print at == "ms" ? $6 / 1e3 : $at; exit }' "$1"
}

op_targets()
{
	t=$out/ops-bf16.tsv
	h=$out/ops-heads.tsv
	a=$out/ops-attention.tsv
	m=$out/ops-mix.tsv
	judge "KDA forward, 16 heads of 128, 8192 tokens" "$(op_value "$t" kda_chunk/kda_chunk_fwd ms)" ms most 0.59
	judge "KDA forward and backward, 16 heads" "$(op_value "$t" kda_chunk ms)" ms most 2.40
	judge "KDA forward, 96 heads" "$(op_value "$h" kda_chunk/kda_chunk_fwd ms)" ms most 2.64
	judge "KDA forward and backward, 96 heads" "$(op_value "$h" kda_chunk ms)" ms most 12.18
	for op in expert_ffn expert_dgrad expert_wgrad; do
		judge "$op, 32768 rows, 32 experts" "$(op_value "$t" ${op}_random 9 | awk 'NF { print $1 / 1e3 }')" TFLOP/s least 350
	done
	judge "attention 192/128 forward, causal, 16 heads" "$(op_value "$a" mla_attn/mla_attn_fwd 9 | awk 'NF { print $1 / 1e3 }')" TFLOP/s least 400
	judge "attention 192/128 backward" "$(op_value "$a" mla_attn/mla_attn_bwd 9 | awk 'NF { print $1 / 1e3 }')" TFLOP/s least 250
	for op in mix_norm_fwd mix_norm_bwd mix_norm_fwd_first mix_norm_bwd_first; do
		judge "$op, 8 payloads (first: none)" "$(op_value "$m" $op 17)" GB/s least 2500
	done
	for op in kda_conv_fwd kda_conv_bwd adamw_step; do
		judge "$op" "$(op_value "$t" $op 17)" GB/s least 2500
	done
	judge "head and cross entropy over its products at cuBLAS's rate" "$(awk -F'\t' '$2 ~ /^lm_head_(ce|dx|dw)$/ { t += $6; p += $6 * $13; n++ }
		END { if (n == 3) print t / p }' "$t")" times most 1.5
}

run_ops()
{
	say "operations on the GPU"
	for dtype in bf16 fp32; do
		tokens=8192
		[ $dtype = bf16 ] || tokens=2048
		attempt "ops-$dtype" 100 "$bench" op all --device cuda --dtype $dtype --model debug24 --tokens $tokens --sequence $tokens --vocab 163840
		columns "$out/ops-$dtype.tsv" case shape error median_us rate unit gb_per_s limit_rate share verdict
	done
	within 60 "$bench" op optim --device cuda --model tiny --filter adamw_step --plant-fault adamw_step/params \
		>"$out/ops-spoilt.tsv" 2>"$out/ops-spoilt.log"
	case $? in
	1) ok "a result that is spoilt on purpose is found wrong" ;;
	125) skip "a spoilt result: no time is left of $limit_s s" ;;
	*) bad "a spoilt result is not found: $out/ops-spoilt.log" ;;
	esac
	set -- --device cuda --dtype bf16 --tokens 8192 --sequence 8192
	attempt ops-heads 60 "$bench" op kda "$@" --model debug24 --heads 96 --filter kda_chunk
	attempt ops-attention 60 "$bench" op mla "$@" --model debug17 --heads 16 --filter mla_attn
	attempt ops-mix 60 "$bench" op attnres "$@" --model debug24 --payloads 8
	for more in heads attention mix; do
		columns "$out/ops-$more.tsv" case shape error median_us rate unit gb_per_s limit_rate share verdict | grep -v '^#'
	done
	op_targets
}

step_columns="scheduler device median_ms tokens_per_s ratio gpu_busy runtime_share gpu_gib tasks first_loss_nats status"

run_steps()
{
	say "whole steps of debug24 on the GPU: 8192 tokens, full vocabulary, bf16"
	# several steps without a drain: the end of one and the beginning of the next overlap
	set -- step --dtype bf16 --model debug24 --tokens 8192 --tile-tokens all --steps 6
	STARPU_SCHED=${STARPU_SCHED:-prio}
	export STARPU_SCHED
	[ -n "$workers" ] || unset STARPU_NCPU # as many as the program takes
	attempt steps-gpu 120 "$bench" "$@" --rounds 3 --device cuda || return
	# shellcheck disable=SC2086 # a list of words
	columns "$out/steps-gpu.tsv" $step_columns
	ms=$(column "$out/steps-gpu.tsv" 1 median_ms)
	gib=$(column "$out/steps-gpu.tsv" 1 gpu_gib)
	judge "step of debug24, forward, backward and optimizer" "$ms" ms most 187
	judge "peak memory" "$gib" GiB most 52
	judge "GPU busy" "$(column "$out/steps-gpu.tsv" 1 gpu_busy)" "" least 0.90
	judge "runtime share" "$(column "$out/steps-gpu.tsv" 1 runtime_share)" "" most 0.05
	if attempt steps-less-memory 120 env STARPU_LIMIT_CUDA_MEM="$(awk -v g="$gib" 'BEGIN { printf "%d", g * 0.6 * 1024 }')" \
		"$bench" "$@" --rounds 1 --device cuda; then
		same_loss steps-less-memory
		judge "step with 60 % of the memory" "$(column "$out/steps-less-memory.tsv" 1 median_ms | awk -v ms="$ms" 'NF { print $1 / ms }')" times most 3
	fi
	STARPU_NCPU=${workers:-4}
	export STARPU_NCPU
	if attempt steps-all 120 "$bench" "$@" --rounds 1 --device all --scheduler dmdas; then
		judge "step with cores beside the GPU" "$(column "$out/steps-all.tsv" 1 median_ms | awk -v ms="$ms" 'NF { print $1 / ms }')" times most 1.05
	fi
}

# Of the second step, after an update: all bits are printed.
same_loss()
{
	if [ "$(column "$out/$1.tsv" 1 second_loss_nats)" = "$(column "$out/steps-gpu.tsv" 1 second_loss_nats)" ]; then
		ok "$1 has the loss bits of steps-gpu"
	else
		bad "$1 has another loss than steps-gpu"
	fi
}

run_sanitizer()
{
	say "compute-sanitizer on a small run"
	sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
	if [ ! -x "$sanitizer" ]; then
		skip "sanitizer: this machine has no compute-sanitizer"
		return
	fi
	for check in memcheck racecheck; do
		for model in debug17 small; do
			sanitize "$check" "operations-$model" "$bench" op all --check --device cuda --dtype bf16 --model $model --tokens 131 --sequence 131
		done
		sanitize "$check" step "$verify" --device cuda --dtype bf16 --forced-routing "$data/golden/text_tiny.safetensors"
	done
}

# own_reports LOG: reports that name a kernel of ours.  Kernels of cuBLAS wait for copies in ways that racecheck does not see.
own_reports()
{
	awk '/^========= (Error|Warning|Invalid|Program hit|Uninitialized|Misaligned|Barrier)/ {
			n += open && !theirs
			open = 1
			theirs = /nvjet|cutlass|cublas|gemm/
			next
		}
		open && /^=========     (and|at) / { theirs = theirs || /nvjet|cutlass|cublas|gemm/ }
		END { print n + (open && !theirs) }' "$1"
}

# sanitize TOOL NAME COMMAND...
sanitize()
{
	check=$1
	name=$2
	shift 2
	log=$out/sanitizer-$check-$name.log
	within 90 "$sanitizer" --tool "$check" --error-exitcode 9 --print-limit 10000 --log-file "$log" "$@" >"$log.out" 2>&1
	rc=$?
	summary=$(grep 'SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')
	own=$(own_reports "$log")
	if [ $rc -eq 125 ]; then
		skip "$check of $name: no time is left of $limit_s s"
	elif [ "$own" -gt 0 ]; then
		bad "$check of $name: $own reports: $log"
	elif [ -z "$summary" ]; then
		skip "$check of $name: it did not come to its summary (status $rc): $log"
	elif [ $rc -ne 0 ] && [ $rc -ne 9 ]; then
		bad "$check of $name: status $rc: $log"
	else
		ok "$check of $name: no report of ours ($summary)"
	fi
}

for name in k3_verify k3_bench k3_train k3_data; do
	program $name >/dev/null || refuse "--build $build holds no $name"
done
verify=$(program k3_verify)
bench=$(program k3_bench)
train=$(program k3_train)
tool=$(program k3_data)

out=${out:-$build/gpu-check}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
LD_LIBRARY_PATH=$build:$build/lib:$build/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
OPENBLAS_NUM_THREADS=1
STARPU_SILENT=${STARPU_SILENT:-1}
STARPU_HOME=${STARPU_HOME:-$out/starpu-home}
workers=${STARPU_NCPU:-}
STARPU_NCPU=${STARPU_NCPU:-4}
K3_TEST_DATA=$data
export LD_LIBRARY_PATH OPENBLAS_NUM_THREADS STARPU_SILENT STARPU_HOME STARPU_NCPU K3_TEST_DATA
mkdir -p "$STARPU_HOME" || exit 2
# an OpenBLAS that does not know the processor is many times slower; the programs say which kernels would fit
if [ -z "${OPENBLAS_CORETYPE:-}" ]; then
	core=$(timeout -k 5 60 "$bench" op optim --model tiny --filter cast_params 2>&1 >/dev/null | sed -n 's/.*set OPENBLAS_CORETYPE=\([A-Za-z0-9]*\).*/\1/p' | head -n 1)
	if [ -n "$core" ]; then
		OPENBLAS_CORETYPE=$core
		export OPENBLAS_CORETYPE
		echo "OpenBLAS does not know this processor: OPENBLAS_CORETYPE=$core"
	fi
fi
if ! timeout -k 5 60 "$bench" op optim --device cuda --model tiny --filter cast_params >"$out/device.tsv" 2>"$out/device.log"; then
	tail -n 3 "$out/device.log" >&2
	bad "the device cannot be used"
	finish
fi
sed -n 's/^# \(device .*\); times.*/\1/p' "$out/device.tsv"

! wants tests || run_tests
! wants verify || run_verify
! wants train || run_train
! wants ops || run_ops
! wants steps || run_steps
! wants prints || run_prints
! wants sanitizer || run_sanitizer
finish
