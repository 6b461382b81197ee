#!/usr/bin/env python3
"""Compares `rftrace merge` with a straightforward Python script that does the same work.

    benches/merge.py [--events N] [--keep DIR] [RFTRACE]

Writes the traces of a guest and of a host with N records together (default 10 million), merges them to Chrome JSON with RFTRACE
(default: target/release/rftrace) and with the function `merge` below, in turns, compares both results event by event, and prints
seconds, peak memory and the ratio. N = 10 million takes 3 GB of disk.
"""

import argparse
import bisect
import heapq
import json
import operator
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORD = struct.Struct("<QQ")
OFFSET = -38491779229228
SID = "00c0ffee00c0ffee"
BASE = 0x400000
FUNCTIONS = 200
# first_tsc, first_nanos, nanos_per_2_32_ticks: the guest counts from 0 on.
GUEST = (1_000_000, 500_000, 2_045_222_521)
HOST = (1_000_000 - OFFSET, 7_000_000_000, 2_045_222_520)


# ---- the script: what somebody would write who needs it ----


def read_clock(directory):
    lines = (line.split("=", 1) for line in (directory / "clock.txt").read_text().splitlines())
    values = dict(lines)
    return int(values["first_tsc"]), int(values["first_nanos"]), int(values["nanos_per_2_32_ticks"])


def read_symbols(directory):
    """The start of the module's code in memory, the functions' addresses, their names."""
    start = int(next(directory.glob("sid-*.map")).read_text().split("-")[0], 16)
    addresses, names = [], []
    for line in next(directory.glob("*.sym")).read_text().splitlines():
        if not line.startswith("#"):
            address, _, name = line.split(" ", 2)
            addresses.append(int(address, 16) + start)
            names.append(name)
    return addresses, names


def read_events(directory, pid, offset, reference):
    """Events of a directory's tasks, with their times in nanoseconds of the host."""
    clock = read_clock(directory)
    addresses, names = read_symbols(directory)
    return heapq.merge(
        *(
            read_task(path, pid, clock, offset, reference, addresses, names)
            for path in sorted(directory.glob("[0-9]*.dat"))
        ),
        key=operator.itemgetter(0),
    )


def read_task(path, pid, clock, offset, reference, addresses, names):
    first_tsc, first_nanos, rate = clock
    host_tsc, host_nanos, host_rate = reference
    tid = int(path.stem)
    stack = []
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            for nanos, word in RECORD.iter_unpack(block):
                # The tick that has this time: the quotient, rounded up.
                ticks = first_tsc - (-((nanos - first_nanos) << 32) // rate) - offset
                host = host_nanos + ((ticks - host_tsc) * host_rate >> 32)
                if word & 3 == 0:
                    name = names[bisect.bisect_right(addresses, word >> 16) - 1]
                    stack.append(name)
                    yield host, {"ph": "B", "ts": host / 1000, "pid": pid, "tid": tid, "name": name}
                elif word & 3 == 1 and stack:
                    stack.pop()
                    yield host, {"ph": "E", "ts": host / 1000, "pid": pid, "tid": tid}
    while stack:
        stack.pop()
        yield host, {"ph": "E", "ts": host / 1000, "pid": pid, "tid": tid}


def merge(output, guest, host, offset):
    reference = read_clock(host)
    events = heapq.merge(
        read_events(guest, 1, offset, reference), read_events(host, 7, 0, reference), key=operator.itemgetter(0)
    )
    with open(output, "w") as out:
        out.write('{"traceEvents":[\n')
        separator = ""
        for _, event in events:
            out.write(separator + json.dumps(event))
            separator = ",\n"
        out.write("\n]}\n")


# ---- the comparison ----


def write_trace(directory, pid, tids, n_records, clock):
    directory.mkdir(parents=True)
    first_tsc, first_nanos, rate = clock
    info = b"Ftrace!\0" + struct.pack("<IHBBQQH6x", 4, 40, 1, 2, 0x62, 0x89, 1024)
    info += b"exename:/bin/prog\ncmdline:prog\ntaskinfo:lines=2\n"
    info += f"taskinfo:nr_tid={len(tids)}\ntaskinfo:tids={','.join(map(str, tids))}\n".encode()
    (directory / "info").write_bytes(info)
    tasks = [f'SESS timestamp=0.000000001 pid={pid} sid={SID} exename="/bin/prog"']
    tasks += [f"TASK timestamp=0.000000002 tid={tid} pid={pid}" for tid in tids]
    (directory / "task.txt").write_text("\n".join(tasks) + "\n")
    (directory / f"sid-{SID}.map").write_text(
        f"{BASE:x}-{BASE + 0x100000:x} r-xp 00000000 00:00 0 /bin/prog\n"
        "7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n"
    )
    symbols = "".join(f"{0x1000 + 64 * i:016x} T module_{i % 7}::function_{i}\n" for i in range(FUNCTIONS))
    end = f"{0x1000 + 64 * FUNCTIONS:016x} ? __func_end\n"
    (directory / "prog.sym").write_text(f"# symbols: {FUNCTIONS}\n# path name: /bin/prog\n{symbols}{end}")
    (directory / "clock.txt").write_text(
        f"first_tsc={first_tsc}\nfirst_nanos={first_nanos}\nlast_tsc={first_tsc + 10**12}\nlast_nanos=0\n"
        f"tsc_hz={(10**9 << 32) // rate}\nnanos_per_2_32_ticks={rate}\n"
    )
    for number, tid in enumerate(tids):
        ticks = first_tsc + 10 * number
        with open(directory / f"{tid}.dat", "wb") as file:
            block, stack, seed = [], [], 12345 + tid
            for _ in range(n_records // len(tids) // 2 * 2):
                seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
                ticks += 40 + (seed >> 60) * 13
                nanos = first_nanos + ((ticks - first_tsc) * rate >> 32)
                if len(stack) < 1 or len(stack) < 20 and seed >> 40 & 1:
                    address = BASE + 0x1000 + 64 * (seed % 2**32 % FUNCTIONS)
                    block.append(RECORD.pack(nanos, address << 16 | len(stack) << 6 | 5 << 3))
                    stack.append(address)
                else:
                    address = stack.pop()
                    block.append(RECORD.pack(nanos, address << 16 | len(stack) << 6 | 5 << 3 | 1))
                if len(block) == 65536:
                    file.write(b"".join(block))
                    block.clear()
            while stack:
                address = stack.pop()
                block.append(RECORD.pack(nanos, address << 16 | len(stack) << 6 | 5 << 3 | 1))
            file.write(b"".join(block))


def measured(run):
    """Seconds of a child, and its peak memory in MiB."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - start
    if status != 0:
        sys.exit(f"a program has failed: {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def fingerprint(path):
    """How many events there are, and the sum of their hashes: where times are equal the order may differ."""
    count, total = 0, 0
    with open(path) as file:
        for line in file:
            event = json.loads(line.rstrip(",\n")) if line.startswith('{"ph"') else {}
            if event.get("ph") in ("B", "E"):
                count += 1
                total += hash(tuple(sorted(event.items())))
    return count, total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rftrace", nargs="?", default=str(Path(__file__).parent.parent / "target/release/rftrace"))
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of rftrace; the script has one")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="rftrace-merge-"))
    guest, host = folder / "guest", folder / "host"
    if not guest.exists():
        write_trace(guest, 1, [1, 2, 3, 4], args.events // 2, GUEST)
        write_trace(host, 7, [7, 8], args.events // 2, HOST)
    n_records = sum(path.stat().st_size // 16 for path in folder.glob("*/*.dat"))
    rust_json, python_json = folder / "rust.json", folder / "python.json"

    command = [args.rftrace, "merge", "--quiet", "-o", str(rust_json), str(guest), str(host), f"--tsc-offset={OFFSET}"]
    rust = [measured(lambda: os.execv(command[0], command)) for _ in range(args.rounds)]
    python = measured(lambda: merge(python_json, guest, host, OFFSET))
    rust += [measured(lambda: os.execv(command[0], command)) for _ in range(args.rounds)]

    if (mine := fingerprint(rust_json)) != (theirs := fingerprint(python_json)):
        sys.exit(f"the results differ: {mine} and {theirs}")
    best = min(rust)
    median = sorted(rust)[len(rust) // 2]
    print(f"{n_records} records, {rust_json.stat().st_size >> 20} MiB of JSON")
    for name, (seconds, cpu, mib) in [("rftrace, median", median), ("rftrace, best", best), ("Python", python)]:
        print(f"{name:16} {seconds:8.2f} s, {cpu:8.2f} s of CPU, {mib:7.1f} MiB")
    print(f"ratio: {python[0] / median[0]:.1f} by wall clock, {python[1] / median[1]:.1f} by CPU time (medians)")
    if not args.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
