// A server with several threads, and its client, over the loopback. A request is a text; the answer says how many words it has, how many different
// ones, and a sum over those, which the client knows, as it has made the text of them.
//
// `server serve THREADS`: says its process and port, and serves until its input ends.
// `server ask PORT CONNECTIONS RATE FILE`: asks so many times a second until its input ends, at times that are set beforehand, so that a late answer
// delays no other request's measured beginning. FILE gets two words for each request: when it was to begin, in nanoseconds of CLOCK_MONOTONIC, and
// how long after that its answer was there. Says how many there were and how many answers were wrong.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline))
#define MOST_BYTES (64 << 10)
#define N_BUCKETS 128

typedef struct {
    uint64_t words, different, sum;
} Answer;

typedef struct Word {
    struct Word *next;
    uint64_t hash, count;
    char text[];
} Word;

KEPT static uint64_t hash_of(const char *text, size_t length) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

KEPT static int transfer(int socket, void *bytes, size_t length, int is_sent) {
    for (size_t done = 0; done < length;) {
        ssize_t n = is_sent ? send(socket, (char *)bytes + done, length - done, MSG_NOSIGNAL)
                            : recv(socket, (char *)bytes + done, length - done, 0);
        if (n <= 0)
            return 0;
        done += (size_t)n;
    }
    return 1;
}

KEPT static Word *word_of(Word **buckets, const char *text, size_t length) {
    uint64_t hash = hash_of(text, length);
    Word **place = &buckets[hash % N_BUCKETS];
    for (Word *word = *place; word != NULL; word = word->next)
        if (word->hash == hash && strncmp(word->text, text, length) == 0 && word->text[length] == 0)
            return word;
    Word *word = malloc(sizeof(Word) + length + 1);
    *word = (Word){.next = *place, .hash = hash};
    memcpy(word->text, text, length);
    word->text[length] = 0;
    return *place = word;
}

KEPT static Answer answer_to(const char *text, size_t length) {
    Word *buckets[N_BUCKETS] = {0};
    Answer answer = {0};
    const char *end = text + length;
    while (text < end) {
        const char *blank = memchr(text, ' ', (size_t)(end - text));
        const char *stop = blank == NULL ? end : blank;
        word_of(buckets, text, (size_t)(stop - text))->count++;
        answer.words++;
        text = stop + 1;
    }
    for (int i = 0; i < N_BUCKETS; i++)
        for (Word *word = buckets[i], *next; word != NULL; word = next) {
            next = word->next;
            answer.different++;
            answer.sum += word->hash * word->count * word->count;
            free(word);
        }
    return answer;
}

KEPT static void serve_one(int socket) {
    uint32_t length;
    while (transfer(socket, &length, sizeof(length), 0) && length <= MOST_BYTES) {
        char *text = malloc(length);
        int is_whole = transfer(socket, text, length, 0);
        Answer answer = answer_to(text, is_whole ? length : 0);
        free(text);
        if (!is_whole || !transfer(socket, &answer, sizeof(answer), 1))
            break;
    }
    close(socket);
}

static void *serve(void *listener) {
    for (;;) {
        int socket = accept((int)(intptr_t)listener, NULL, NULL);
        if (socket >= 0)
            serve_one(socket);
    }
}

static void wait_for_end(void) {
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
}

static int serve_all(int n_threads) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        return 1;
    for (int i = 0; i < n_threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)listener);
    }
    printf("%d %d\n", (int)getpid(), ntohs(address.sin_port));
    fflush(stdout);
    wait_for_end();
    return 0;
}

// The client.

#define N_WORDS 200

static int port, n_connections;
static long pause_nanos;
static volatile int is_over;

typedef struct {
    pthread_t thread;
    uint64_t seed, n_asked, n_wrong, room;
    uint64_t (*measured)[2];
} Asker;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t chance(Asker *asker) {
    asker->seed = asker->seed * 6364136223846793005u + 1442695040888963407u;
    return asker->seed >> 33;
}

// Makes a text, and its answer from how often each word was taken.
static uint32_t make(Asker *asker, char *text, Answer *answer) {
    uint64_t counts[N_WORDS] = {0};
    uint64_t n = 50 + chance(asker) % 200;
    size_t length = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word = chance(asker) % N_WORDS;
        counts[word]++;
        length += (size_t)sprintf(text + length, i == 0 ? "w%lu" : " w%lu", word * word);
    }
    *answer = (Answer){.words = n};
    for (uint64_t word = 0; word < N_WORDS; word++) {
        char name[32];
        size_t n_bytes = (size_t)sprintf(name, "w%lu", word * word);
        answer->different += counts[word] > 0;
        answer->sum += hash_of(name, n_bytes) * counts[word] * counts[word];
    }
    return (uint32_t)length;
}

static void *ask(void *given) {
    Asker *asker = given;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int own = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (connect(own, (struct sockaddr *)&address, sizeof(address)) != 0)
        exit(2);
    setsockopt(own, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    struct {
        uint32_t length;
        char text[MOST_BYTES];
    } request;
    uint64_t begin = now() + asker->seed * (uint64_t)pause_nanos / (uint64_t)n_connections;
    while (!is_over) {
        Answer wanted, answer = {0};
        request.length = make(asker, request.text, &wanted);
        struct timespec until = {.tv_sec = (time_t)(begin / 1000000000), .tv_nsec = (long)(begin % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        int is_answered = transfer(own, &request, sizeof(request.length) + request.length, 1) &&
                          transfer(own, &answer, sizeof(answer), 0);
        asker->n_wrong += !is_answered || memcmp(&answer, &wanted, sizeof(answer)) != 0;
        if (asker->n_asked == asker->room)
            asker->measured = realloc(asker->measured, (asker->room = 2 * asker->room + 1024) * 16);
        asker->measured[asker->n_asked][0] = begin;
        asker->measured[asker->n_asked++][1] = now() - begin;
        begin += (uint64_t)pause_nanos;
        if (!is_answered)
            break;
    }
    return NULL;
}

static int ask_all(const char *path, long rate) {
    Asker askers[n_connections];
    memset(askers, 0, sizeof(askers));
    pause_nanos = 1000000000L * n_connections / rate;
    for (int i = 0; i < n_connections; i++) {
        askers[i].seed = (uint64_t)i;
        pthread_create(&askers[i].thread, NULL, ask, &askers[i]);
    }
    wait_for_end();
    is_over = 1;
    FILE *file = fopen(path, "wb");
    uint64_t n_asked = 0, n_wrong = 0;
    for (int i = 0; i < n_connections; i++) {
        pthread_join(askers[i].thread, NULL);
        fwrite(askers[i].measured, 16, askers[i].n_asked, file);
        n_asked += askers[i].n_asked;
        n_wrong += askers[i].n_wrong;
    }
    fclose(file);
    printf("%lu %lu\n", n_asked, n_wrong);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve_all(atoi(argv[2]));
    if (argc != 6 || strcmp(argv[1], "ask") != 0)
        return 2;
    port = atoi(argv[2]);
    n_connections = atoi(argv[3]);
    return ask_all(argv[5], atol(argv[4]));
}
