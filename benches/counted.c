/* Calls a function as often as it is told, recorded or not: `counted 1000 on`. What a call takes is counted by who runs it (aarch64.py). With a further argument it
   prints where all is in memory. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#include "rftrace_frontend_ffi.h"
#else
static bool rftrace_init(unsigned long n_events, bool is_ring) {
    return n_events > 0 && !is_ring;
}
static void rftrace_enable(void) {
}
static void rftrace_disable(void) {
}
#endif

#define NOT_TRACED __attribute__((no_instrument_function, patchable_function_entry(0)))

static volatile int zero;

__attribute__((noinline, noclone)) int leaf(int x) {
    return x + zero;
}

NOT_TRACED static void print_maps(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    for (int c; maps && (c = getc(maps)) != EOF;)
        putchar(c);
}

NOT_TRACED int main(int argc, char **argv) {
    int n_calls = argc > 2 ? atoi(argv[1]) : 0;
    bool is_on = n_calls && !strcmp(argv[2], "on");
    if (!rftrace_init(100000, false)) {
        fputs("rftrace does not begin\n", stderr);
        return 1;
    }
    if (is_on)
        rftrace_enable();
    for (int i = 0; i < n_calls; i++)
        if (leaf(i) != i)
            abort();
    if (is_on)
        rftrace_disable();
    if (argc > 3)
        print_maps();
    puts("ok");
    return 0;
}
