/* Element types and conversion of stored elements.
 *
 * The format is little-endian and gives no alignment, so every element is copied out before it is
 * looked at.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "log.h"
#include "safetensors_file.h"
#include "status.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data are little-endian");

static const struct {
	const char *name;
	size_t bytes;
} dtypes[] = {
	[K3_F32] = { "F32", 4 }, [K3_F64] = { "F64", 8 }, [K3_BF16] = { "BF16", 2 },
	[K3_F16] = { "F16", 2 }, [K3_I32] = { "I32", 4 }, [K3_I64] = { "I64", 8 },
	[K3_U8] = { "U8", 1 },   [K3_I8] = { "I8", 1 },   [K3_I16] = { "I16", 2 },
	[K3_U16] = { "U16", 2 }, [K3_U32] = { "U32", 4 }, [K3_U64] = { "U64", 8 },
	[K3_BOOL] = { "BOOL", 1 },
};

size_t
k3_dtype_bytes(enum k3_dtype dtype)
{
	return dtypes[dtype].bytes;
}

const char *
k3_dtype_name(enum k3_dtype dtype)
{
	return dtypes[dtype].name;
}

bool
k3i_dtype_parse(enum k3_dtype *dtype, const char *name)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (strcmp(dtypes[i].name, name) == 0) {
			*dtype = (enum k3_dtype)i;
			return true;
		}
	return false;
}

static int
range_check(const struct k3_st_tensor *t, uint64_t first, uint64_t n)
{
	if (first <= t->n_elems && n <= t->n_elems - first)
		return K3_OK;
	k3_error("common",
	         "tensor %s: elements %" PRIu64 " and the next %" PRIu64 " were asked for, "
	         "it has %" PRIu64,
	         t->name, first, n, t->n_elems);
	return K3_EINVAL;
}

static int
dtype_refuse(const struct k3_st_tensor *t, const char *allowed)
{
	k3_error("common", "tensor %s: dtype %s, allowed here: %s", t->name,
	         k3_dtype_name(t->dtype), allowed);
	return K3_EFORMAT;
}

static double
half_to_double(uint16_t bits)
{
	int exponent = (bits >> 10) & 31, fraction = bits & 1023;
	double magnitude;

	if (exponent == 31)
		magnitude = fraction ? (double)NAN : (double)INFINITY;
	else if (exponent == 0)
		magnitude = ldexp(fraction, -24);
	else
		magnitude = ldexp(1024 + fraction, exponent - 25);
	return bits & 0x8000 ? -magnitude : magnitude;
}

/* One element of a floating-point type; at points to its first byte. */
static double
element_f64(enum k3_dtype dtype, const unsigned char *at)
{
	uint16_t half;
	uint32_t word;
	float single;
	double value;

	switch (dtype) {
	case K3_F32:
		memcpy(&single, at, sizeof(single));
		return (double)single;
	case K3_BF16:
		memcpy(&half, at, sizeof(half));
		word = (uint32_t)half << 16;
		memcpy(&single, &word, sizeof(single));
		return (double)single;
	case K3_F16:
		memcpy(&half, at, sizeof(half));
		return half_to_double(half);
	default:
		memcpy(&value, at, sizeof(value));
		return value;
	}
}

static int
float_check(const struct k3_st_tensor *t, uint64_t first, uint64_t n)
{
	if (t->dtype != K3_F32 && t->dtype != K3_BF16 && t->dtype != K3_F16 && t->dtype != K3_F64)
		return dtype_refuse(t, "F32 BF16 F16 F64");
	return range_check(t, first, n);
}

int
k3_st_read_f32(const struct k3_st_tensor *t, uint64_t first, uint64_t n, float *out)
{
	int ret = float_check(t, first, n);

	if (ret != K3_OK || n == 0)
		return ret;
	size_t bytes = k3_dtype_bytes(t->dtype);
	const unsigned char *at = (const unsigned char *)t->data + first * bytes;
	if (t->dtype == K3_F32) {
		memcpy(out, at, n * bytes);
		return K3_OK;
	}
	for (uint64_t i = 0; i < n; i++)
		out[i] = (float)element_f64(t->dtype, at + i * bytes);
	return K3_OK;
}

int
k3_st_read_f64(const struct k3_st_tensor *t, uint64_t first, uint64_t n, double *out)
{
	int ret = float_check(t, first, n);

	if (ret != K3_OK)
		return ret;
	size_t bytes = k3_dtype_bytes(t->dtype);
	const unsigned char *at = (const unsigned char *)t->data + first * bytes;
	for (uint64_t i = 0; i < n; i++)
		out[i] = element_f64(t->dtype, at + i * bytes);
	return K3_OK;
}

int
k3_st_read_i32(const struct k3_st_tensor *t, uint64_t first, uint64_t n, int32_t *out)
{
	if (t->dtype != K3_I32 && t->dtype != K3_I64 && t->dtype != K3_U8)
		return dtype_refuse(t, "I32 I64 U8");
	int ret = range_check(t, first, n);
	if (ret != K3_OK)
		return ret;
	size_t bytes = k3_dtype_bytes(t->dtype);
	const unsigned char *at = (const unsigned char *)t->data + first * bytes;
	for (uint64_t i = 0; i < n; i++, at += bytes) {
		int64_t wide;
		if (t->dtype == K3_U8) {
			out[i] = *at;
		} else if (t->dtype == K3_I32) {
			memcpy(&out[i], at, sizeof(out[i]));
		} else {
			memcpy(&wide, at, sizeof(wide));
			if (wide < INT32_MIN || wide > INT32_MAX) {
				k3_error("common", "tensor %s: element %" PRIu64 " is %" PRId64
				         ", outside 32 bits", t->name, first + i, wide);
				return K3_EFORMAT;
			}
			out[i] = (int32_t)wide;
		}
	}
	return K3_OK;
}
