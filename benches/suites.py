#!/usr/bin/env python3
"""Test suites of programs as they are distributed, with branches in all functions: does each test come out as it does without?

benches/suites.py RFTRACE [--kept FOLDER] [--python PATH] [MODULE ...]: modules of CPython's own test suite (Debian: libpython3.11-testsuite) untraced, twice, by
`rftrace record -P '*'`, and with the functions of libc, libsqlite3 and libexpat too. Processes that the tests start are traced too. A test that does not
come out the same twice untraced is not compared. Prints a Markdown table. Exit status 1 means that a test came out differently, or that a module did
not end as it does untraced; FOLDER gets what such runs have said.

SQLite's own suite is no package of Debian's, nor is CPython's test_sqlite3. Where another Python has that (`--python`), libsqlite3 is preloaded, since
what is opened later gets no branches.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SQLITE = "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0"
# The tests have a use for those.
SIGNALS = ["--signal-snapshot", "none", "--signal-toggle", "none"]
LIBRARIES = ["*@libc", "*@libsqlite3", "*@libexpat"]
SECONDS = 300
# Exceptions, generators, threads, processes, signals, sockets, files, what calls C by its own stubs, and all kinds of objects.
MODULES = """abc array ast asyncgen base64 bisect bytes collections contextlib coroutines ctypes decimal descr dict dis enum exceptions faulthandler
    fileio float fork1 functools gc generators hashlib heapq inspect io itertools json list long marshal math memoryview minidom mmap pickle
    poll posix pyexpat queue random re select selectors set signal statistics struct subprocess super sys syntax tempfile thread
    threading threadsignals traceback tuple types unicode wait3 wait4 weakref zlib""".split()
# How a test comes out, as unittest says it with -v.
OUTCOME = re.compile(r"^(\w+ \([\w.<>]+\)).*?(?:\n(?!\w+ \([\w.<>]+\)).*?)*? \.\.\. (?:.*?)(ok|skipped|FAIL|ERROR|expected failure|unexpected success)\b", re.M)


def run(command, folder, preload):
    """Exit status, None where it did not end in time, and how each test came out."""
    env = dict(os.environ, PYTHONHASHSEED="1", TMPDIR=folder)
    if preload:
        env["LD_PRELOAD"] = preload
    out = Path(folder, "out")
    with out.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    text = out.read_text(errors="replace")
    return status, dict(OUTCOME.findall(text)), text


def share(text):
    """Functions with a branch of all in the first process, as rftrace says."""
    found = re.search(r"^rftrace: ([\d,]+) of ([\d,]+) functions have entry branches", text, re.M)
    return f"{found[1]} of {found[2]}" if found else "?"


def compare(plain, traced, steady):
    """What a traced run did otherwise."""
    other = sorted(name for name in steady if traced[1].get(name) != plain[1][name])
    if traced[0] == plain[0] and not other:
        return "same"
    return f"**exit status {traced[0]} for {plain[0]}; other: {', '.join(other[:5]) or 'none'}**"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rftrace")
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--kept", help="a folder for what runs have said that came out differently")
    parser.add_argument("modules", nargs="*", default=MODULES)
    options = parser.parse_intermixed_args()
    rftrace = os.path.abspath(options.rftrace)
    is_wrong, n_modules, n_tests, n_left_out, n_skipped = False, 0, 0, 0, 0
    print("| module | tests | skipped | not the same twice | functions with branches | | with libraries | |\n" + "|---" * 8 + "|", flush=True)
    for module in options.modules:
        command = [options.python, "-X", "faulthandler", "-m", "test", "-v", f"test_{module.removeprefix('test_')}"]
        preload = SQLITE if module == "sqlite3" else None
        with tempfile.TemporaryDirectory(prefix="suites-") as folder:
            plain, again = run(command, folder, preload), run(command, folder, preload)
            if plain[0] is None or plain[0] != again[0] or not plain[1]:
                print(f"{module}: it does not do the same twice, or has no tests: {plain[0]}, {again[0]}", file=sys.stderr, flush=True)
                continue
            steady = {name for name in plain[1] if plain[1][name] == again[1].get(name)}
            cells = []
            for patterns in [["*"], ["*", *LIBRARIES]]:
                options_of_record = ["-o", f"{folder}/trace", "--max-size", "64M", "--on-full", "drop", *SIGNALS]
                options_of_record += [word for pattern in patterns for word in ("-P", pattern)]
                traced = run([rftrace, "record", *options_of_record, "--", *command], folder, preload)
                verdict = compare(plain, traced, steady)
                if verdict != "same":
                    is_wrong = True
                    for kind, (_, _, text) in (("plain", plain), ("traced", traced)):
                        if options.kept:
                            Path(options.kept, f"{module}.{len(patterns)}.{kind}").write_text(text, encoding="utf-8")
                cells += [share(traced[2]), verdict]
                shutil.rmtree(f"{folder}/trace", ignore_errors=True)
        n_skip = sum(outcome == "skipped" for outcome in plain[1].values())
        left_out = len(plain[1]) - len(steady)
        n_modules, n_tests, n_skipped, n_left_out = n_modules + 1, n_tests + len(plain[1]), n_skipped + n_skip, n_left_out + left_out
        print("| " + " | ".join([module, f"{len(plain[1]):,}", str(n_skip), str(left_out), *cells]) + " |", flush=True)
    verdict = "**other**" if is_wrong else "same"
    print(f"| {n_modules} modules | {n_tests:,} | {n_skipped} | {n_left_out} | | {verdict} | | |")
    sys.exit(is_wrong)


main()
