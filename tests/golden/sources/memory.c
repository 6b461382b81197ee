#include <stdlib.h>
#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>
__attribute__((noipa)) void *keep(int n) { return malloc(n); }
__attribute__((noipa)) void lose(int n) { int fd = open("/dev/null", 0); void *block = malloc(n); free(block); close(fd); }
int main(void) { void *kept = keep(100); lose(1000); lose(20); keep(30); free(kept); return 0; }
