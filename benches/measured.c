/* The measured program in C, for `uftrace record`: see measured.rs. Only `cost leaf|fib on 1`. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { batches = 15, calls = 40000 };

__attribute__((noinline)) static unsigned long leaf(unsigned long n)
{
    __asm__ volatile("");
    return n ^ 1;
}

__attribute__((noinline)) static unsigned long fib(unsigned long n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

__attribute__((no_instrument_function)) static unsigned long fib_calls(unsigned long n)
{
    unsigned long last = 1, count = 1;
    for (unsigned long i = 1; i < n; i++) {
        unsigned long next = last + count + 1;
        last = count;
        count = next;
    }
    return count;
}

__attribute__((no_instrument_function)) static unsigned long cpu_nanos(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000UL + time.tv_nsec;
}

int main(int argc, char **argv)
{
    unsigned long n = 1, sum = 0;
    if (argc < 3)
        return 2;
    while (fib_calls(n + 1) <= calls)
        n++;
    for (int batch = 0; batch <= batches; batch++) {
        unsigned long made = calls, start = cpu_nanos();
        if (strcmp(argv[2], "fib") == 0) {
            sum += fib(n);
            made = fib_calls(n);
        } else {
            for (unsigned long i = 0; i < calls; i++)
                sum ^= leaf(i);
        }
        if (batch > 0)
            printf("result %f\n", (double)(cpu_nanos() - start) / made);
    }
    return sum == 42;
}
