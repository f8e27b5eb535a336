/* What kernels of all families share on the device: float and bf16 elements, 16-byte accesses, sums
 * over a warp and over a block in one order. */
#ifndef K3_CUDA_DEVICE_CUH
#define K3_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "gemm.h"

typedef __nv_bfloat16 k3_bf16;

template <typename T> struct k3_type;
template <> struct k3_type<float> {
	static const enum k3_cuda_type id = K3_CUDA_F32;
};
template <> struct k3_type<k3_bf16> {
	static const enum k3_cuda_type id = K3_CUDA_BF16;
};

static __device__ __forceinline__ float
wide(float x)
{
	return x;
}

static __device__ __forceinline__ float
wide(k3_bf16 x)
{
	return __bfloat162float(x);
}

template <typename T> static __device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float
narrow<float>(float x)
{
	return x;
}
template <>
__device__ __forceinline__ k3_bf16
narrow<k3_bf16>(float x)
{
	return __float2bfloat16_rn(x);
}

/* Elements of one 16-byte access. */
template <typename T> struct k3_pack {
	static const int n = 16 / sizeof(T);
	T x[n];
};

/** Loads a pack from a 16-byte aligned address, widened. */
template <typename T>
static __device__ __forceinline__ void
pack_load(float *out, const T *from)
{
	const int n = k3_pack<T>::n;
	uint4 raw = *reinterpret_cast<const uint4 *>(from);
	const T *x = reinterpret_cast<const T *>(&raw);

#pragma unroll
	for (int i = 0; i < n; i++)
		out[i] = wide(x[i]);
}

/** The elements of a pack that is in registers.  A bf16 is the upper half of a float, so that one
 * instruction widens it; by halves of registers it takes three. */
template <typename T>
static __device__ __forceinline__ void pack_wide(float *out, const uint4 &raw);
template <>
__device__ __forceinline__ void
pack_wide<float>(float *out, const uint4 &raw)
{
	out[0] = __uint_as_float(raw.x);
	out[1] = __uint_as_float(raw.y);
	out[2] = __uint_as_float(raw.z);
	out[3] = __uint_as_float(raw.w);
}
template <>
__device__ __forceinline__ void
pack_wide<k3_bf16>(float *out, const uint4 &raw)
{
	const uint32_t pair[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
	for (int i = 0; i < 4; i++) {
		out[2 * i] = __uint_as_float(pair[i] << 16);
		out[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
	}
}

/** Rounds and stores a pack at a 16-byte aligned address. */
template <typename T>
static __device__ __forceinline__ void
pack_store(T *to, const float *in)
{
	const int n = k3_pack<T>::n;
	uint4 raw;
	T *x = reinterpret_cast<T *>(&raw);

#pragma unroll
	for (int i = 0; i < n; i++)
		x[i] = narrow<T>(in[i]);
	*reinterpret_cast<uint4 *>(to) = raw;
}

/** Sum over the 32 lanes, in all of them; every lane takes part. */
static __device__ __forceinline__ float
warp_sum(float x)
{
#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		x += __shfl_xor_sync(0xffffffffu, x, step);
	return x;
}

/** Sum over `lanes` neighbouring lanes, a power of 2, in all of them; every lane takes part. */
static __device__ __forceinline__ float
lanes_sum(float x, int lanes)
{
#pragma unroll
	for (int step = 16; step > 0; step >>= 1) {
		float y = __shfl_xor_sync(0xffffffffu, x, step);
		x += step < lanes ? y : 0.0f;
	}
	return x;
}

static __device__ __forceinline__ float
warp_max(float x)
{
#pragma unroll
	for (int step = 16; step > 0; step >>= 1)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
	return x;
}

/**
 * Sum over a block whose size is a multiple of 32, in all threads.
 * @param part  shared, 32 floats; may be used again after the call
 */
static __device__ __forceinline__ float
block_sum(float x, float *part)
{
	int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;

	x = warp_sum(x);
	if (lane == 0)
		part[warp] = x;
	__syncthreads();
	x = warp_sum(lane < warps ? part[lane] : 0.0f);
	__syncthreads();
	return x;
}

/** 2^x, at most 2 units in the last place; what is below the normal numbers is zero. */
static __device__ __forceinline__ float
power_of_2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/** 1 / x to about an ulp; of infinity 0. */
static __device__ __forceinline__ float
reciprocal(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/** Off by some units of the last place; two instructions of the special function unit, which limits
 * kernels that do little else. */
static __device__ __forceinline__ float
sigmoid(float x)
{
	return reciprocal(1.0f + power_of_2(-1.44269504f * x));
}

/** The next kernel of the stream, if launched by may_start_early, may take the place of blocks that
 * end. */
static __device__ __forceinline__ void
let_successor_start(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/** Until the kernel before this one has ended and its results are there: before anything that it
 * writes is read or written. */
static __device__ __forceinline__ void
wait_for_predecessor(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

/** The kernel may start before the one before it on the stream has ended.  That one must have been
 * launched without this: then the results of those before it are there. */
static inline void
may_start_early(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute)
{
	attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute->val.programmaticStreamSerializationAllowed = 1;
	config->attrs = attribute;
	config->numAttrs = 1;
}

/** Blocks for n elements, per_block each; at least one. */
static inline unsigned
blocks_for(size_t n, size_t per_block)
{
	return n ? (unsigned)((n + per_block - 1) / per_block) : 1;
}

/* The two C functions of an operation from one template: k3_<name>_cuda_f32 and _bf16. */
#define K3_CUDA_BOTH(name, args)                                                                   \
	extern "C" void k3_##name##_cuda_f32(void *const *buf, const struct args *a,               \
					     const struct k3_cuda *cuda)                           \
	{                                                                                          \
		name<float>(buf, a, cuda);                                                         \
	}                                                                                          \
	extern "C" void k3_##name##_cuda_bf16(void *const *buf, const struct args *a,              \
					      const struct k3_cuda *cuda)                          \
	{                                                                                          \
		name<k3_bf16>(buf, a, cuda);                                                       \
	}

/* The same for operations whose floating operands stay as they are in bf16 mode. */
#define K3_CUDA_SAME(name, args)                                                                   \
	extern "C" void k3_##name##_cuda_f32(void *const *buf, const struct args *a,               \
					     const struct k3_cuda *cuda)                           \
	{                                                                                          \
		name(buf, a, cuda);                                                                \
	}                                                                                          \
	extern "C" void k3_##name##_cuda_bf16(void *const *buf, const struct args *a,              \
					      const struct k3_cuda *cuda)                          \
	{                                                                                          \
		name(buf, a, cuda);                                                                \
	}

#endif
