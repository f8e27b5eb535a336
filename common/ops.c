#include "ops.h"

static const struct {
	const char *name;
	enum k3_family family;
} table[] = {
#define X(id, name, family, args, kernel) [K3_OP_##id] = { #name, K3_FAMILY_##family },
	K3_COMPUTE_OP_MAP(X)
#undef X
#define X(id, name, family) [K3_OP_##id] = { #name, K3_FAMILY_##family },
	K3_IO_OP_MAP(X) K3_COMM_OP_MAP(X)
#undef X
};

const char *
k3_op_name(enum k3_op op)
{
	return op < K3_N_OPS ? table[op].name : "unknown";
}

enum k3_family
k3_op_family(enum k3_op op)
{
	return table[op].family;
}

const char *
k3_family_name(enum k3_family family)
{
	static const char *const name[] = {
#define X(id, text) [K3_FAMILY_##id] = text,
		K3_FAMILY_MAP(X)
#undef X
	};

	return family < K3_N_FAMILIES ? name[family] : "unknown";
}

int
k3_op_takes_bf16(enum k3_op op)
{
	static const char takes[K3_N_OPS] = {
#define X(id, name, args, kernel) [K3_OP_##id] = 1,
		K3_BF16_OP_MAP(X)
#undef X
	};

	return op < K3_N_OPS && takes[op];
}

int
k3_op_is_comm(enum k3_op op)
{
	return op < K3_N_OPS && table[op].family == K3_FAMILY_COMM;
}
