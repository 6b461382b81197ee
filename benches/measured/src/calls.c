/* The functions leaf and fib of main.rs in C, for what another compiler makes of the calls. */

__attribute__((noinline)) static unsigned long leaf(unsigned long n)
{
    __asm__ volatile("");
    return n ^ 1;
}

__attribute__((noinline)) static unsigned long fib(unsigned long n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

unsigned long leaf_in_c(unsigned long calls)
{
    unsigned long sum = 0;
    for (unsigned long n = 0; n < calls; n++)
        sum ^= leaf(n);
    return sum;
}

unsigned long fib_in_c(unsigned long n)
{
    return fib(n);
}
