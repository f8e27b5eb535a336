#!/bin/sh
# From nothing to a small Kimi K3 that knows ten pictures by their captions: called by demo.sh --images.
#   usage: sh contrib/demo-images.sh [LIST.jsonl]
# LIST.jsonl holds lines {"text": "<image> a caption", "images": ["a.png"]}.  Without one the pictures are those of
# Debian's package python3-skimage (skimage.data: astronaut, camera, chelsea, ...), which is unpacked, not installed.
# Everything is made in build-demo/images.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/contrib/packages.sh"
. "$top/contrib/programs.sh"
build=$top/build-demo
out=$build/images
steps=${K3_DEMO_STEPS:-120}
package=python3-skimage

say()
{
	printf '\n== %s\n' "$*" >&2
}

# The package's pictures with captions of ours.
make_list()
{
	mkdir -p "$out/package"
	if ! ls "$out/package/"*.deb >/dev/null 2>&1; then
		packages_apt update || true
		(cd "$out/package" && apt-get -o APT::Sandbox::User=root download "$package" >/dev/null) ||
			{ echo "demo.sh: package $package cannot be had: give a LIST.jsonl of your own" >&2; exit 1; }
	fi
	dpkg-deb -x "$out/package/"*.deb "$out/package"
	pictures=package/usr/lib/python3/dist-packages/skimage/data
	while read -r file caption; do
		printf '{"text": "<image> %s", "images": ["%s/%s"]}\n' "$caption" "$pictures" "$file"
	done >"$out/list.jsonl" <<END
astronaut.png an astronaut smiles in her orange suit
brick.png a wall of bricks
camera.png a man looks through his camera
chelsea.png a tabby cat rests
coffee.png a cup of coffee on a wooden table
coins.png old coins in rows
horse.png the shape of a horse
hubble_deep_field.jpg galaxies far away
motorcycle_left.png a motorcycle stands in a garage
rocket.jpg a rocket waits on its launch pad
END
}

say "Packages and build in $build"
mkdir -p "$out"
programs_build "$top" "$build"
programs_environment "$top" "$build"
if [ $# -gt 0 ]; then
	list=$1
else
	make_list
	list=$out/list.jsonl
fi

say "Data set: text and pictures of at most 256 patches each"
rm -rf "$out/checkpoints"
"$build/k3_data" images "$list" -o "$out/images.k3t" --limit-patches 256 --holdout 0

say "Training: preset debug17 with its vision tower, $steps steps of 1,024 tokens"
"$build/k3_train" --model debug17 --data "$out/images.k3t" --tokens 1024 --steps "$steps" --warmup 10 \
	--lr 2e-3 --weight-decay 0 --save "$out/checkpoints" | tee "$out/steps.tsv"
checkpoint=$(printf '%s/checkpoints/step-%06d' "$out" "$steps")
[ -f "$checkpoint/COMPLETE" ] || { echo "demo.sh: training failed, see above" >&2; exit 1; }

say "Loss and accuracy on what it was trained with (every next byte given the true ones before it)"
"$build/k3_eval" --load "$checkpoint" --data "$out/images.k3t" --tokens 1024 | tee "$out/loss.tsv"
say "Captions that the model writes by itself after two pictures, byte by byte, the likeliest each time"
"$build/k3_eval" --load "$checkpoint" --caption "$out/images.k3t" --samples 2 | tee "$out/captions.tsv"

say "Done"
cat >&2 <<END
list            $list
data set        $out/images.k3t
losses          $out/steps.tsv (a line per step), $out/loss.tsv
checkpoint      $checkpoint
captions        $out/captions.tsv; all: $build/k3_eval --load $checkpoint --caption $out/images.k3t --samples 100
END
