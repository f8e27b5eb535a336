# From plan to StarPU.
libk3_la_SOURCES += \
	tasks/checkpoint_load.c \
	tasks/checkpoint_save.c \
	tasks/codelets.c \
	tasks/runtime.c \
	tasks/store.c \
	tasks/submit.c \
	tasks/usage.c

nobase_k3include_HEADERS += \
	tasks/checkpoint.h \
	tasks/codelets.h \
	tasks/runtime.h \
	tasks/store.h \
	tasks/submit.h \
	tasks/usage.h
