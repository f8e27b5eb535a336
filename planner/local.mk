# Builds and checks plans: plain C, no StarPU.
libk3_la_SOURCES += \
	planner/arena.c \
	planner/build.c \
	planner/choose.c \
	planner/cp.c \
	planner/critical_path.c \
	planner/estimate.c \
	planner/fsdp.c \
	planner/kda_op.c \
	planner/layout.c \
	planner/machine.c \
	planner/machine_json.c \
	planner/mesh.c \
	planner/model.c \
	planner/optimizer.c \
	planner/params.c \
	planner/plan_cache.c \
	planner/plan_check.c \
	planner/plan_graph.c \
	planner/plan_json.c \
	planner/plan_memory.c \
	planner/plan_order.c \
	planner/plan_print.c \
	planner/priority.c \
	planner/rate_fit.c \
	planner/shard.c \
	planner/slots.c \
	planner/text.c \
	planner/text_ffn.c \
	planner/text_head.c \
	planner/text_kda.c \
	planner/text_mla.c

nobase_k3include_HEADERS += \
	planner/arena.h \
	planner/build.h \
	planner/choose.h \
	planner/critical_path.h \
	planner/estimate.h \
	planner/kda_op.h \
	planner/machine.h \
	planner/mesh.h \
	planner/optimizer.h \
	planner/params.h \
	planner/plan.h \
	planner/plan_cache.h \
	planner/plan_check.h \
	planner/plan_graph.h \
	planner/plan_print.h \
	planner/rate_fit.h \
	planner/shard.h \
	planner/text.h
