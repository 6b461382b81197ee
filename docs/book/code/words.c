// Counts words. Looking a word up goes through all words before it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *words[50000];
static int counts[50000], n_words;

static int same(const char *a, const char *b) { return strcmp(a, b) == 0; }

static int find(const char *word) {
    for (int i = 0; i < n_words; i++)
        if (same(words[i], word)) return i;
    return -1;
}

static void add(const char *word) {
    int place = find(word);
    if (place < 0) {
        place = n_words++;
        words[place] = strdup(word);
    }
    counts[place]++;
}

static void read_all(int n) {
    char word[16];
    for (int i = 0; i < n; i++) {
        sprintf(word, "w%d", i * 7919 % 1000);
        add(word);
    }
}

int main(int argc, char **argv) {
    read_all(argc > 1 ? atoi(argv[1]) : 2000);
    printf("%d words\n", n_words);
}
