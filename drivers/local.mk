# The programs; what they share and what tests call is in one convenience library.
noinst_LTLIBRARIES += drivers/libdrivers.la
drivers_libdrivers_la_SOURCES = \
	drivers/bench.h \
	drivers/bench_calibrate.c \
	drivers/bench_device.c \
	drivers/bench_device.h \
	drivers/bench_op.c \
	drivers/bench_sgemm.c \
	drivers/bench_step.c \
	drivers/bench_step.h \
	drivers/bench_step_child.c \
	drivers/bench_step_run.c \
	drivers/bench_vision.c \
	drivers/bench_vision.h \
	drivers/bench_vision_run.c \
	drivers/calibrate.h \
	drivers/calibrate_machine.c \
	drivers/calibrate_model.c \
	drivers/caption.c \
	drivers/data_images.c \
	drivers/data_images.h \
	drivers/data_tool.c \
	drivers/data_tool.h \
	drivers/eval.c \
	drivers/eval.h \
	drivers/images.c \
	drivers/images.h \
	drivers/median.c \
	drivers/median.h \
	drivers/plan_tool.c \
	drivers/plan_tool.h \
	drivers/serial.c \
	drivers/serial.h \
	drivers/session.c \
	drivers/session.h \
	drivers/train.h \
	drivers/train_config.c \
	drivers/train_open.c \
	drivers/train_options.c \
	drivers/train_resume.c \
	drivers/train_resume.h \
	drivers/train_run.c \
	drivers/train_run.h \
	drivers/train_vision.c \
	drivers/verify.h \
	drivers/verify_bf16.c \
	drivers/verify_common.c \
	drivers/verify_compare.c \
	drivers/verify_gather.c \
	drivers/verify_model.c \
	drivers/verify_model.h \
	drivers/verify_ops.c \
	drivers/verify_place.c \
	drivers/verify_quantile.c \
	drivers/verify_report.c \
	drivers/verify_routes.c \
	drivers/verify_settings.c \
	drivers/verify_settings.h \
	drivers/verify_train.c \
	drivers/verify_vision.c

bin_PROGRAMS += k3_bench k3_data k3_eval k3_plan k3_train k3_verify
k3_bench_SOURCES = drivers/k3_bench.c
k3_bench_LDADD = drivers/libdrivers.la $(k3_libs)
k3_data_SOURCES = drivers/k3_data.c
k3_data_LDADD = drivers/libdrivers.la $(k3_libs)
k3_eval_SOURCES = drivers/k3_eval.c
k3_eval_LDADD = drivers/libdrivers.la $(k3_libs)
k3_plan_SOURCES = drivers/k3_plan.c
k3_plan_LDADD = drivers/libdrivers.la $(k3_libs)
k3_train_SOURCES = drivers/k3_train.c
k3_train_LDADD = drivers/libdrivers.la $(k3_libs)
k3_verify_SOURCES = drivers/k3_verify.c
k3_verify_LDADD = drivers/libdrivers.la $(k3_libs)
