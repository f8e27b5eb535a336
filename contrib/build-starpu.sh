#!/bin/sh
# Builds StarPU 1.4.10 with FxT tracing and room for 256 cores from Debian's source package.
#   usage: sh contrib/build-starpu.sh PREFIX [--cuda DIR]
# --cuda DIR  with CUDA, from the toolkit in DIR (e.g. /usr/local/cuda); no device or driver is needed
# Then: configure --with-starpu=PREFIX, or sh contrib/check.sh --starpu PREFIX.
# Five minutes on 2 cores, ten with CUDA.  A PREFIX that is finished is left alone.  STARPU_VERSION names another
# version of the package; when the wanted one has left the archive, the newest there is taken.
# The source entry lives in a folder of its own: the machine's apt configuration is only read.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"
prefix=${1:?usage: sh contrib/build-starpu.sh PREFIX [--cuda DIR]}
case ${2:-} in
'') cuda= ;;
--cuda) cuda=${3:?--cuda needs the folder of a toolkit} ;;
*) echo "build-starpu.sh: unknown option $2; known: --cuda DIR" >&2; exit 2 ;;
esac
[ -z "$cuda" ] || [ -x "$cuda/bin/nvcc" ] || { echo "build-starpu.sh: no $cuda/bin/nvcc" >&2; exit 2; }
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
version=${STARPU_VERSION:-1.4.10+dfsg-2}
marker=$prefix/.starpu-k3-built${cuda:+-cuda}
if [ -e "$marker" ]; then
	echo "StarPU $(cat "$marker") is in $prefix already"
	exit 0
fi
# shellcheck disable=SC2086 # lists of words
packages_need $packages_build $packages_starpu_source

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The archive that this machine installs from also has sid's sources.
archive=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
[ -n "$archive" ] || archive=$(sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list | head -n 1)
[ -n "$archive" ] || { echo "build-starpu.sh: no Debian archive in the apt sources" >&2; exit 1; }
mkdir -p "$work/lists/partial"
printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s sid main\n' "$archive" \
	>"$work/sid.list"
apt_sid()
{
	packages_apt -o Dir::Etc::sourcelist="$work/sid.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State::lists="$work/lists" -o Dir::Cache="$work" -o APT::Sandbox::User=root "$@"
}
apt_sid update
cd "$work"
if ! apt_sid source "starpu=$version"; then
	echo "build-starpu.sh: starpu $version is not in the archive; taking the newest" >&2
	apt_sid source starpu
fi
cd starpu-*/
version=$(dpkg-parsechangelog -S Version)
mkdir build-k3
cd build-k3
# Without --cuda it is off by name: configure would take any nvcc in PATH.
if [ -n "$cuda" ]; then
	# CUDA 13 has no cudaDeviceProp.computeMode; the attribute tells the same.
	for file in ../src/drivers/cuda/driver_cuda.c ../src/drivers/cuda/driver_cuda1.c; do
		[ ! -e "$file" ] || sed -i 's/^\([ \t]*\)if (props\[devid\]\.computeMode == cudaComputeModeExclusive)/\1int mode = 0;\n\1if (cudaDeviceGetAttribute(\&mode, cudaDevAttrComputeMode, devid) == cudaSuccess \&\& mode == cudaComputeModeExclusive)/' "$file"
	done
	set -- --with-cuda-dir="$cuda" --enable-maxcudadev=8
	LDFLAGS="-L$cuda/lib64 -L$cuda/lib64/stubs"
	export LDFLAGS
else
	set -- --disable-cuda
fi
../configure --prefix="$prefix" "$@" --disable-hip --disable-opencl --disable-socl \
	--disable-starpufft --disable-starpupy --disable-starpurm --disable-bubble --disable-fortran \
	--disable-build-doc --disable-build-doc-pdf --disable-build-tests --disable-build-examples \
	--enable-maxcpus=256 --enable-fxt --disable-static --disable-dependency-tracking \
	>configure.out 2>&1 || { tail -n 40 configure.out >&2; exit 1; }
make -j2 >make.out 2>&1 || { grep -n -m 20 'error' make.out >&2; exit 1; }
make install >install.out 2>&1 || { tail -n 20 install.out >&2; exit 1; }
find "$prefix/lib" -name '*.so.*' -type f -exec strip --strip-debug {} +
echo "$version" >"$marker"
echo "StarPU $version is in $prefix"
