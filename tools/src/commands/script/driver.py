# Runs a script with functions for uftrace: reads what `rftrace script` sends, whose form is in python.rs, and calls them.

import os
import select
import struct
import sys
import traceback
import types

NAMELESS = 0xFFFFFFFF
WITH_VALUES = 1 << 8


def load(path):
    """The script as a module; it can import files beside it."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = types.ModuleType(os.path.splitext(os.path.basename(path))[0])
    module.__file__ = path
    sys.modules[module.__name__] = module
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    return module


def function(module, name):
    found = getattr(module, name, None)
    return found if callable(found) else None


def answer(channel, functions, patterns):
    """Tells rftrace what the script wants."""
    if not isinstance(patterns, (list, tuple, set, frozenset)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError("UFTRACE_FUNCS must be a list of strings")
    bits = sum(1 << place for place, called in enumerate(functions) if called)
    message = struct.pack("<II", bits, len(patterns))
    for pattern in patterns:
        text = pattern.encode()
        message += struct.pack("<I", len(text)) + text
    while message:
        message = message[os.write(channel, message):]


def value(text):
    """A value as Python has it: numbers, texts; None for an unknown one."""
    if text == "?" or text == "NULL":
        return None
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    for number in (lambda: int(text, 0), lambda: float(text)):
        try:
            return number()
        except ValueError:
            pass
    return text


def follow(stream, entry, exit, event):
    """Calls the functions. Returns True if rftrace has sent all."""
    names = []
    number = struct.Struct("<I")
    two_numbers = struct.Struct("<II")
    happening = struct.Struct("<IIIIQQQ")
    while True:
        head = stream.read(two_numbers.size)
        if len(head) < two_numbers.size:
            return False
        n_names, n_happenings = two_numbers.unpack(head)
        if n_names == 0 and n_happenings == 0:
            return True
        for _ in range(n_names):
            (length,) = number.unpack(stream.read(number.size))
            names.append(stream.read(length).decode())
        block = stream.read(n_happenings * happening.size)
        if len(block) < n_happenings * happening.size:
            return False
        for kind, tid, depth, name, timestamp, duration, address in happening.iter_unpack(block):
            values = []
            if kind & WITH_VALUES:
                kind -= WITH_VALUES
                for _ in range(number.unpack(stream.read(number.size))[0]):
                    (length,) = number.unpack(stream.read(number.size))
                    values.append(value(stream.read(length).decode()))
            if kind >= 2:
                name = "event:%d" % address if name == NAMELESS else names[name]
            else:
                name = "<%x>" % address if name == NAMELESS else names[name]
            ctx = {"tid": tid, "depth": depth, "timestamp": timestamp, "address": address, "name": name}
            if kind == 0:
                if values:
                    ctx["args"] = values
                entry(ctx)
            elif kind == 1:
                ctx["duration"] = duration
                if values:
                    ctx["retval"] = values[0]
                exit(ctx)
            else:
                if kind == 2:
                    ctx["args"] = ""
                event(ctx)


def run():
    path, version = sys.argv[1:3]
    # The script has none of rftrace's own input.
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv = [path] + sys.argv[3:]
    module = load(path)
    functions = [function(module, "uftrace_" + name) for name in ("entry", "exit", "event")]
    answer(channel, functions, getattr(module, "UFTRACE_FUNCS", []))
    begin, end = function(module, "uftrace_begin"), function(module, "uftrace_end")
    if begin:
        begin({"record": False, "version": version, "cmds": tuple(sys.argv[1:])})
    with open(channel, "rb") as stream:
        is_whole = follow(stream, *functions)
    if end and is_whole:
        end()
    sys.stdout.flush()


def has_no_reader(file):
    poll = select.poll()
    poll.register(file, 0)
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))


def main():
    try:
        run()
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and has_no_reader(1):
            # `| head`: nobody wants the rest, nor what is in the buffer still.
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            return
        if isinstance(error, SystemExit):
            raise
        # Without the lines of this file.
        place = error.__traceback__
        while place and place.tb_frame.f_code.co_filename == main.__code__.co_filename:
            place = place.tb_next
        traceback.print_exception(type(error), error, place)
        sys.exit(1)


main()
