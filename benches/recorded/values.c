/* Calls functions whose arguments and results may be recorded, and prints what a call takes, in nanoseconds of the thread's processor time:
 * the median of many batches. The functions take turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALLED __attribute__((noinline, noclone))
#define PLAIN __attribute__((noinline, no_instrument_function))
#define BATCHES 61

static volatile long sink;

/* Of this one no values are ever recorded. */
CALLED int plain(int a, int b) { sink = a; return b; }
CALLED int integers(int a, int b) { sink = a; return b; }
CALLED int floats(double a, float b) { sink = a; return b; }
CALLED int literal(const char *a) { sink = (long)a; return 1; }
CALLED int stacked(const char *a) { sink = (long)a; return 2; }
CALLED int heap(const char *a) { sink = (long)a; return 3; }
CALLED int heap_long(const char *a) { sink = (long)a; return 4; }
CALLED int heap_three(const char *a, const char *b, const char *c) { sink = (long)a; sink = (long)b; sink = (long)c; return 5; }
CALLED int bad(const char *a) { sink = (long)a; return 6; }

static char *short_text, *long_text;

#define BATCH(name, call) PLAIN static void run_##name(int calls) { for (int i = 0; i < calls; i++) call; }
BATCH(plain, plain(i, 2))
BATCH(integers, integers(i, 2))
BATCH(floats, floats(i, 2.5f))
BATCH(literal, literal("a text of the program"))
BATCH(heap, heap(short_text))
BATCH(heap_long, heap_long(long_text))
BATCH(heap_three, heap_three(short_text, long_text, short_text))
BATCH(bad, bad((const char *)0x10))

PLAIN static void run_stacked(int calls)
{
	char text[32] = "a text on the stack";
	for (int i = 0; i < calls; i++)
		stacked(text);
}

static struct {
	const char *name;
	void (*run)(int calls);
	int calls;
} functions[] = {
	{"plain", run_plain, 4000}, {"integers", run_integers, 2000}, {"floats", run_floats, 2000},
	{"literal", run_literal, 2000}, {"stacked", run_stacked, 2000}, {"heap", run_heap, 1000},
	{"heap_long", run_heap_long, 1000}, {"heap_three", run_heap_three, 500},
	/* uftrace needs 0.1 ms for each. */
	{"bad", run_bad, 20},
};
enum { LISTED = sizeof functions / sizeof *functions };

PLAIN static double now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

PLAIN static int by_size(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

PLAIN int main(void)
{
	static double takes[LISTED][BATCHES];

	short_text = strdup("a text on the heap");
	long_text = malloc(10001);
	memset(long_text, 'x', 10000);
	long_text[10000] = 0;
	for (int batch = -2; batch < BATCHES; batch++) {
		for (int each = 0; each < LISTED; each++) {
			double start = now_ns();
			functions[each].run(functions[each].calls);
			if (batch >= 0)
				takes[each][batch] = (now_ns() - start) / functions[each].calls;
		}
	}
	for (int each = 0; each < LISTED; each++) {
		qsort(takes[each], BATCHES, sizeof **takes, by_size);
		printf("%s %.3f\n", functions[each].name, takes[each][BATCHES / 2]);
	}
	return 0;
}
