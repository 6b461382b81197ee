#include <pthread.h>
#include <unistd.h>
__attribute__((noipa)) int read_at(int *p) { return *p; }
__attribute__((noipa)) int work(int n) { return n ? n + work(n - 1) : 0; }
void *run(void *p) { work(2); pause(); return p; }
int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); while (work(1) < 1); usleep(2000); return read_at(0); }
