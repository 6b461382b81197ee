#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) int child(int n) { return n + 1; }
__attribute__((noipa)) int parent(int n) { return n - 1; }
int main(int argc, char **argv) { if (argc > 1) return child(0);
  if (fork() == 0) { child(1); _exit(3); }
  wait(0); if (fork() == 0) { execl(argv[0], argv[0], "again", (char *)0); _exit(9); }
  wait(0); return parent(1); }
