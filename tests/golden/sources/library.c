#include <stdlib.h>
#include <string.h>
#include <stdio.h>
__attribute__((noipa)) int count(const char *text) { return (int)strlen(text) + atoi("3"); }
int main(int argc, char **argv) { (void)argv; char *copy = strdup("four"); int n = count(copy); free(copy); return n - 7 + argc - 1; }
