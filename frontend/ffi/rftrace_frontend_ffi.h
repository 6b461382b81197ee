/*
 * rftrace for C programs. Look at the trace with `rftrace replay DIR`: it shows every call in time order.
 *
 * Build the program with `gcc -pg` (or `-pg -mfentry`) and link librftrace_frontend_ffi.a:
 *
 *     Events *events = rftrace_init(1000000, false);
 *     rftrace_enable();
 *     work();
 *     rftrace_disable();
 *     if (rftrace_dump_full_uftrace(events, "trace", "program") != 0)
 *         fprintf(stderr, "%s\n", rftrace_last_error());
 */
#ifndef rftrace_frontend_ffi_h
#define rftrace_frontend_ffi_h

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of the trace buffer. */
typedef struct Events Events;

/*
 * Gives the tracer a buffer for max_event_count function entries and exits, 16 bytes each. Recording is off at first.
 *
 * With overwriting, the buffer is a ring of the most recent events. Otherwise recording stops when the buffer is used
 * up. Returns NULL while recording is on, if the size is below the minimum, and if there is no memory for the buffer.
 *
 * A program may call it again while recording is off, for a buffer of another size or mode. Unwritten events of the old
 * buffer are lost, and a dump with its Events fails.
 *
 * Environment variables, on Linux; each is 1 or 0, and another value is an error:
 * - RFTRACE_PATCHED=1: calls of the hooks become NOPs while recording is off, and jumps while it is on.
 * - RFTRACE_PATCHABLE=1: also records functions with room for a branch, compiled with -fpatchable-function-entry=1 on
 *   aarch64; on x86-64 with =5, and in libraries only.
 */
Events *rftrace_init(uintptr_t max_event_count, bool overwriting);

/*
 * Like rftrace_init, but a thread writes the records to the disk while the program runs, to the folder .recording of
 * out_dir. So the disk limits the length of the trace, not the buffer of buffer_bytes: 64 MiB suit any program. Removes
 * an older trace in out_dir. On Linux only.
 *
 * rftrace_dump_full_uftrace makes the trace and ends the stream: call rftrace_init to record again. A program without
 * this call saves at its exit, with one line on stderr. After a kill, `rftrace recover` makes the trace. A forked child
 * records nothing.
 *
 * Returns NULL if the old buffer has unsaved records, and for the reasons of rftrace_init. With the environment
 * variable RFTRACE_STREAM=DIR, or RFTRACE_STREAM=DIR,64M, rftrace_init does the same.
 */
Events *rftrace_init_stream(const char *out_dir, uintptr_t buffer_bytes);

/* Starts recording, on all threads. */
void rftrace_enable(void);

/* Stops recording, on all threads. */
void rftrace_disable(void);

/*
 * Stops recording, writes the trace to the directory out_dir, with symbols, and empties the buffer. `rftrace replay
 * OUT_DIR` shows the trace; uftrace reads it too.
 *
 * Creates out_dir if it is absent, and replaces an older trace in it. binary_name is the program's name on systems that
 * do not report its path (Hermit). Returns 0, or -1 on failure; the buffer keeps its records then.
 */
int64_t rftrace_dump_full_uftrace(Events *events, const char *out_dir, const char *binary_name);

/*
 * Stops recording, writes only the records (in the format of uftrace's .dat files) to the file outfile, and empties the
 * buffer. Returns 0, or -1 on failure; the buffer keeps its records then.
 */
int64_t rftrace_dump_trace(Events *events, const char *outfile);

/*
 * Marks the present moment on the calling thread. The trace shows an event mark:TEXT, with up to 200 characters of text
 * and _ for blanks. It does nothing while recording is off. Never call it in a signal handler.
 *
 * `rftrace record` provides a function of this name. A program without this library finds it by
 * dlsym(RTLD_DEFAULT, "rftrace_mark"), or declares it weak.
 */
void rftrace_mark(const char *text);

/*
 * Writes a trace of the buffer's present contents to the directory out_dir/snapshot-N-REASON, while recording goes on.
 * Other threads do not wait. The reason is an event in the trace. Numbers continue those of existing snapshots.
 *
 * It allocates as much memory as the buffer has, so never call it in a signal handler. Returns 0, or -1 on failure; an
 * incomplete snapshot is removed.
 */
int64_t rftrace_dump(Events *events, const char *out_dir, const char *reason);

/*
 * Replaces the filter, also while recording is on. From now on only calls that pass it are recorded. NULL or "" removes
 * the filter. Example: "include=app_*; exclude=*_debug; module=libfoo*; not_module=libbar*; below=work;
 * not_below=malloc; depth=5; min=1us; size=64; entry=poll_*". The documentation of Filter in the crate rftrace-frontend
 * describes the rules.
 *
 * Returns the number of recorded functions, or -1 on failure; the previous filter stays in force then. For an unchanged
 * program, the environment variable RFTRACE_FILTER sets the filter.
 */
int64_t rftrace_set_filter(Events *events, const char *filter);

/* A function that can be recorded. */
typedef struct rftrace_function {
    /* The name in the trace; empty if the file has no name for it. */
    const char *name;
    /* The file name of the program or library. */
    const char *module;
    /* The address of the first byte in memory. */
    uintptr_t address;
    /* The size of its code in bytes; 0 if unknown. */
    uint64_t code_bytes;
    /* True if the filter in force records it. */
    bool recorded;
} rftrace_function;

/*
 * Calls visit with context and each function that can be recorded, in the order of addresses. The data of a function is
 * valid until visit returns. visit may be NULL. Returns the number of functions, or -1 on failure.
 */
int64_t rftrace_functions(Events *events, void (*visit)(void *context, const rftrace_function *function),
                          void *context);

/*
 * Returns the message of the last failure on this thread; an empty text before the first failure. It is valid until the
 * next failure.
 */
const char *rftrace_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
