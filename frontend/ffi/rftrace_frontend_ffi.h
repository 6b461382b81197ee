/* rftrace for C programs. Build them with `gcc -pg` (or `-pg -mfentry`) and link librftrace_frontend_ffi.a. */
#ifndef rftrace_frontend_ffi_h
#define rftrace_frontend_ffi_h

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The trace buffer. */
typedef struct Events Events;

/*
 * Gives the tracer a buffer for max_event_count function entries and exits, 16 bytes each. Recording is off at first.
 *
 * If overwriting, the buffer is a ring that keeps the most recent events; otherwise recording stops when it is used up.
 * Returns NULL while recording is on, when the size is too small, or when there is no memory.
 *
 * It may be called again while recording is off, for a buffer of another size or mode. What was not written of the one
 * before is gone, and writing with its Events fails.
 *
 * On Linux, with the environment variable RFTRACE_PATCHED=1, calls of the hooks become NOPs while recording is off, and jumps
 * while it is on. With RFTRACE_PATCHABLE=1 functions are recorded in which a compiler has left room for a branch
 * (-fpatchable-function-entry=1 on aarch64; on x86-64 =5, and in libraries only). A value that is neither 0 nor 1 is an error.
 */
Events *rftrace_init(uintptr_t max_event_count, bool overwriting);

/*
 * As rftrace_init, but what is recorded goes to the disk while the program runs, to the folder .recording of out_dir, taken out of a
 * buffer of buffer_bytes (64 MiB are good for any program) by a thread of its own. So the trace is as long as there is room on the disk.
 * An older trace in out_dir is removed.
 *
 * rftrace_dump_full_uftrace makes a trace of it and ends that: another rftrace_init comes first to record again. A program that
 * ends before saves at its exit, with one line on stderr; of one that is killed `rftrace recover` makes a trace. NULL if the buffer before has unsaved
 * records. A child that is forked records nothing. On Linux; the variable RFTRACE_STREAM=DIR, or
 * RFTRACE_STREAM=DIR,64M, has rftrace_init do the same.
 */
Events *rftrace_init_stream(const char *out_dir, uintptr_t buffer_bytes);

/* Starts recording, in all threads. */
void rftrace_enable(void);

/* Stops recording, in all threads. */
void rftrace_disable(void);

/*
 * Stops recording, writes what was recorded as a directory that uftrace reads, with symbols, and empties the buffer.
 *
 * out_dir is created when absent; an older trace in it is replaced. binary_name names the program where the system
 * cannot tell its path (on Hermit). Returns 0, or -1: then what was recorded is kept.
 */
int64_t rftrace_dump_full_uftrace(Events *events, const char *out_dir, const char *binary_name);

/*
 * Stops recording, writes only the records (those of uftrace's .dat files) to a file and empties the buffer.
 * Returns 0, or -1: then what was recorded is kept.
 */
int64_t rftrace_dump_trace(Events *events, const char *outfile);

/*
 * The text, of up to 200 characters, is an event in the trace at this moment of the calling thread: mark:TEXT, with _ for blanks. Does nothing
 * while recording is off. Not in a signal handler. `rftrace record` has a function of this name for the programs that it runs: one that does not
 * link this library finds it by dlsym(RTLD_DEFAULT, "rftrace_mark"), or declares it weak.
 */
void rftrace_mark(const char *text);

/*
 * Writes what the buffer holds at this moment as a directory that uftrace reads, out_dir/snapshot-N-REASON, while recording goes on: other
 * threads do not wait. The reason is an event in the trace. Numbers go on from those that are there. May be called as often as wanted, not in
 * a signal handler: it allocates memory, as much as the buffer has. Returns 0, or -1: then nothing of it stays.
 */
int64_t rftrace_dump(Events *events, const char *out_dir, const char *reason);

/*
 * Records only what the filter lets pass, from now on, also while recording is on: "include=app_*; exclude=*_debug;
 * module=libfoo*; not_module=libbar*; below=work; not_below=malloc; depth=5; min=1us; size=64; entry=poll_*". NULL or ""
 * records everything again. The documentation of Filter in the crate rftrace-frontend describes the rules.
 *
 * Returns how many functions are recorded, or -1: then the filter before stays in force. The variable RFTRACE_FILTER has
 * the same for programs that cannot be changed.
 */
int64_t rftrace_set_filter(Events *events, const char *filter);

/* A function that can be recorded. */
typedef struct rftrace_function {
    /* As the trace shows it; empty if the file does not tell. */
    const char *name;
    /* The file name of the program or library. */
    const char *module;
    uintptr_t address;
    /* The size of its code, 0 if unknown. */
    uint64_t code_bytes;
    /* Whether the filter in force lets it pass. */
    bool recorded;
} rftrace_function;

/*
 * Calls visit with context and each function that can be recorded, by address. What it gets is valid until it returns.
 * Returns how many they are, or -1. visit may be NULL.
 */
int64_t rftrace_functions(Events *events, void (*visit)(void *context, const rftrace_function *function),
                          void *context);

/* Why the last call on this thread failed, as text. Valid until the next failure. */
const char *rftrace_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
