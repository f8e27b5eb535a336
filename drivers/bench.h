/* Parts of k3_bench; each reads its own command line. */
#ifndef K3_DRIVERS_BENCH_H
#define K3_DRIVERS_BENCH_H

/** A part of k3_bench: argv[0] is its name, e.g. "op". @return exit status 0, 1 or 2 */
typedef int (*k3_bench_part)(int argc, char **argv);

/** Checks an operation against a plain form, then times it. */
int k3_bench_op(int argc, char **argv);
/** Times whole training steps on random ids. */
int k3_bench_step(int argc, char **argv);
/** Times the vision tower alone. */
int k3_bench_vision(int argc, char **argv);
/** Measures the machine's rates and writes the file that the cost model reads. */
int k3_bench_calibrate(int argc, char **argv);

#endif
