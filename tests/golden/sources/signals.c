#include <setjmp.h>
#include <signal.h>
static sigjmp_buf back;
__attribute__((noipa)) void leave(void) { siglongjmp(back, 1); }
void on_usr1(int n) { (void)n; }
void on_usr2(int n) { (void)n; leave(); }
__attribute__((noipa)) int inner(int sig) { raise(sig); return sig; }
__attribute__((noipa)) int outer(int sig) { return inner(sig) + 1; }
int main(void) { signal(SIGUSR1, on_usr1); signal(SIGUSR2, on_usr2); outer(SIGUSR1);
  if (!sigsetjmp(back, 1)) outer(SIGUSR2); return outer(SIGUSR1) == 0; }
