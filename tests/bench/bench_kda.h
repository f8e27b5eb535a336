/* Parts of the family kda. */
#ifndef K3_TESTS_BENCH_KDA_H
#define K3_TESTS_BENCH_KDA_H

struct bench;
void bench_kda_chunk(struct bench *b);
void bench_kda_conv(struct bench *b);
void bench_kda_out(struct bench *b);

#endif
