/* Traces itself, with the kernel below it when that is instrumented too: it prints, sleeps, and has threads that do both.
 * The trace goes to the first argument, or on Hermit to the folder `trace` of the host's shared folder. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "rftrace_frontend_ffi.h"

#define N_WORKERS 2

/* In the trace too when it is called once only. */
#define TRACED static __attribute__((noinline))

TRACED void nap(void) {
    usleep(20000);
}

TRACED unsigned work(unsigned depth) {
    return depth == 0 ? 0 : depth + work(depth - 1);
}

TRACED void *worker(void *number) {
    unsigned sum = work(3 * (unsigned)(uintptr_t)number);
    nap();
    printf("worker %u: %u\n", (unsigned)(uintptr_t)number, sum);
    return NULL;
}

TRACED int threads(void) {
    pthread_t workers[N_WORKERS];
    for (uintptr_t i = 0; i < N_WORKERS; i++) {
        if (pthread_create(&workers[i], NULL, worker, (void *)(i + 1)))
            return 1;
    }
    for (int i = 0; i < N_WORKERS; i++)
        pthread_join(workers[i], NULL);
    return 0;
}

TRACED int application(void) {
    puts("hello");
    nap();
    int status = threads();
    puts("good bye");
    return status;
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "/root/trace";
    Events *events = rftrace_init(500000, false);
    if (!events) {
        fprintf(stderr, "rftrace: %s\n", rftrace_last_error());
        return 1;
    }
    rftrace_enable();
    int status = application();
    rftrace_disable();
    if (rftrace_dump_full_uftrace(events, directory, "hermitc") != 0) {
        fprintf(stderr, "rftrace: %s\n", rftrace_last_error());
        return 1;
    }
    return status;
}
