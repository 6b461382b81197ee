#!/usr/bin/env python3
"""Programs as they are distributed, with branches in all of their functions: do they do what they do without?

benches/same.py RFTRACE [NAME ...]: each program untraced, by `rftrace record -P '*'`, the same with libraries (`-P '*@LIB'`), and by
`uftrace record -P .`. Prints a Markdown table: the share of functions with a branch, and whether stdout, stderr and exit status are the same.
What is not installed is left out, with a line on stderr. Exit status 1 means that a program did something else below rftrace.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

SECONDS = 120
COUNTING = r'my %h; $h{$_ % 97} += $_ for 1..20000; print map {"$_=$h{$_}\n"} sort keys %h; die "so\n"'
PYTHON = (
    'import json,re,hashlib; print(len(json.dumps([{"a": i} for i in range(5000)])), re.sub("a+", "b", "caaandaat"), hashlib.sha256(b"x").hexdigest())'
)
TABLE = "create table t(a, b); insert into t values (1, 'x'), (2, 'y'); select b, count(*) from t group by b order by a desc; select nothing;"
# Name, libraries that are named too, program and its arguments.
PROGRAMS = [
    ("git log", ["libc"], ["git", "--no-pager", "log", "--stat", "-n", "100"]),
    ("git status", ["libc"], ["git", "status"]),
    ("git grep", ["libc"], ["git", "--no-pager", "grep", "-n", "fn "]),
    ("git blame", ["libc"], ["git", "--no-pager", "blame", "README.md"]),
    ("git fsck", ["libc"], ["git", "fsck", "--no-dangling", "--no-progress"]),
    ("ripgrep, sorted", ["libc"], ["rg", "--no-config", "--sort", "path", "-n", "fn [a-z_]+", "frontend"]),
    ("ripgrep, threads", ["libc"], ["rg", "--no-config", "-j2", "--count-matches", "--no-filename", "fn [a-z_]+", "README.md"]),
    ("CPython", ["libc"], ["python3.11", "-c", PYTHON]),
    ("perl", ["libperl", "libc"], ["perl", "-e", COUNTING]),
    ("bash", ["libc"], ["bash", "-c", "for i in {1..2000}; do x=$((i*i)); done; echo $x $(echo inner); exit 3"]),
    ("xz", ["liblzma", "libc"], ["xz", "-9", "-c", "-k", "README.md"]),
    ("gdb", [], ["gdb", "-nx", "-batch", "-ex", "print 1+1", "-ex", "disassemble main", "/bin/true"]),
    ("sqlite3", ["libsqlite3", "libc"], ["sqlite3", ":memory:", TABLE]),
    ("awk", ["libc"], ["awk", 'BEGIN { for (i = 0; i < 2000; i++) s += i % 7; print s; exit 4 }']),
    ("sed", ["libc"], ["sed", "-E", "s/([a-z]+) ([a-z]+)/\\2 \\1/g", "README.md"]),
    ("sort", ["libc"], ["sort", "-k2", "README.md"]),
    ("tar", ["libc"], ["tar", "-tvf", "ARCHIVE"]),
    ("gcc", [], ["gcc", "-O2", "-S", "-o", "-", "-x", "c", "SOURCE"]),
]


def run(command, folder):
    """Exit status, stdout and stderr; None where it did not end in time."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode, done.stdout, done.stderr


def verdict(plain, traced):
    """What a traced run did, as a word or two."""
    if traced is None:
        return "did not end"
    status, out, err = traced
    own = re.compile(rb"^(rftrace: |WARN: |\s*(uftrace|please)|\x1b).*\n?", re.MULTILINE)
    if (status, out, own.sub(b"", err)) == (plain[0], plain[1], own.sub(b"", plain[2])):
        return "same"
    if status != plain[0]:
        died = b"killed by" in err or status < 0 or status > 128 or b"SIGSEGV" in err or b"Segmentation" in err
        return "crashes" if died else f"exit status {status} for {plain[0]}"
    return "other stdout" if out != plain[1] else "other stderr"


def share(err):
    """Functions with a branch of all, as rftrace says."""
    for line in err.decode(errors="replace").splitlines():
        found = re.match(r"rftrace: ([\d,]+) of ([\d,]+) functions have entry branches", line)
        if found:
            done, of = (int(number.replace(",", "")) for number in found.groups())
            return f"{done:,} of {of:,} ({100 * done / of:.1f} %)"
    return "?"


def uftrace_share(err):
    """The same as uftrace says with -v. It sees functions with a symbol alone."""
    whole = re.search(rb"patched all \((\d+)\) functions", err)
    if whole:
        return f"{int(whole[1]):,} of {int(whole[1]):,} that it sees"
    found = re.search(rb"patched:\s+(\d+)", err)
    total = re.search(rb"total:\s+(\d+)", err)
    if not found or not total or not int(total[1]):
        return "none"
    return f"{int(found[1]):,} of {int(total[1]):,} ({100 * int(found[1]) / int(total[1]):.1f} %)"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    rftrace, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    work = tempfile.mkdtemp(prefix="same-")
    # Nobody else changes this one.
    here = os.path.join(work, "rftrace")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", own, here], check=True)
    archive, source = os.path.join(work, "archive.tar"), os.path.join(work, "source.c")
    subprocess.run(["tar", "-cf", archive, "README.md", "docs"], cwd=here, check=True)
    with open(source, "w", encoding="utf-8") as file:
        file.write("int f(int a, int b) { return a * b + 3; }\nint main(void) { return f(4, 5); }\n")
    is_wrong = False
    print("| program | functions with branches | with libraries | | `uftrace record -P .` | |")
    print("|---|---|---|---|---|---|")
    for name, libraries, words in PROGRAMS:
        if names and name not in names:
            continue
        program = shutil.which(words[0], path="/usr/bin:/bin") or shutil.which(words[0])
        if program is None:
            print(f"{name}: {words[0]} is not installed", file=sys.stderr)
            continue
        command = [program] + [{"ARCHIVE": archive, "SOURCE": source}.get(word, word) for word in words[1:]]
        plain = run(command, here)
        if plain is None or plain != run(command, here):
            print(f"{name}: it does not do the same twice", file=sys.stderr)
            continue
        cells = [name]
        trace = os.path.join(work, "trace")
        for patterns in [["*"], ["*"] + [f"*@{library}" for library in libraries]]:
            if patterns == ["*"] and len(cells) > 1:
                cells.append("")
                continue
            options = [word for pattern in patterns for word in ("-P", pattern)]
            record = [rftrace, "record", "--max-size", "256M", "--on-full", "drop", "-o", trace, *options]
            what = verdict(plain, run([*record, "-q", "--", *command], here))
            is_wrong |= what != "same"
            told = run([*record, "--", *command], here)
            told = share(told[2]) if told else "?"
            cells.append(told if what == "same" else f"{told}: **{what}**")
            shutil.rmtree(trace, ignore_errors=True)
            shutil.rmtree(trace + ".old", ignore_errors=True)
        cells.append("same" if not any("**" in cell for cell in cells) else "**other**")
        if shutil.which("uftrace"):
            traced = run(["uftrace", "record", "-v", "-P", ".", "-d", trace, *command], here)
            err = traced[2] if traced else b""
            # The program does not print the lines of -v.
            quiet = run(["uftrace", "record", "-P", ".", "-d", trace, *command], here)
            cells += [uftrace_share(err), verdict(plain, quiet)]
            shutil.rmtree(trace, ignore_errors=True)
        else:
            cells += ["not installed", ""]
        print("| " + " | ".join(cells) + " |", flush=True)
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(is_wrong)


main()
