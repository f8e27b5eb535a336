# Builds and checks plans: plain C, no StarPU.
libk3_la_SOURCES += \
	planner/activations.c \
	planner/arena.c \
	planner/arena.h \
	planner/build.c \
	planner/build.h \
	planner/choose.c \
	planner/cp.c \
	planner/critical_path.c \
	planner/estimate.c \
	planner/fsdp.c \
	planner/kda_op.c \
	planner/kda_op.h \
	planner/layout.c \
	planner/machine.c \
	planner/machine_json.c \
	planner/memory_use.c \
	planner/mesh.c \
	planner/mesh_comm.h \
	planner/model.c \
	planner/model_flops.c \
	planner/optimizer.c \
	planner/optimizer.h \
	planner/params.c \
	planner/plan_cache.c \
	planner/plan_check.c \
	planner/plan_dot.c \
	planner/plan_graph.c \
	planner/plan_graph.h \
	planner/plan_json.c \
	planner/plan_memory.c \
	planner/plan_order.c \
	planner/plan_report.c \
	planner/plan_size.c \
	planner/plan_stats.c \
	planner/plan_tsv.c \
	planner/priority.c \
	planner/rate_fit.c \
	planner/shard.c \
	planner/shard.h \
	planner/slots.c \
	planner/text.c \
	planner/text.h \
	planner/text_ffn.c \
	planner/text_head.c \
	planner/text_kda.c \
	planner/text_mla.c \
	planner/vision_split.c \
	planner/vision_table.c

nobase_k3include_HEADERS += \
	planner/activations.h \
	planner/choose.h \
	planner/critical_path.h \
	planner/estimate.h \
	planner/machine.h \
	planner/mesh.h \
	planner/model_flops.h \
	planner/params.h \
	planner/plan.h \
	planner/plan_cache.h \
	planner/plan_check.h \
	planner/plan_print.h \
	planner/plan_stats.h \
	planner/rate_fit.h \
	planner/vision_split.h
