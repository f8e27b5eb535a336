# Pages for people.  The man pages take their options from the programs, so a cross build has none.
EXTRA_DIST += \
	doc/adding-an-operation.md \
	doc/architecture.md \
	doc/benchmarks.md \
	doc/data-formats.md \
	doc/learning-curve.svg \
	doc/learning-curve.tsv \
	doc/man/k3_bench.1.in \
	doc/man/k3_data.1.in \
	doc/man/k3_eval.1.in \
	doc/man/k3_plan.1.in \
	doc/man/k3_train.1.in \
	doc/man/k3_verify.1.in \
	doc/man/man.sh \
	doc/scheduling.md \
	doc/trace.png \
	doc/tracing.md

k3_man_pages = \
	doc/man/k3_bench.1 \
	doc/man/k3_data.1 \
	doc/man/k3_eval.1 \
	doc/man/k3_plan.1 \
	doc/man/k3_train.1 \
	doc/man/k3_verify.1

if !CROSS_COMPILING
man_MANS = $(k3_man_pages)
endif
CLEANFILES += $(k3_man_pages)

SUFFIXES += .1.in .1
$(k3_man_pages): doc/man/man.sh $(bin_PROGRAMS)

.1.in.1:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SHELL) $(top_srcdir)/doc/man/man.sh $< >$@.tmp && mv $@.tmp $@
