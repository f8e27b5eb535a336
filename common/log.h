/* Messages for people, on stderr: "k3 train: error: text".
 *
 * K3_LOG=LEVEL[,AREA:LEVEL...] chooses what is shown, e.g. K3_LOG=info,planner:debug.  Areas are
 * the folder names (common codelets tasks planner drivers).  Levels: error warn info debug.
 * Nothing is logged inside a running task.
 */
#ifndef K3_LOG_H
#define K3_LOG_H

enum k3_log_level { K3_LOG_ERROR, K3_LOG_WARN, K3_LOG_INFO, K3_LOG_DEBUG };

/** Name shown before each message, e.g. "k3_train"; the string must live on. */
void k3_log_program(const char *name);

/** Logs one line; fmt has no newline. Thread-safe. */
void k3_log(enum k3_log_level level, const char *area, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define k3_error(area, ...) k3_log(K3_LOG_ERROR, area, __VA_ARGS__)
#define k3_warn(area, ...) k3_log(K3_LOG_WARN, area, __VA_ARGS__)
#define k3_info(area, ...) k3_log(K3_LOG_INFO, area, __VA_ARGS__)
#define k3_debug(area, ...) k3_log(K3_LOG_DEBUG, area, __VA_ARGS__)

/** Our bug: prints file, line and text, then aborts; in release builds too. */
void k3_abort(const char *file, int line, const char *text) __attribute__((noreturn));

#define K3_ASSERT(cond) \
	((cond) ? (void)0 : k3_abort(__FILE__, __LINE__, "assertion failed: " #cond))

#endif
