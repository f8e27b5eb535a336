/* Shares and rates of GPUs.  The trap: both only rank tasks and devices, so a table by kinds of
 * operations is enough; it need not follow every change of a kernel. */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

struct share {
	double call_us, product, memory; /* a share of 0 leaves its term out */
};

/* How operations use a GPU; medians over the tasks of a step of debug24 on an H200. */
static struct share
share_of(enum k3_op op)
{
	switch (op) {
	case K3_OP_KDA_CHUNK_FWD:
	case K3_OP_KDA_CHUNK_BWD:
	case K3_OP_KDA_STATE_LOCAL:
		return (struct share){20, 0.03, 0};
	case K3_OP_MLA_ATTN_FWD:
	case K3_OP_MLA_ATTN_BWD:
	case K3_OP_VIT_ATTN_FWD:
	case K3_OP_VIT_ATTN_BWD:
		return (struct share){10, 0.25, 0};
	case K3_OP_LM_HEAD_CE:
		return (struct share){10, 0.6, 0.4};
	case K3_OP_MIX_NORM_FWD:
	case K3_OP_MIX_NORM_BWD:
	case K3_OP_GRAD_NORM:
	case K3_OP_ADAMW_STEP:
	case K3_OP_CAST_PARAMS:
	case K3_OP_HASH_DATA:
	case K3_OP_KDA_CONV_FWD:
	case K3_OP_KDA_CONV_BWD:
	case K3_OP_VIT_MERGE_FWD:
	case K3_OP_VIT_MERGE_BWD:
	case K3_OP_EMBED_FWD:
	case K3_OP_EMBED_BWD:
	case K3_OP_MOE_ROUTE_FWD:
	case K3_OP_MOE_COUNT:
	case K3_OP_LOSS_SUM:
	case K3_OP_CLIP_FACTOR:
	case K3_OP_ROUTER_BIAS_UPDATE:
	case K3_OP_VISION_SCATTER_FWD:
	case K3_OP_VISION_SCATTER_BWD:
	case K3_OP_ZERO_GRADS:
	case K3_OP_PARAM_INIT:
		return (struct share){5, 0, 0.5};
	default:
		return k3_op_is_comm(op) ? (struct share){20, 0, 0.1}
					 : (struct share){10, 0.6, 0.5};
	}
}

void
k3_gpu_init(struct k3_gpu *gpu)
{
	k3_gpu_describe(gpu, "", 9, 132, 1980, 3201, 6144);
}

/* Operations that a multiprocessor starts at most in a clock: in fp32, and in bf16 products. */
static void
clock_flops(int major, double *f32, double *bf16)
{
	*f32 = major == 8 ? 128 : 256;
	*bf16 = major >= 10 ? 8192 : major == 9 ? 4096 : major == 8 ? 2048 : *f32;
}

void
k3_gpu_describe(struct k3_gpu *gpu, const char *name, int major, double processors,
		double clock_mhz, double memory_mhz, double memory_bits)
{
	double f32, bf16;

	memset(gpu, 0, sizeof(*gpu));
	snprintf(gpu->name, sizeof(gpu->name), "%s", name);
	clock_flops(major, &f32, &bf16);
	gpu->task_us = 8;
	gpu->f32_flops_per_us = f32 * processors * clock_mhz;
	gpu->bf16_flops_per_us = bf16 * processors * clock_mhz;
	gpu->bytes_per_us = 2 * memory_mhz * memory_bits / 8;
}

double
k3_gpu_cost_us(const struct k3_gpu *gpu, enum k3_op op, enum k3_dtype dtype, double flops,
	       double bytes)
{
	double rate = dtype == K3_BF16 ? gpu->bf16_flops_per_us : gpu->f32_flops_per_us;
	struct share s = share_of(op);
	double us = gpu->task_us + s.call_us;

	if (s.product > 0)
		us += flops / (s.product * rate);
	if (s.memory > 0)
		us += bytes / (s.memory * gpu->bytes_per_us);
	return us;
}
