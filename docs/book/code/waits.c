// Two workers share a lock; one keeps it while it sleeps.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void save(void) { usleep(20000); }

static void store(void) {
    pthread_mutex_lock(&lock);
    save();
    pthread_mutex_unlock(&lock);
}

static void *worker(void *unused) {
    for (int i = 0; i < 3; i++) store();
    return unused;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    puts("done");
}
