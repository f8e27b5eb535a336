# shellcheck shell=sh
# Building and running the programs from scripts; sourced, after packages.sh.

# programs_build TOP DIR: builds what is missing in DIR, quietly.
programs_build()
{
	programs_top=$1
	programs_dir=$2
	# shellcheck disable=SC2086,SC2154 # lists of words, from packages.sh
	packages_need $packages_build $packages_starpu
	mkdir -p "$programs_dir"
	if [ ! -x "$programs_top/configure" ] || [ ! -f "$programs_top/build-aux/ltmain.sh" ]; then
		sh "$programs_top/autogen.sh" >"$programs_dir/autogen.out" 2>&1 ||
			{ tail -n 20 "$programs_dir/autogen.out" >&2; exit 1; }
	fi
	if [ ! -f "$programs_dir/Makefile" ]; then
		(cd "$programs_dir" && "$programs_top/configure" >configure.out 2>&1) ||
			{ tail -n 20 "$programs_dir/configure.out" >&2; exit 1; }
	fi
	make -C "$programs_dir" -j2 >"$programs_dir/make.out" 2>&1 ||
		{ tail -n 40 "$programs_dir/make.out" >&2; exit 1; }
}

# programs_environment TOP DIR: one BLAS thread in each worker; StarPU's calibration stays beside the build.  An
# OpenBLAS that does not know the processor is many times slower; the programs say which kernels would fit.
programs_environment()
{
	OPENBLAS_NUM_THREADS=1
	STARPU_HOME=${STARPU_HOME:-$2/starpu-home}
	STARPU_SILENT=1
	export OPENBLAS_NUM_THREADS STARPU_HOME STARPU_SILENT
	mkdir -p "$STARPU_HOME"
	[ -z "${OPENBLAS_CORETYPE:-}" ] || return 0
	programs_core=$("$2/k3_verify" "$1/tests/data/golden/text_tiny.safetensors" 2>&1 >/dev/null |
		sed -n 's/.*set OPENBLAS_CORETYPE=\([A-Za-z0-9]*\).*/\1/p' | head -n 1)
	[ -n "$programs_core" ] || return 0
	OPENBLAS_CORETYPE=$programs_core
	export OPENBLAS_CORETYPE
	echo "OpenBLAS does not know this processor: OPENBLAS_CORETYPE=$programs_core" >&2
}
