/* Rows of matrices in device memory by the copy engine: boxes of a matrix that has a map, or runs of
 * bytes.  A copy ends in a phase of a barrier in shared memory, which has to expect its bytes.
 * One thread starts a copy; addresses in shared memory are multiples of 128 bytes for boxes, of 16
 * for runs.
 */
#ifndef K3_CUDA_TENSOR_MAP_CUH
#define K3_CUDA_TENSOR_MAP_CUH
#include <cudaTypedefs.h>

#include "shared.cuh"

/** True in one lane of a whole warp. */
static __device__ __forceinline__ bool
lane_elected(void)
{
	uint32_t one;

	asm volatile("{.reg .pred p;\n"
		     "elect.sync _|p, 0xffffffff;\n"
		     "selp.u32 %0, 1, 0, p;}"
		     : "=r"(one));
	return one;
}

/** A whole box, whose elements outside of the matrix are zeros. */
static __device__ __forceinline__ void
copy_box(uint32_t to, const CUtensorMap *map, int col, int row, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
		     "l"(map), "r"(col), "r"(row), "r"(barrier)
		     : "memory");
}

static inline PFN_cuTensorMapEncodeTiled_v12000
tensor_map_encoder(void)
{
	static PFN_cuTensorMapEncodeTiled_v12000 encode;
	enum cudaDriverEntryPointQueryResult found;
	void *f = NULL;

	if (encode)
		return encode;
#if CUDART_VERSION >= 12050
	K3_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
						       cudaEnableDefault, &found));
#else
	K3_CUDA_CHECK(
		cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found));
#endif
	K3_CUDA_CHECK(f ? cudaSuccess : cudaErrorSymbolNotFound);
	return encode = (PFN_cuTensorMapEncodeTiled_v12000)f;
}

/** Boxes [box_rows, box_cols] of a matrix [rows, cols] without gaps; rows are multiples of 16
 * bytes. */
template <typename T>
static inline void
tensor_map_of(CUtensorMap *map, const void *p, size_t rows, size_t cols, uint32_t box_rows,
	      uint32_t box_cols)
{
	const cuuint64_t dim[2] = {cols, rows}, stride[1] = {cols * sizeof(T)};
	const cuuint32_t box[2] = {box_cols, box_rows}, step[2] = {1, 1};

	K3_CUDA_CHECK(tensor_map_encoder()(
		map,
		sizeof(T) == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
		2, (void *)p, dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
		CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

#endif
