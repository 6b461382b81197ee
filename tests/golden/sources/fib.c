#include <pthread.h>
#include <stdlib.h>
#include <string.h>
int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
void *work(void *n) { return (void *)(long)fib(*(int *)n + (int)strlen(getenv("PATH")) % 1); }
int main(void) {
    pthread_t threads[2];
    int n[2] = {2, 3};
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, &n[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return fib(atoi("2")) == 0;
}
