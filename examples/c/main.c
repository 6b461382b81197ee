/* Traces itself: func1 -> func2 -> func3, three times, into the directory `trace` (or the first argument). */
#include <stdio.h>

#include "rftrace_frontend_ffi.h"

void func3(void) {
    puts("func3");
}

void func2(void) {
    puts("func2");
    func3();
}

void func1(void) {
    puts("func1");
    func2();
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "trace";
    Events *events = rftrace_init(10000, false);
    if (!events) {
        fprintf(stderr, "rftrace: %s\n", rftrace_last_error());
        return 1;
    }
    rftrace_enable();
    func1();
    func1();
    func1();
    if (rftrace_dump_full_uftrace(events, directory, argv[0]) != 0) {
        fprintf(stderr, "rftrace: %s\n", rftrace_last_error());
        return 1;
    }
    return 0;
}
