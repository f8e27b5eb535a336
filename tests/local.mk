# Each tests/test_*.c is one Criterion program; a test whose name holds run_ starts StarPU, here or in a program.
# Data is read through K3_TEST_DATA, so that tests run out of tree; what they write belongs in a folder of mkdtemp.
LDADD = tests/libfixture.la drivers/libdrivers.la $(k3_libs) $(CRITERION_LIBS)

if HAVE_CRITERION
check_PROGRAMS += \
	tests/test_activations \
	tests/test_balance \
	tests/test_bench_op \
	tests/test_choose \
	tests/test_config \
	tests/test_config_faults \
	tests/test_config_json \
	tests/test_data \
	tests/test_data_images \
	tests/test_data_items \
	tests/test_data_tool \
	tests/test_embed \
	tests/test_estimate \
	tests/test_fs \
	tests/test_glu \
	tests/test_gpu_check \
	tests/test_gpu_plan \
	tests/test_hash \
	tests/test_image \
	tests/test_image_bad \
	tests/test_images_option \
	tests/test_k3t \
	tests/test_k3t_items \
	tests/test_kda_chunk \
	tests/test_kda_conv \
	tests/test_kda_recurrent \
	tests/test_kda_small \
	tests/test_layout \
	tests/test_lint \
	tests/test_lm_head \
	tests/test_machine \
	tests/test_mix_norm \
	tests/test_mla \
	tests/test_mla_blocks \
	tests/test_mla_proj \
	tests/test_model \
	tests/test_model_flops \
	tests/test_model_walk \
	tests/test_moe \
	tests/test_moe_route \
	tests/test_optim \
	tests/test_options \
	tests/test_panel \
	tests/test_param_init \
	tests/test_params \
	tests/test_perfmodel_check \
	tests/test_plan_bf16 \
	tests/test_plan_check \
	tests/test_plan_dot \
	tests/test_plan_forced \
	tests/test_plan_mesh \
	tests/test_plan_order \
	tests/test_plan_print \
	tests/test_plan_program \
	tests/test_plan_slots \
	tests/test_recall \
	tests/test_rng \
	tests/test_run_bench_step \
	tests/test_run_bf16 \
	tests/test_run_calibrate \
	tests/test_run_environment \
	tests/test_run_golden \
	tests/test_run_image_data \
	tests/test_run_images \
	tests/test_run_load \
	tests/test_run_recall \
	tests/test_run_refused \
	tests/test_run_sched \
	tests/test_run_shards \
	tests/test_run_spine \
	tests/test_run_trace \
	tests/test_run_train \
	tests/test_run_verdict \
	tests/test_run_vision \
	tests/test_safetensors \
	tests/test_schedule \
	tests/test_st_write \
	tests/test_trace \
	tests/test_trace_picture \
	tests/test_trace_signal \
	tests/test_trace_summary \
	tests/test_vec_act \
	tests/test_vec_bf16 \
	tests/test_vec_bits \
	tests/test_vec_gelu \
	tests/test_vec_sum \
	tests/test_verify_report \
	tests/test_vision_cp \
	tests/test_vision_limits \
	tests/test_vision_mesh \
	tests/test_vision_plan \
	tests/test_vision_ranks \
	tests/test_vision_scatter \
	tests/test_vision_split \
	tests/test_vision_walk \
	tests/test_vit_attn \
	tests/test_vit_block \
	tests/test_vit_embed \
	tests/test_vit_load \
	tests/test_vit_merge \
	tests/test_vit_project \
	tests/test_whole
if HAVE_NCCL
check_PROGRAMS += tests/test_comm_ranks tests/test_comm_tower
endif
check_LTLIBRARIES += tests/libfixture.la
TESTS += $(check_PROGRAMS)
else
check-local:
	@echo 'make check: configure found no Criterion (>= 2.4), so there are no tests to run.' >&2
	@echo 'Debian: apt-get install libcriterion-dev, then configure again.' >&2
	@exit 1
endif

tests_libfixture_la_SOURCES = \
	tests/config_case.c \
	tests/config_case.h \
	tests/fixture.c \
	tests/fixture.h \
	tests/golden.c \
	tests/golden.h \
	tests/held.c \
	tests/held.h \
	tests/image_case.c \
	tests/image_case.h \
	tests/kda_case.c \
	tests/kda_case.h \
	tests/kda_suite.c \
	tests/kda_suite.h \
	tests/mm_case.c \
	tests/mm_case.h \
	tests/moe_case.c \
	tests/moe_case.h \
	tests/paje.c \
	tests/paje.h \
	tests/plan_case.c \
	tests/plan_case.h \
	tests/program.c \
	tests/program.h \
	tests/scratch.c \
	tests/scratch.h \
	tests/spine.c \
	tests/spine.h \
	tests/tool_case.c \
	tests/tool_case.h \
	tests/trace_case.c \
	tests/trace_case.h \
	tests/uses.c \
	tests/uses.h \
	tests/vec_case.h \
	tests/vision_case.c \
	tests/vision_case.h \
	tests/vision_group.c \
	tests/vision_group.h \
	tests/vit_attn_case.c \
	tests/vit_attn_case.h \
	tests/vit_case.c \
	tests/vit_case.h

# with NCCL's calls over host memory, before the libraries'
tests_test_comm_ranks_SOURCES = \
	tests/nccl_ranks.c \
	tests/nccl_ranks.h \
	tests/test_comm_ranks.c
tests_test_comm_tower_SOURCES = \
	tests/nccl_ranks.c \
	tests/nccl_ranks.h \
	tests/test_comm_tower.c

LOG_COMPILER = $(SHELL) $(top_srcdir)/contrib/run-crit.sh
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
AM_LOG_DRIVER_FLAGS = --merge

# StarPU's calibration and ours go into the build tree: tests neither read nor spoil the user's.
AM_TESTS_ENVIRONMENT = \
	K3_TEST_DATA='$(abs_top_srcdir)/tests/data'; export K3_TEST_DATA; \
	K3_TEST_BIN='$(abs_top_builddir)'; export K3_TEST_BIN; \
	STARPU_HOME='$(abs_top_builddir)/starpu-home'; export STARPU_HOME; \
	XDG_CONFIG_HOME='$(abs_top_builddir)/starpu-home'; export XDG_CONFIG_HOME; \
	K3_MACHINE=; export K3_MACHINE; \
	STARPU_SILENT=1; export STARPU_SILENT; \
	STARPU_NCPU=2; export STARPU_NCPU; \
	OPENBLAS_NUM_THREADS=1; export OPENBLAS_NUM_THREADS; \
	$(MKDIR_P) "$$STARPU_HOME";

EXTRA_DIST += tests/data

clean-local:
	rm -rf starpu-home
	rm -f tests/*.tap tests/*.out
