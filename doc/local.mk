# Pages for people.
EXTRA_DIST += \
	doc/architecture.md \
	doc/data-formats.md
