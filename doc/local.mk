# Pages for people.
EXTRA_DIST += \
	doc/adding-an-operation.md \
	doc/architecture.md \
	doc/benchmarks.md \
	doc/data-formats.md \
	doc/tracing.md
