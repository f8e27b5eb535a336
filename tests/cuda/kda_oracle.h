/* KDA token by token in double (model.md 3.3), on the buffers of the chunk operations. */
#ifndef K3_TESTS_CUDA_KDA_ORACLE_H
#define K3_TESTS_CUDA_KDA_ORACLE_H

#include "../../common/op/kda.h"

void kda_oracle_fwd(void *const *buf, const struct k3_kda_chunk_args *a);
void kda_oracle_bwd(void *const *buf, const struct k3_kda_chunk_args *a);

#endif
