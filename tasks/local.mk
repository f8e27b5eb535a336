# From plan to StarPU.
libk3_la_SOURCES += \
	tasks/checkpoint_find.c \
	tasks/checkpoint_load.c \
	tasks/checkpoint_save.c \
	tasks/codelets.c \
	tasks/communicators.h \
	tasks/convert.c \
	tasks/device.c \
	tasks/environment.c \
	tasks/environment.h \
	tasks/gpu_memory.c \
	tasks/lane.c \
	tasks/lane_call.h \
	tasks/perfmodel_check.c \
	tasks/room.c \
	tasks/runtime.c \
	tasks/scheduler.c \
	tasks/slot_pools.c \
	tasks/slot_pools.h \
	tasks/store.c \
	tasks/store_data.c \
	tasks/submit.c \
	tasks/trace.c \
	tasks/trace_cuda.c \
	tasks/trace_cuda.h \
	tasks/trace_out.c \
	tasks/trace_paje.c \
	tasks/trace_panel.h \
	tasks/trace_record.h \
	tasks/trace_render.c \
	tasks/trace_signal.c \
	tasks/trace_snapshot.c \
	tasks/trace_starpu.c \
	tasks/trace_starpu.h \
	tasks/trace_steps.c \
	tasks/trace_strip.c \
	tasks/trace_summary.c \
	tasks/trace_svg.c \
	tasks/usage.c \
	tasks/watchdog.c

nobase_k3include_HEADERS += \
	tasks/checkpoint.h \
	tasks/codelets.h \
	tasks/convert.h \
	tasks/device.h \
	tasks/gpu_memory.h \
	tasks/lane.h \
	tasks/perfmodel_check.h \
	tasks/room.h \
	tasks/scheduler.h \
	tasks/runtime.h \
	tasks/store.h \
	tasks/submit.h \
	tasks/trace.h \
	tasks/usage.h \
	tasks/watchdog.h

if HAVE_NCCL
libk3_la_SOURCES += tasks/communicators.c tasks/lane_call.c
endif
