# Builds and checks plans: plain C, no StarPU.
libk3_la_SOURCES += \
	planner/arena.c \
	planner/build.c \
	planner/layout.c \
	planner/mesh.c \
	planner/model.c \
	planner/optimizer.c \
	planner/params.c \
	planner/priority.c \
	planner/shard.c \
	planner/slots.c \
	planner/text.c \
	planner/text_kda.c

nobase_k3include_HEADERS += \
	planner/arena.h \
	planner/build.h \
	planner/mesh.h \
	planner/optimizer.h \
	planner/params.h \
	planner/plan.h \
	planner/shard.h \
	planner/text.h
