#!/usr/bin/env python3
"""What a server costs that is ready to be recorded, and how soon a filter holds.

benches/ready.py RFTRACE [ROUNDS]

Processor time of a server's threads per request, the system's part too, below `rftrace record --disabled`, and its ratio to the same server without hooks and
without rftrace. Of each run the fastest of 40 batches of 500 requests counts, as others on the machine make the rest. Median (quartiles) over the rounds (11), in
which each way runs once, in changing order; ratios are those of the lower quartiles, for the same reason. Each request has 150 words, for each of which two functions
are called. Then how long a filter takes that has one function of 10,000 recorded: the first one, and the median of 20 more, from what is asked of the recorder's
socket to its answer. Needed: gcc; clang for XRay.
"""

import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SERVER, MANY = ROOT / "attached" / "server.c", ROOT.parent / "tests" / "fixtures" / "c" / "many.c"
GCC, CLANG = ["gcc", "-O2"], ["clang", "-O2"]
XRAY = [*CLANG, "-fxray-instrument", "-fxray-instruction-threshold=1", "-fnoxray-link-deps"]
BATCHES, REQUESTS = 40, 500
N_FILTERS = 20
# Name, compiler, options of `rftrace record`; None: without it. The ratios are to the way without that has the same compiler.
WAYS = [
    ("without, gcc", GCC, None),
    ("`-pg`, patched", [*GCC, "-pg"], ["--patched"]),
    ("`-pg -mfentry`, patched", [*GCC, "-pg", "-mfentry"], ["--patched"]),
    ("`-pg -mfentry`", [*GCC, "-pg", "-mfentry"], []),
    ("entry branches (`-P '*'`)", GCC, ["-P", "*"]),
    ("room for branches", [*GCC, "-fpatchable-function-entry=5"], []),
    ("library calls (`--libcalls`)", GCC, ["--libcalls"]),
    ("without, clang", CLANG, None),
    ("XRay's sleds", XRAY, []),
]
MANY_WAYS = [
    ("`mcount`", ["gcc", "-O1", "-pg"], []),
    ("`mcount`, patched", ["gcc", "-O1", "-pg"], ["--patched"]),
    ("entry branches", ["gcc", "-O1"], ["-P", "*"]),
]


def build(folder, compiler, source):
    """A program, built once for each compiler and source."""
    path = Path(folder) / f"{source.stem}-{abs(hash(tuple(compiler)))}"
    if not path.exists():
        subprocess.run([*compiler, "-w", str(source), "-o", str(path), "-lpthread"], check=True)
    return str(path)


def begin(folder, rftrace, program, arguments, options):
    """Runs it, below the recorder if there are options. Returns the process that was started."""
    below = [] if options is None else [rftrace, "record", "--no-schedule", "-o", f"{folder}/trace", *options, "--"]
    env = dict(os.environ, XDG_RUNTIME_DIR=str(folder))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*below, program, *arguments], env=env, cwd=folder, text=True, **pipes)


def end(folder, process):
    process.stdin.close()
    if process.wait() != 0:
        sys.exit(f"{process.args} ended with status {process.returncode}")
    for path in Path(folder).glob("trace*"):
        shutil.rmtree(path)


def processor_time(pid):
    """Nanoseconds that its threads have run."""
    return sum(int(Path(task, "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def per_request(folder, rftrace, program, options):
    process = begin(folder, rftrace, program, ["serve", "1"], None if options is None else ["--disabled", *options])
    pid, port = map(int, process.stdout.readline().split())
    text = " ".join(f"w{number * number % 9973}" for number in range(150)).encode()
    request = struct.pack("<I", len(text)) + text
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(times):
            for _ in range(times):
                server.sendall(request)
                if len(server.recv(24, socket.MSG_WAITALL)) != 24:
                    sys.exit(f"{process.args}: no answer")

        ask(4 * REQUESTS)
        used = []
        for _ in range(BATCHES):
            before = processor_time(pid)
            ask(REQUESTS)
            used.append(processor_time(pid) - before)
    end(folder, process)
    return min(used) / REQUESTS


def ask_recorder(folder, recorder, pid, *words):
    """As frontend/control/src/protocol.rs has it. Returns how many milliseconds the answer took."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(f"{folder}/rftrace/{recorder}.sock")
        since = time.monotonic()
        stream.sendall("\t".join(["rftrace-control-1", str(pid), *words]).encode() + b"\n")
        answer = stream.recv(1 << 16)
        took = time.monotonic() - since
    if not answer.startswith(b"ok "):
        sys.exit(f"{words}: {answer}")
    return took * 1000


def filters(folder, rftrace, program, options):
    process = begin(folder, rftrace, program, [], options)
    process.stdout.readline()
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    times = [
        ask_recorder(folder, process.pid, pid, "filter", f"include=f{97 * number:04}") for number in range(N_FILTERS + 1)
    ]
    end(folder, process)
    return times[0], statistics.median(times[1:])


def low(values):
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def shown(values, digits):
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rftrace = str(Path(sys.argv[1]).resolve())
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    ways = [way for way in WAYS if shutil.which(way[1][0])]
    with tempfile.TemporaryDirectory() as folder:
        values = {name: [] for name, *_ in ways}
        for number in range(rounds):
            for name, compiler, options in ways[number % len(ways) :] + ways[: number % len(ways)]:
                values[name].append(per_request(folder, rftrace, build(folder, compiler, SERVER), options))
            print(f"round {number + 1}", file=sys.stderr)
        print("| off | ns a request | to the same without |\n|---|---|---|")
        for name, compiler, _ in ways:
            print(f"| {name} | {shown(values[name], 0)} | {low(values[name]) / low(values[f'without, {compiler[0]}']):.3f} |")
        print("\n| one of 10,000 functions | first filter, ms | others, ms |\n|---|---|---|")
        for name, compiler, options in MANY_WAYS:
            each = [filters(folder, rftrace, build(folder, compiler, MANY), options) for _ in range(rounds)]
            first, others = zip(*each)
            print(f"| {name} | {shown(first, 1)} | {shown(others, 1)} |")


main()
