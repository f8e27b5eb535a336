/* The table of vec.h; each vec*_cpu.c compiles it for one vector width. */
#ifndef K3_VEC_TABLE_H
#define K3_VEC_TABLE_H
#include "vec_act.h"
#include "vec_bf16.h"
#include "vec_gelu.h"
#include "vec_sum.h"

#define K3I_VEC_TABLE                                                                              \
	{                                                                                          \
		.dot = dot, .square = square, .dot_weighted = dot_weighted,                        \
		.square_score = square_score, .largest = largest,                                  \
		.exp_sum = exp_sum, .scale = scale, .axpy = axpy, .add = add,                      \
		.weighted_sum = weighted_sum, .rms_fwd = rms_fwd, .rms_bwd = rms_bwd,              \
		.mix_bwd = mix_bwd, .sigmoid = sigmoid, .situ_fwd = situ_fwd,                      \
		.situ_bwd = situ_bwd, .gate_fwd = gate_fwd, .gate_bwd = gate_bwd,                  \
		.norm_gate_fwd = norm_gate_fwd, .norm_gate_bwd = norm_gate_bwd, .silu = silu,      \
		.silu_bwd = silu_bwd, .gelu_tanh = gelu_tanh, .gelu_tanh_bwd = gelu_tanh_bwd,      \
		.gelu_erf = gelu_erf, .gelu_erf_bwd = gelu_erf_bwd,                                \
		.from_bf16 = from_bf16, .to_bf16 = to_bf16,                                        \
		.rotate = rotate, .taps_fwd = taps_fwd, .taps_grad = taps_grad,                    \
	}

#endif
