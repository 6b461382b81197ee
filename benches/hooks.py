#!/usr/bin/env python3
"""What a recorded call costs by each kind of hook: one C source, one run.

benches/hooks.py RFTRACE [ROUNDS]: nanoseconds per call of a small function, by processor time of its thread, and the ratio to two time stamps with
two stores; median (quartiles) over the rounds, in which each kind runs once. Beside rftrace's: uftrace, and LLVM's XRay in FDR mode. What does not
run is said. Needed: gcc, clang with its compiler-rt; uftrace.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "hooks.c"
FDR = "patch_premain=true xray_mode=xray-fdr verbosity=0 xray_logfile_base={}/log xray_fdr_log_func_duration_threshold_us=0"
GCC, CLANG = ["gcc", "-O2"], ["clang", "-O2"]
XRAY = [*CLANG, "-fxray-instrument", "-fxray-instruction-threshold=1"]
# Name, compiler, what the program runs below, its arguments, XRAY_OPTIONS.
RECORD = ["RFTRACE", "record", "--ring", "--buffer", "16M", "-o", "DIR/trace"]
UFTRACE = ["uftrace", "record", "--no-libcall", "--no-event", "-d", "DIR/trace"]
KINDS = [
    ("two `rdtsc`, two stores", GCC, [], ["floor"], ""),
    ("untraced", GCC, [], [], ""),
    ("XRay's sleds", [*XRAY, "-fnoxray-link-deps"], RECORD, [], ""),
    ("XRay's sleds, unused", [*XRAY, "-fnoxray-link-deps"], [], [], ""),
    ("entry branches (`-P '*'`)", GCC, [*RECORD, "-P", "*"], [], ""),
    ("room for branches", [*GCC, "-fpatchable-function-entry=5"], RECORD, [], ""),
    ("`mcount`", [*GCC, "-pg"], RECORD, [], ""),
    ("`mcount`, patched", [*GCC, "-pg"], [*RECORD, "--patched"], [], ""),
    ("`__fentry__`", [*GCC, "-pg", "-mfentry"], RECORD, [], ""),
    ("off: entry branches", GCC, [*RECORD, "--disabled", "-P", "*"], [], ""),
    ("off: room for branches", [*GCC, "-fpatchable-function-entry=5"], [*RECORD, "--disabled"], [], ""),
    ("off: XRay's sleds", [*XRAY, "-fnoxray-link-deps"], [*RECORD, "--disabled"], [], ""),
    ("off: `mcount`", [*GCC, "-pg"], [*RECORD, "--disabled"], [], ""),
    ("off: `mcount`, patched", [*GCC, "-pg"], [*RECORD, "--disabled", "--patched"], [], ""),
    ("uftrace, `mcount`", [*GCC, "-pg"], UFTRACE, [], ""),
    ("uftrace `-P .`, room for branches", [*GCC, "-fpatchable-function-entry=5"], [*UFTRACE, "-P", "."], [], ""),
    ("LLVM's XRay, FDR mode", XRAY, [], [], FDR),
]


def measure(folder, program, below, arguments, options, rftrace):
    """Nanoseconds per call, or None."""
    command = [word.replace("DIR", folder).replace("RFTRACE", rftrace) for word in below] + [program, *arguments]
    env = dict(os.environ, XRAY_OPTIONS=options.format(folder)) if options else None
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    subprocess.run(["rm", "-rf", f"{folder}/trace", f"{folder}/trace.old"], check=True)
    found = re.search(r"nanoseconds: ([0-9.]+)", run.stderr)
    return (float(found[1]) if found and run.returncode == 0 else None), run.stderr


def shown(values, digits):
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rftrace = str(Path(sys.argv[1]).resolve())
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    values = {name: [] for name, *_ in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        programs = {}
        for name, compiler, *_ in KINDS:
            programs[name] = f"{folder}/{len(programs)}"
            subprocess.run([*compiler, "-w", str(SOURCE), "-o", programs[name]], check=True)
        for number in range(rounds):
            # In changing order.
            for name, _, below, arguments, options in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
                value, printed = measure(folder, programs[name], below, arguments, options, rftrace)
                if value is None and number == 0:
                    print(f"{name}: does not run: {printed.strip()}", file=sys.stderr)
                values[name].append(value)
    floors = values[KINDS[0][0]]
    print("| | ns | to the first |\n|---|---|---|")
    for name, *_ in KINDS:
        if None in values[name]:
            print(f"| {name} | does not run | |")
            continue
        ratios = [value / floor for value, floor in zip(values[name], floors)]
        print(f"| {name} | {shown(values[name], 1)} | {shown(ratios, 2)} |")


main()
