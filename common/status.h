/* Status codes of the whole project.
 *
 * A function that can fail returns an int: K3_OK (0) or a negative K3_E... value.  The function
 * that detects a failure logs it with the values that were wrong; those above pass it on.
 */
#ifndef K3_STATUS_H
#define K3_STATUS_H

#define K3_STATUS_MAP(X)                                             \
	X(EINVAL, 1, "an argument is outside its domain")            \
	X(ENOMEM, 2, "out of memory")                                \
	X(EIO, 3, "a file could not be read or written")             \
	X(ESHAPE, 4, "tensor shapes do not fit together")            \
	X(EFORMAT, 5, "a file does not follow its format")           \
	X(ENODEV, 6, "no device can run this")                       \
	X(EPLAN, 7, "the plan is unsound")                           \
	X(ELIMIT, 8, "a limit would be exceeded")                    \
	X(ENOENT, 9, "something that was named does not exist")      \
	X(EEXIST, 10, "something exists already")                    \
	X(EMATH, 11, "a loss or gradient is not finite")             \
	X(EDIFFER, 12, "two things that must be equal differ")       \
	X(EINTR, 13, "interrupted by a signal")

enum k3_status {
	K3_OK = 0,
#define X(name, number, text) K3_##name = -(number),
	K3_STATUS_MAP(X)
#undef X
};

/** Text of a status; never NULL. */
const char *k3_status_text(int status);

/** Sets ret and leaves the function through its exit label when a call fails. */
#define K3_TRY(call)                          \
	do {                                  \
		ret = (call);                 \
		if (ret != K3_OK)             \
			goto out;             \
	} while (0)

#endif
