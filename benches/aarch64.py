#!/usr/bin/env python3
"""Instructions that a call of a small function takes in the tracer on aarch64, counted in qemu-user.

aarch64.py [--processor NAME] [--libmcount LIBMCOUNT --libraries FOLDER]

The program counted.c calls a function 1,000 times and 3,000 times; the difference is what 2,000 calls take. qemu-aarch64 runs each instruction
by itself and prints where it is (-singlestep -d exec,nochain). What lies in the function and its caller is not counted. Of rftrace hooks, the
trampoline and stubs are counted, and not the slow paths, which two calls of a thousand take. For entry branches rftrace is in a library (branched),
and the function is compiled without hooks.

--libmcount: that of uftrace, built for aarch64 (Debian: package uftrace of arm64, unpacked), with the libraries that it needs and the cross
compilers have not (libelf1, libdw1, libcapstone4 and what those need). It is compared on the same source, by what it executes itself and in the C
library; not in the dynamic linker.

Needed: Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user; rustup's nightly with aarch64-unknown-linux-gnu. Programs are built in
target/tmp/aarch64. No processor is measured: that says what is executed, and not how long it takes."""

import argparse, os, re, subprocess, sys, tempfile, threading
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
TARGET = 'aarch64-unknown-linux-gnu'
FOLDER = TOP / 'target/tmp/aarch64'
SYSROOT = '/usr/aarch64-linux-gnu'
CALLS = (1000, 3000)
# Where qemu-user puts programs that may lie anywhere.
ANYWHERE = 0x5500000000
# The caller and the callee, then the parts of the tracer with a symbol.
PROGRAM = ('main', 'leaf')
HOOKS = ('_mcount', 'rftrace_entry', 'rftrace_entry_rest', 'rftrace_keeping_entry', 'rftrace_keeping_rest')
TRAMPOLINES = ('rftrace_return_trampoline', 'rftrace_keeping_return')

# Name, arguments of the compiler, whether the program is linked with rftrace, variables, whether it records.
KINDS = [
    ('`-pg`, recorded', ['-pg'], True, {}, 'on'),
    ('`-pg`, off', ['-pg'], True, {}, 'off'),
    ('`-pg`, off, patched', ['-pg'], True, {'RFTRACE_PATCHED': '1'}, 'off'),
    ('patched entry, recorded', ['-fpatchable-function-entry=1'], True, {'RFTRACE_PATCHABLE': '1'}, 'on'),
    ('patched entry, off', ['-fpatchable-function-entry=1'], True, {'RFTRACE_PATCHABLE': '1'}, 'off'),
]
# The same of entry branches.
BRANCHED = [('entry branch, recorded', 'on'), ('entry branch, off', 'off')]


def built(package, folder, name):
    """The library of a package in a workspace."""
    linker = {f'CARGO_TARGET_{TARGET.upper().replace("-", "_")}_LINKER': 'aarch64-linux-gnu-gcc'}
    command = ['cargo', '+nightly', 'build', '--quiet', '--release', '-p', package, '--target', TARGET]
    subprocess.run(command + ['--target-dir', FOLDER], cwd=folder, env=os.environ | linker, check=True)
    return FOLDER / TARGET / 'release' / name


def compiled(arguments, library, out):
    command = ['aarch64-linux-gnu-gcc', '-O2', TOP / 'benches/counted.c', *arguments, '-o', out]
    if library:
        command += ['-DLINKED', '-static', '-I', TOP / 'frontend/ffi', library, '-lpthread', '-ldl', '-lm']
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    return out


def places(program, base=None):
    """Where functions are in memory: first and last address. The base is where a file lies that may lie anywhere."""
    if base is None:
        header = subprocess.check_output(['aarch64-linux-gnu-readelf', '-h', program], text=True)
        base = ANYWHERE if 'DYN' in header else 0
    fields = [line.split() for line in subprocess.check_output(['aarch64-linux-gnu-nm', '-S', program], text=True).splitlines()]
    found = {f[3]: (base + int(f[0], 16), base + int(f[0], 16) + int(f[1], 16) - 1) for f in fields if len(f) == 4}
    return {name: found[name] for name in PROGRAM + HOOKS + TRAMPOLINES if name in found}


def segments(program):
    """First and last address of what is loaded of a program that lies at a fixed place."""
    lines = subprocess.check_output(['aarch64-linux-gnu-readelf', '-lW', program], text=True).splitlines()
    fields = [line.split() for line in lines if line.strip().startswith('LOAD')]
    return [(int(f[2], 16), int(f[2], 16) + int(f[5], 16) - 1) for f in fields]


def command(program, calls, how, processor, variables, *options):
    qemu = ['qemu-aarch64', '-cpu', processor, '-L', SYSROOT, *options]
    for name, value in variables.items():
        qemu += ['-E', f'{name}={value}']
    return qemu + [program, str(calls), how]


def executed(program, known, ranges, calls, how, processor, variables, files=()):
    """Instructions by the name of the function, or `elsewhere`; only those in ranges, if there are any."""
    options = ['-singlestep', '-d', 'exec,nochain']
    if ranges:
        options += ['-dfilter', ','.join(f'{first:#x}..{last:#x}' for first, last in ranges)]
    run = subprocess.Popen(command(program, calls, how, processor, variables, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, pass_fds=files)
    at = Counter()
    for line in run.stderr:
        if place := re.search(r'/([0-9a-f]{16})/', line):
            at[int(place[1], 16)] += 1
    printed = run.stdout.read()
    if run.wait() or printed != 'ok\n':
        sys.exit(f'{program}: status {run.returncode}, {printed!r}')
    names = Counter()
    for place, number in at.items():
        names[next((name for name, (first, last) in known.items() if first <= place <= last), 'elsewhere')] += number
    return names


def per_call(program, known, ranges, *rest):
    few, many = (executed(program, known, ranges, calls, *rest) for calls in CALLS)
    return {name: (many[name] - few[name]) / (CALLS[1] - CALLS[0]) for name in (*known, 'elsewhere')}


def per_call_of_branches(program, library, processor, how):
    # The same each time.
    printed = subprocess.check_output(command(program, 1, how, processor, {}) + ['maps'], text=True)
    lines = [line.split() for line in printed.splitlines() if re.match('[0-9a-f]+-[0-9a-f]+ ', line)]
    span = lambda line: [int(end, 16) for end in line[0].split('-')]
    base = min(span(line)[0] for line in lines if line[-1] == str(library))
    known = places(program) | places(library, base)
    # Stubs are code that no file has.
    stubs = [(first, end - 1) for line in lines if 'x' in line[1] and len(line) == 5 for first, end in [span(line)]]
    counted = per_call(program, known, [*known.values(), *stubs], how, processor, {})
    if not counted['elsewhere'] or (counted['rftrace_keeping_entry'] > 0) != (how == 'on'):
        sys.exit(f'{program}: stubs and hook are elsewhere: {counted}')
    return counted


def per_call_of_uftrace(program, folder, options):
    # It tells its recorder of its buffers by a pipe; here nobody looks.
    reads, writes = os.pipe()
    reader = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reads, 4096), b'')], daemon=True)
    reader.start()
    variables = {'LD_PRELOAD': options.libmcount, 'LD_LIBRARY_PATH': options.libraries, 'UFTRACE_PIPE': writes, 'UFTRACE_DIR': folder}
    subprocess.run(command(program, 1, 'on', options.processor, variables), pass_fds=[writes], check=True, stdout=subprocess.PIPE)
    # It writes down where everything is, and that is the same each time.
    lines = [line for file in Path(folder).glob('sid-*.map') for line in file.read_text().splitlines()]
    wanted = (str(program), options.libmcount, '/libc.so.6')
    ranges = [[int(end, 16) for end in line.split()[0].split('-')] for line in lines if line.endswith(wanted)]
    counted = per_call(program, places(program), ranges, 'on', options.processor, variables, [writes])
    for session in (file.stem.removeprefix('sid-') for file in Path(folder).glob('sid-*.map')):
        for left in Path('/dev/shm').glob(f'uftrace-{session}-*'):
            left.unlink()
    return counted


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument('--processor', default='max')
    options.add_argument('--libmcount')
    options.add_argument('--libraries', default='')
    options = options.parse_args()
    library = built('rftrace-frontend-ffi', TOP, 'librftrace_frontend_ffi.a')
    branched = built('bench-branched', TOP / 'benches', 'libbench_branched.so')
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments, is_linked, variables, how in KINDS:
            program = compiled(arguments, library, Path(folder, 'counted'))
            # Stubs lie below the program. All that the program does at its start would be some gigabytes of text.
            stubs = (0x10000, min(first for first, _ in segments(program)) - 1)
            known = places(program)
            rows.append((name, per_call(program, known, [*known.values(), stubs], how, options.processor, variables)))
        linked = ['-DLINKED', '-I', TOP / 'frontend/ffi', branched, f'-Wl,-rpath,{branched.parent}']
        program = compiled(linked, None, Path(folder, 'counted'))
        rows += [(name, per_call_of_branches(program, branched, options.processor, how)) for name, how in BRANCHED]
        if options.libmcount:
            program = compiled(['-pg'], None, Path(folder, 'counted'))
            rows.append(('`-pg`, recorded by uftrace', per_call_of_uftrace(program, folder, options)))
    print('| | hook | trampoline | elsewhere | a call |\n|---|---|---|---|---|')
    for name, counted in rows:
        hook, trampoline = (sum(counted.get(name, 0) for name in names) for names in (HOOKS, TRAMPOLINES))
        elsewhere = counted['elsewhere']
        print(f'| {name} | {hook:.0f} | {trampoline:.0f} | {elsewhere:.0f} | {hook + trampoline + elsewhere:.1f} |')


if __name__ == '__main__':
    main()
