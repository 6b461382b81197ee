#include <ucontext.h>
static ucontext_t home, other; static char stack[65536];
__attribute__((noipa)) void yield(void) { swapcontext(&other, &home); }
__attribute__((noipa)) void step(int n) { if (n) { yield(); step(n - 1); } }
void body(void) { step(2); }
__attribute__((noipa)) void resume(void) { swapcontext(&home, &other); }
int main(void) { getcontext(&other); other.uc_stack.ss_sp = stack; other.uc_stack.ss_size = sizeof stack; other.uc_link = &home;
  makecontext(&other, body, 0); for (int i = 0; i < 3; i++) resume(); return 0; }
