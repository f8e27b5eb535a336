# The cases of `k3_bench op`; they are part of the drivers' library, which needs no Criterion.
drivers_libdrivers_la_SOURCES += \
	tests/bench/bench.c \
	tests/bench/bench.h \
	tests/bench/bench_attnres.c \
	tests/bench/bench_check.c \
	tests/bench/bench_cuda.c \
	tests/bench/bench_embed.c \
	tests/bench/bench_glu.c \
	tests/bench/bench_kda.c \
	tests/bench/bench_kda.h \
	tests/bench/bench_kda_chunk.c \
	tests/bench/bench_kda_conv.c \
	tests/bench/bench_kda_out.c \
	tests/bench/bench_loss.c \
	tests/bench/bench_mla.c \
	tests/bench/bench_mla.h \
	tests/bench/bench_mla_attn.c \
	tests/bench/bench_mla_expand.c \
	tests/bench/bench_mla_out.c \
	tests/bench/bench_moe.c \
	tests/bench/bench_moe.h \
	tests/bench/bench_moe_expert.c \
	tests/bench/bench_moe_share.c \
	tests/bench/bench_optim.c \
	tests/bench/bench_time.c \
	tests/bench/bench_vit.c \
	tests/bench/bench_vit.h \
	tests/bench/bench_vit_attn.c \
	tests/bench/bench_vit_ends.c \
	tests/bench/bench_vit_mlp.c \
	tests/bench/bench_vit_out.c \
	tests/bench/bench_vit_project.c \
	tests/bench/bench_vit_qkv.c
