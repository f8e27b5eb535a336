# Pages for people.
EXTRA_DIST += \
	doc/adding-an-operation.md \
	doc/architecture.md \
	doc/data-formats.md
