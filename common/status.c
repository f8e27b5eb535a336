/* Texts of the status codes, from the one list in status.h.  Numbers that are not on the list come
 * from a caller's bug, so they get a text too instead of NULL in a format string. */
#include "status.h"

const char *
k3_status_text(int status)
{
	switch (status) {
	case K3_OK:
		return "no error";
#define X(name, number, text) case -(number): return text;
	K3_STATUS_MAP(X)
#undef X
	default:
		return "unknown status";
	}
}
