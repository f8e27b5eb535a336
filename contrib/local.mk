# Set-up scripts, and what make check runs its tests through.
EXTRA_DIST += \
	contrib/build-starpu.sh \
	contrib/check.sh \
	contrib/demo.sh \
	contrib/gpu-check.sh \
	contrib/learning-curve.sh \
	contrib/packages.sh \
	contrib/programs.sh \
	contrib/recall.sh \
	contrib/run-crit.sh
