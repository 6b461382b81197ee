// Forgets a block for each request, and a file for one of them.
#include <stdio.h>
#include <stdlib.h>

static char *copy(int request) {
    char *text = malloc(100);
    sprintf(text, "request %d", request);
    return text;
}

static void serve(int request) {
    char *text = copy(request);
    if (request == 3) fopen("/etc/hosts", "r");
    if (request % 2) free(text);
}

int main(void) {
    for (int request = 0; request < 10; request++) serve(request);
    puts("served");
}
