#!/usr/bin/env python3
"""What attaching does to programs: none hangs, no byte of code stays changed, no answer is wrong.

benches/attach.py RFTRACE [--attaches N] [--minutes M] [--functions N] [--server N]: N attaches (1,000) to a program whose threads do nothing but `malloc`, half of them by
slots and half by branches (`-P '*'`); for M minutes (10) cycles of attach, 2,000 functions patched, record, leave, while four threads call nothing
else and check what they return; and a server that answers requests over the loopback while it is attached to N times (100), by slots and by
branches. After each attach the code of the program and its libraries is compared with the files, and all threads have to go on. Prints tables
for docs/attach.md. Exit status 1 means a hang, a changed byte, a thread that stands still, a wrong answer or result. Needed: gcc.

Ctrl-C ends a part early: what it has done until then is checked and shown, and the next begins. That no thread was at a safe place to call the tracer, or that the processors were too busy, is said by `rftrace` and changes nothing: it is
counted and no fault.
"""

import argparse
import array
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FIXTURES = ROOT.parent / "tests" / "fixtures" / "c"
# An attach that takes so long hangs: it looks for a place for 30 s, and waits for a thread for 60 s.
HANGS = 240
# Texts of the recorder where processors are too busy. It changes nothing then.
BUSY = ("was at a safe place to call the tracer", "nothing was recorded", "has had no processor")
# Connections, and requests a second of all of them.
CONNECTIONS, RATE = 4, 800


class Fault(Exception):
    """What must not be."""


def gcc(folder, name, sources, *options):
    program = f"{folder}/{name}"
    subprocess.run(["gcc", "-O1", "-w", *options, *map(str, sources), "-o", program, "-lpthread"], check=True)
    return program


def patched_source(n_functions):
    """Functions that call each other, with what they return for some numbers, checked by four threads."""
    bodies = [
        "return x * {n} + 1;",
        "long kept[2] = {{x, {n}}}; __asm__ volatile(\"\" : : \"r\"(kept) : \"memory\"); return kept[0] ^ kept[1];",
        "return x < 3 ? x + {n} : f{callee}(x - 1) * 3;",
        "long sum = {n}; for (long i = 0; i < (x & 3); i++) sum += i * x; return sum;",
        "return (long)((double)x * 0.5 + {n}) + f{callee}(x / 2);",
    ]
    lines = ["#include <poll.h>", "#include <pthread.h>", "#include <stdio.h>", "#include <unistd.h>"]
    for n in range(n_functions):
        body = bodies[n % len(bodies)].format(n=n, callee=n // 2)
        lines.append(f"__attribute__((noipa)) long f{n}(long x) {{ {body} }}")
    names = ", ".join(f"f{n}" for n in range(n_functions))
    return "\n".join(lines) + f"""
static long (*const functions[])(long) = {{{names}}};
static long wanted[{n_functions}][4];
static volatile int is_over, n_wrong;
static void *work(void *given) {{
    for (long *n_rounds = given; !is_over; ++*n_rounds)
        for (int n = 0; n < {n_functions}; n++)
            if (functions[n](n & 3) != wanted[n][n & 3])
                n_wrong++;
    return NULL;
}}
int main(void) {{
    pthread_t threads[4];
    long n_rounds[4] = {{0}};
    for (int n = 0; n < {n_functions}; n++)
        for (int x = 0; x < 4; x++)
            wanted[n][x] = functions[n](x);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, &n_rounds[i]);
    printf("%d\\n", (int)getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {{}}
    is_over = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("rounds %ld, wrong %d\\n", n_rounds[0] + n_rounds[1] + n_rounds[2] + n_rounds[3], n_wrong);
    return 7;
}}
"""


class Target:
    """A program that runs."""

    def __init__(self, command):
        # Ctrl-C is not for it.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.said = self.process.stdout.readline().split()
        self.pid = self.process.pid
        self.files = {}

    def end(self):
        """Its exit status, and what it says."""
        try:
            said, _ = self.process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired as error:
            raise Fault("the program does not come to its end") from error
        return self.process.returncode, said.strip()

    def busy(self):
        """Processor time of each thread that runs or could, in ticks. It has not ended: some programs do where a result is wrong."""
        if self.process.poll() is not None:
            raise Fault(f"the program has ended, exit status {self.process.returncode}")
        found = {}
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            fields = Path(f"/proc/{self.pid}/task/{thread}/stat").read_text().rsplit(") ", 1)[1].split()
            if fields[0] in "tT":
                raise Fault(f"thread {thread} is stopped")
            found[thread] = int(fields[11]) + int(fields[12])
        return found

    def check_progress(self, threads):
        """Each of those threads gets on."""
        before, limit = self.busy(), time.monotonic() + HANGS
        while any(self.busy()[thread] <= before[thread] for thread in threads):
            if time.monotonic() > limit:
                raise Fault("a thread stands still")
            time.sleep(0.02)

    def check_code(self):
        """How many bytes of code there are, all of them as in the files."""
        n_bytes = 0
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
                fields = line.split(None, 5)
                if fields[1] != "r-xp" or len(fields) < 6 or not fields[5].startswith("/") or "memfd:" in fields[5]:
                    continue
                start, end = (int(number, 16) for number in fields[0].split("-"))
                if fields[5] not in self.files:
                    self.files[fields[5]] = Path(fields[5]).read_bytes()
                offset = int(fields[2], 16)
                of_file = self.files[fields[5]][offset : offset + end - start]
                of_memory = os.pread(memory.fileno(), end - start, start)[: len(of_file)]
                if of_file != of_memory:
                    first = next(at for at, pair in enumerate(zip(of_file, of_memory)) if pair[0] != pair[1])
                    raise Fault(f"code was changed at {offset + first:#x} of {fields[5]}")
                n_bytes += len(of_file)
        return n_bytes


class Recorder:
    """Attaches, and keeps count."""

    def __init__(self, rftrace, folder):
        self.rftrace, self.folder = rftrace, folder
        self.seconds, self.windows = [], []
        self.n_busy = self.n_cleaned = self.n_moved = 0
        self.stopped = []

    def attach(self, target, *options):
        """Whether something was recorded."""
        trace = f"{self.folder}/trace"
        subprocess.run(["rm", "-rf", trace, f"{trace}.old"], check=True)
        begin = time.monotonic_ns()
        command = [self.rftrace, "record", "-o", trace, "-p", str(target.pid), "--max-size", "4M", "--on-full", "drop"]
        done = self.run([*command, *options])
        end = time.monotonic_ns()
        self.windows.append((begin, end))
        if done.returncode != 0:
            if not any(said in done.stderr for said in BUSY):
                raise Fault(f"it could not be attached to: {done.stderr}")
            self.n_busy += 1
        else:
            self.seconds.append((end - begin) / 1e9)
        stopped = re.search(r"stopped all threads for ([\d.]+) ms to write the branches(?:, and moved (\d+) thread)?", done.stderr)
        if stopped:
            self.stopped.append(float(stopped[1]))
            self.n_moved += int(stopped[2] or 0)
        if "cannot remove the tracer from process" in done.stderr:
            self.n_cleaned += 1
            for _ in range(20):
                if self.run([self.rftrace, "record", "-p", str(target.pid), "--leave"]).returncode == 0:
                    break
            else:
                raise Fault("it could not be left")
        return done.returncode == 0

    def run(self, command):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            _, said = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired as error:
            # It is left as it is, to be looked at.
            raise Fault(f"process {process.pid} hangs: {' '.join(command)}") from error
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
        return subprocess.CompletedProcess(command, process.returncode, None, said)

    def row(self, name):
        cells = [name, f"{len(self.windows):,}", f"{len(self.seconds):,}", f"{self.n_busy}", f"{self.n_cleaned}"]
        return cells + [" / ".join(f"{second:.2f}" for second in spread(self.seconds))]


def spread(values):
    """The middle, the 99th of a hundred, the most."""
    values = sorted(values) or [float("nan")]
    return values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)], values[-1]


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def progress(text):
    if sys.stderr.isatty() or os.environ.get("PROGRESS"):
        print(text, file=sys.stderr, flush=True)


HEAD = ["", "attaches", "recorded", "no place found", "left a second time", "seconds: middle / p99 / most", "bytes of code compared, changed"]


def malloc(rftrace, folder, number):
    rows = []
    for name, hooks, options in [("slots", ["-pg"], []), ("branches", ["-DNO_SLOT"], ["-P", "*"])]:
        target = Target([gcc(folder, f"malloc-{name}", [FIXTURES / "attached.c"], *hooks), "malloc"])
        recorder = Recorder(rftrace, folder)
        threads, n_bytes = list(target.busy()), 0
        with contextlib.suppress(KeyboardInterrupt):
            for done in range(number // 2):
                recorder.attach(target, "--for", "20ms", *options)
                n_bytes += target.check_code()
                target.check_progress(threads)
                progress(f"malloc, {name}: {done + 1}")
        status, said = target.end()
        if status != 7 or (hooks == ["-pg"] and "slot same" not in said):
            raise Fault(f"malloc, {name}: exit status {status}, {said}")
        rows.append([*recorder.row(f"threads in `malloc`, {name}"), f"{n_bytes:,}, 0"])
    table(HEAD, rows)


def cycles(rftrace, folder, minutes, n_functions):
    source = Path(folder, "patched.c")
    source.write_text(patched_source(n_functions), encoding="utf-8")
    target = Target([gcc(folder, "patched", [source])])
    recorder = Recorder(rftrace, folder)
    threads, n_bytes = [thread for thread in target.busy() if int(thread) != target.pid], 0
    end = time.monotonic() + minutes * 60
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < end or not recorder.seconds:
            recorder.attach(target, "--for", "50ms", "-P", "*")
            n_bytes += target.check_code()
            target.check_progress(threads)
            progress(f"cycles: {len(recorder.windows)}")
    status, said = target.end()
    if status != 7 or not said.endswith("wrong 0"):
        raise Fault(f"cycles: exit status {status}, {said}")
    table(HEAD, [[*recorder.row(f"cycles for {minutes:g} min, {n_functions:,} functions"), f"{n_bytes:,}, 0"]])
    stopped = " / ".join(f"{millis:.2f}" for millis in spread(recorder.stopped))
    print(f"Of the cycles: {said}; threads moved out of changed code: {recorder.n_moved}; all stopped for {stopped} ms\n", flush=True)


def server(rftrace, folder, number):
    rows, rest = [], max(2.0, number * 0.2)
    for name, hooks, options in [("slots", ["-pg"], []), ("branches", [], ["-P", "*"])]:
        program = gcc(folder, f"server-{name}", [ROOT / "attached" / "server.c"], "-O2", *hooks)
        client = gcc(folder, "client", [ROOT / "attached" / "server.c"], "-O2")
        target = Target([program, "serve", str(CONNECTIONS)])
        file = f"{folder}/latencies"
        command = [client, "ask", target.said[1], str(CONNECTIONS), str(RATE), file]
        asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        time.sleep(rest)
        begin = time.monotonic_ns()
        recorder = Recorder(rftrace, folder)
        with contextlib.suppress(KeyboardInterrupt):
            for done in range(number):
                recorder.attach(target, "--for", "100ms", *options)
                target.check_code()
                progress(f"server, {name}: {done + 1}")
        said, _ = asking.communicate(timeout=HANGS)
        n_asked, n_wrong = (int(word) for word in said.split())
        if n_wrong or asking.returncode != 0:
            raise Fault(f"server, {name}: {n_wrong} of {n_asked} answers were wrong")
        if target.end()[0] != 0:
            raise Fault(f"server, {name}: it has not ended as it does")
        words = array.array("Q", Path(file).read_bytes())
        asked = sorted(zip(words[::2], words[1::2]))
        before = [latency for start, latency in asked if start + latency < begin]
        within, windows = [], iter(recorder.windows)
        window = next(windows, None)
        for start, latency in asked:
            while window and window[1] < start:
                window = next(windows, None)
            if window and start + latency >= window[0] and start >= begin:
                within.append(latency)
        for what, latencies in [("before", before), (f"while attached to, {name}", within)]:
            times = [f"{latency / 1e6:.2f}" for latency in spread(latencies)]
            rows.append([what, f"{len(recorder.seconds) if latencies is within else ''}", f"{len(latencies):,}", "0", *times])
    table([f"server, {CONNECTIONS} connections, {RATE} requests/s", "attaches", "requests", "wrong", "p50 ms", "p99 ms", "most ms"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rftrace")
    parser.add_argument("--attaches", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--functions", type=int, default=2000)
    parser.add_argument("--server", type=int, default=100)
    options = parser.parse_args()
    rftrace = os.path.abspath(options.rftrace)
    # Also where a shell has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="attach-") as folder:
        try:
            if options.attaches:
                malloc(rftrace, folder, options.attaches)
            if options.minutes:
                cycles(rftrace, folder, options.minutes, options.functions)
            if options.server:
                server(rftrace, folder, options.server)
        except Fault as fault:
            sys.exit(str(fault))


main()
