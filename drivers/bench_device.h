/* The device beside which cases and steps are judged (inside drivers/ and tests/bench/). */
#ifndef K3_DRIVERS_BENCH_DEVICE_H
#define K3_DRIVERS_BENCH_DEVICE_H
#include <stdbool.h>
#include <stddef.h>

struct k3_cuda;
struct k3i_device;

enum k3i_device_limit {
	K3I_DEVICE_COPY,   /* 512 MiB from place to place: bytes read and written */
	K3I_DEVICE_PRODUCT /* cuBLAS, square: 8192 in bf16, 4096 in fp32 */
};

/**
 * Takes device 0 with a stream of its own.
 * @param scratch_bytes  of the kernels that will run
 * @return K3_OK, K3_ENODEV (no device, or a build without CUDA; logged), K3_ENOMEM (logged)
 */
int k3i_device_open(struct k3i_device **device, bool bf16, size_t scratch_bytes);
/** NULL is legal. */
void k3i_device_close(struct k3i_device *device);
/** At least so much scratch for kernels; waits when it grows. Memory that is not there ends the program. */
void k3i_device_scratch(struct k3i_device *device, size_t bytes);
const struct k3_cuda *k3i_device_cuda(const struct k3i_device *device);
/** "NVIDIA H200, 132 multiprocessors, driver 13.0" */
void k3i_device_name(char *name, size_t bytes);
/** Bytes of the device that are taken, by whatever program, without those of k3i_device_open. */
double k3i_device_bytes_used(const struct k3i_device *device);

/** Launches a limit's work once. @return bytes or flops */
double k3i_device_launch(const struct k3i_device *device, enum k3i_device_limit limit);
/** Bytes or flops a second of a limit, median of some runs; waits. */
double k3i_device_rate(const struct k3i_device *device, enum k3i_device_limit limit);

/* Marks on the device's stream. */
enum { K3I_DEVICE_MARKS = 4096 };
/** Sets mark i, which is not waited for. */
void k3i_device_mark(struct k3i_device *device, size_t i);
/** Waits for all that was launched. */
void k3i_device_wait(const struct k3i_device *device);
/** Seconds between two marks, waited for before. */
double k3i_device_seconds(const struct k3i_device *device, size_t from, size_t to);

#endif
