# Status codes, log, configuration, file formats, contracts of the operations: plain C, no StarPU.
libk3_la_SOURCES += \
	common/config.c \
	common/config_features.c \
	common/config_fields.c \
	common/config_fields.h \
	common/config_json.c \
	common/config_layers.c \
	common/config_layers.h \
	common/config_presets.c \
	common/config_source.c \
	common/config_source.h \
	common/config_write.c \
	common/data.c \
	common/files.c \
	common/files.h \
	common/fs.c \
	common/k3t.c \
	common/k3t_format.h \
	common/k3t_import.c \
	common/k3t_info.c \
	common/k3t_recall.c \
	common/k3t_write.c \
	common/log.c \
	common/ngram.c \
	common/ops.c \
	common/options.c \
	common/rng.c \
	common/safetensors.c \
	common/safetensors_file.c \
	common/safetensors_file.h \
	common/safetensors_put.c \
	common/safetensors_read.c \
	common/safetensors_write.c \
	common/safetensors_writer.h \
	common/schedule.c \
	common/status.c

nobase_k3include_HEADERS += \
	common/colors.h \
	common/config.h \
	common/data.h \
	common/fs.h \
	common/grid.h \
	common/k3t.h \
	common/k3t_import.h \
	common/k3t_info.h \
	common/k3t_recall.h \
	common/log.h \
	common/ngram.h \
	common/op/attnres.h \
	common/op/comm.h \
	common/op/embed.h \
	common/op/glu.h \
	common/op/io.h \
	common/op/kda.h \
	common/op/loss.h \
	common/op/mla.h \
	common/op/moe.h \
	common/op/op.h \
	common/op/optim.h \
	common/op/vit.h \
	common/ops.h \
	common/options.h \
	common/rng.h \
	common/safetensors.h \
	common/schedule.h \
	common/status.h
