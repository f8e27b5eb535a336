# Status codes, log, configuration, file formats, contracts of the operations: plain C, no StarPU.
libk3_la_SOURCES += \
	common/config_fields.c \
	common/log.c \
	common/rng.c \
	common/status.c

nobase_k3include_HEADERS += \
	common/config.h \
	common/config_fields.h \
	common/log.h \
	common/op/attnres.h \
	common/op/embed.h \
	common/op/glu.h \
	common/op/io.h \
	common/op/kda.h \
	common/op/loss.h \
	common/op/mla.h \
	common/op/moe.h \
	common/op/op.h \
	common/op/optim.h \
	common/ops.h \
	common/rng.h \
	common/safetensors.h \
	common/status.h
