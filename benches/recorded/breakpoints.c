// The way of functracer: breakpoints at malloc, calloc, realloc and free, three stops for each call and a walk of the stack from outside.
// Calls of a program with one thread are counted, and written as text to a file.
//
//     breakpoints FILE PROGRAM [ARGUMENT]…
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <libunwind-ptrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;
static FILE *out;
static unw_addr_space_t space;
static void *unwinding;

static const char *names[] = {"malloc", "calloc", "realloc", "free"};
static unsigned long places[4], words[4];

static unsigned long base_of(pid_t pid, const char *library) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    unsigned long base = 0;
    while (!base && fgets(line, sizeof line, maps))
        if (strstr(line, library)) base = strtoul(line, NULL, 16);
    fclose(maps);
    return base;
}

static unsigned long entry_of(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/auxv", pid);
    int file = open(path, O_RDONLY);
    Elf64_auxv_t one;
    unsigned long entry = 0;
    while (read(file, &one, sizeof one) == sizeof one)
        if (one.a_type == AT_ENTRY) entry = one.a_un.a_val;
    close(file);
    return entry;
}

static unsigned long set(unsigned long place) {
    unsigned long word = ptrace(PTRACE_PEEKTEXT, child, place, 0);
    ptrace(PTRACE_POKETEXT, child, place, (word & ~0xfful) | 0xcc);
    return word;
}

static void clear(unsigned long place, unsigned long word) { ptrace(PTRACE_POKETEXT, child, place, word); }

// Goes on until the next stop. Returns whether there is one.
static int go_on(int request) {
    int status, number = 0;
    for (;;) {
        if (ptrace(request, child, 0, number) || waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) return 0;
        if (WSTOPSIG(status) == SIGTRAP) return 1;
        number = WSTOPSIG(status);
    }
}

static void backtrace(void) {
    unw_cursor_t cursor;
    unw_init_remote(&cursor, space, unwinding);
    for (int depth = 0; depth < 64 && unw_step(&cursor) > 0; depth++) {
        unw_word_t ip;
        unw_get_reg(&cursor, UNW_REG_IP, &ip);
        fprintf(out, "   0x%08lx\n", (unsigned long)ip - 1);
    }
}

int main(int n, char **arguments) {
    if (n < 3) return 2;
    out = fopen(arguments[1], "w");
    child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(arguments[2], arguments + 2);
        _exit(127);
    }
    waitpid(child, NULL, 0);
    space = unw_create_addr_space(&_UPT_accessors, 0);
    unw_set_caching_policy(space, UNW_CACHE_GLOBAL);
    unwinding = _UPT_create(child);
    // Libraries are there when the program's first instruction is reached.
    unsigned long entry = entry_of(child), word = set(entry);
    if (!go_on(PTRACE_CONT)) return 1;
    clear(entry, word);
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, child, 0, &registers);
    registers.rip = entry;
    ptrace(PTRACE_SETREGS, child, 0, &registers);
    unsigned long ours = base_of(getpid(), "/libc.so.6"), theirs = base_of(child, "/libc.so.6");
    for (int i = 0; i < 4; i++) {
        places[i] = (unsigned long)dlsym(RTLD_DEFAULT, names[i]) - ours + theirs;
        words[i] = set(places[i]);
    }
    long calls = 0;
    while (go_on(PTRACE_CONT)) {
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        unsigned long at = registers.rip - 1;
        int which = 0;
        while (which < 4 && places[which] != at) which++;
        if (which == 4) continue;
        // The instruction that was there, and a breakpoint where the function returns to.
        unsigned long back = ptrace(PTRACE_PEEKDATA, child, registers.rsp, 0), argument = registers.rdi;
        unsigned long sp = registers.rsp;
        registers.rip = at;
        ptrace(PTRACE_SETREGS, child, 0, &registers);
        clear(at, words[which]);
        if (!go_on(PTRACE_SINGLESTEP)) break;
        set(at);
        unsigned long back_word = set(back);
        for (;;) {
            if (!go_on(PTRACE_CONT)) return 0;
            ptrace(PTRACE_GETREGS, child, 0, &registers);
            if (registers.rip - 1 == back && registers.rsp > sp) break;
            // A call within: only the outermost one is told.
            unsigned long inner = registers.rip - 1;
            int other = 0;
            while (other < 4 && places[other] != inner) other++;
            if (other == 4) return 1;
            registers.rip = inner;
            ptrace(PTRACE_SETREGS, child, 0, &registers);
            clear(inner, words[other]);
            if (!go_on(PTRACE_SINGLESTEP)) return 0;
            set(inner);
        }
        clear(back, back_word);
        registers.rip = back;
        ptrace(PTRACE_SETREGS, child, 0, &registers);
        fprintf(out, "%ld. %s(%lu) = 0x%08llx\n", calls++, names[which], argument, registers.rax);
        if (which != 3) backtrace();
    }
    fclose(out);
    fprintf(stderr, "%ld\n", calls);
    return 0;
}
