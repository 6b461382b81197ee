// Calls of a small function: nanoseconds of processor time for each with its share of the loop, median of many batches.
// With an argument the floor: two time stamps with a 16-byte store each, and no hook.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

#define N_BATCHES 61
#define N_CALLS 20000
#define PLACES 65536

static uint64_t places[2 * PLACES];

__attribute__((noinline)) int leaf(int x)
{
	asm volatile("" : "+r"(x));
	return x + 1;
}

__attribute__((no_instrument_function)) static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((no_instrument_function)) static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

// The loops are in functions that are called rarely.
__attribute__((noinline)) static int calls(int x)
{
	for (int i = 0; i < N_CALLS; i++)
		x = leaf(x);
	return x;
}

__attribute__((noinline)) static int stamps(int x)
{
	static unsigned place;
	for (int i = 0; i < N_CALLS; i++) {
		for (int k = 0; k < 2; k++) {
			uint64_t *record = &places[2 * (place++ % PLACES)];
			((volatile uint64_t *)record)[1] = x;
			((volatile uint64_t *)record)[0] = __rdtsc();
		}
		x = x + 1;
		asm volatile("" : "+r"(x));
	}
	return x;
}

int main(int argc, char **argv)
{
	(void)argv;
	static double times[N_BATCHES];
	volatile int sum = 0;
	for (int i = 0; i < N_BATCHES; i++) {
		double start = now();
		sum = argc > 1 ? stamps(sum) : calls(sum);
		times[i] = (now() - start) / N_CALLS;
	}
	qsort(times, N_BATCHES, sizeof *times, compare);
	fprintf(stderr, "nanoseconds: %f\n", times[N_BATCHES / 2]);
	return 0;
}
