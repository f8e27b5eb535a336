/* What k3_data info prints: tab-separated, header line first. */
#ifndef K3_K3T_INFO_H
#define K3_K3T_INFO_H

#include <stdio.h>

/** Size, ids and checksum of .k3t files, one line each; the data's checksums are verified. */
int k3_k3t_info_print(FILE *out, const char *const *paths, size_t n_paths);
/** Loss of the n-gram models of orders 1 .. order, counts from train, on eval. */
int k3_ngram_print(FILE *out, const char *train_path, const char *eval_path, int order);

#endif
