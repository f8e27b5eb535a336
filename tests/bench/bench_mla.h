/* Parts of the family mla. */
#ifndef K3_TESTS_BENCH_MLA_H
#define K3_TESTS_BENCH_MLA_H

struct bench;
void bench_mla_attn(struct bench *b);
void bench_mla_expand(struct bench *b);
void bench_mla_out(struct bench *b);

#endif
