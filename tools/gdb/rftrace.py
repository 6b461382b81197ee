"""Commands for gdb: `source tools/gdb/rftrace.py`, then `help rftrace-sample` and `help rftrace-records`."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import gdb

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "debugger"))
import rftrace_records  # noqa: E402
import rftrace_samples  # noqa: E402


# After that a signal has been lost. A machine that is slow to stop is waited for: at a second one gdb gives up its connection.
LOST_SECONDS = 2
LOST_SECONDS_REMOTE = 10


def frames(depth):
    """The functions of the selected thread, innermost first."""
    names = []
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(names) < depth:
            names.append(frame.name() or f"{frame.pc():#x}")
            frame = frame.older()
    except gdb.error:
        pass  # memory that cannot be read: the stack ends here
    return names


@contextlib.contextmanager
def silence():
    """gdb does not show each stop: it has no setting for that, so its standard output goes nowhere."""
    gdb.flush()
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        gdb.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


class Alarm:
    """Interrupts the program some time after it was told to: a shell does, as gdb is waiting then."""

    def __init__(self, seconds):
        connection = gdb.selected_inferior().connection
        native = connection is None or connection.type == "native"
        # gdb passes what it gets on to a remote target, but ignores it while a program of its own has the terminal.
        pid = gdb.selected_inferior().pid if native else os.getpid()
        ring = f"echo; kill -INT {pid} 2>/dev/null || exit"
        # gdb may lose a signal that comes while it lets the program go on: another follows until the stop is told.
        lost = LOST_SECONDS if native else LOST_SECONDS_REMOTE
        again = f"(while sleep {lost}; do {ring}; done) & again=$!; read -r _; kill $again; wait $again"
        script = f"while read -r _; do sleep {seconds:.6f}; {ring}; {again} 2>/dev/null; done"
        self.is_set = False
        pipe = subprocess.PIPE
        self.shell = subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, start_new_session=True)

    def set(self, _event):
        """The program goes on, which gdb tells for each thread: the time begins."""
        if not self.is_set:
            self.is_set = True
            self.tell()

    def stopped(self):
        """The program has stopped."""
        if self.is_set:
            self.is_set = False
            self.tell()

    def tell(self):
        self.shell.stdin.write(b"\n")
        self.shell.stdin.flush()

    def rang(self):
        """Whether it interrupted since it was set; if not, somebody else did."""
        ready, _, _ = select.select([self.shell.stdout], [], [], 0)
        return bool(ready) and os.read(self.shell.stdout.fileno(), 1) == b"\n"

    def end(self):
        """No signal comes after this."""
        try:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait()
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass


class Sample(gdb.Command):
    """Stop the program again and again, and show which functions it was in.

Usage: rftrace-sample [-n SAMPLES] [-i MILLISECONDS] [-d DEPTH] [-l LINES] [-s] [-f FILE]

The program must be stopped when this begins, and is stopped when it ends: started, attached to,
or a machine (target remote). Prints a table of functions by the share of samples in which they were
the innermost ones (Self) and in which they were open (Total). All threads are sampled; for QEMU the
CPUs are threads. With -f FILE folded stacks are written for flame graphs. -h explains the options."""

    def __init__(self):
        super().__init__("rftrace-sample", gdb.COMMAND_STATUS)

    def invoke(self, argument, from_tty):
        self.dont_repeat()
        try:
            parser = rftrace_samples.parser("rftrace-sample", "Samples the program's stacks.")
            arguments = rftrace_samples.parse(parser, gdb.string_to_argv(argument))
            if arguments:
                self.run(arguments)
        except (ValueError, OSError) as error:
            raise gdb.GdbError(f"rftrace-sample: {error}") from None

    def run(self, arguments):
        if not gdb.selected_thread():
            raise ValueError("no program is running: start it, attach to it, or use `target remote`")
        with silence():
            samples, n_stops, ended = self.sample(arguments)
        rftrace_samples.report(samples, arguments, n_stops, ended)

    def sample(self, arguments):
        samples = rftrace_samples.Samples()
        stops = []
        on_stop = stops.append
        gdb.events.stop.connect(on_stop)
        alarm = Alarm(arguments.interval / 1000)
        on_cont = alarm.set
        gdb.events.cont.connect(on_cont)
        n_stops, n_early, ended = 0, 0, None
        try:
            while n_stops < arguments.samples and not ended:
                stops.clear()
                try:
                    gdb.execute("continue", to_string=True)
                    alarm.stopped()
                except KeyboardInterrupt:
                    # The alarm came before gdb was waiting for the program: gdb itself was interrupted.
                    alarm.stopped()
                    n_early += 1
                    if not alarm.rang():
                        raise
                    if n_early > arguments.samples:
                        ended = "the interval is too short for this target"
                    continue
                ended = self.why_not(stops)
                if not ended and not alarm.rang():
                    ended = "interrupted"
                if not ended:
                    n_stops += 1
                    self.take(samples, arguments)
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            alarm.end()
            gdb.events.stop.disconnect(on_stop)
            gdb.events.cont.disconnect(on_cont)
        return samples, n_stops, ended

    @staticmethod
    def why_not(stops):
        """Why the last stop was not that of the alarm, or `None`."""
        if not gdb.selected_thread():
            return "the program has ended"
        stop = stops[-1] if stops else None
        if isinstance(stop, gdb.SignalEvent):
            return None if stop.stop_signal == "SIGINT" else f"the program got {stop.stop_signal}"
        return "the program has stopped by itself"

    @staticmethod
    def take(samples, arguments):
        selected = gdb.selected_thread()
        threads = [selected] if arguments.selected else gdb.selected_inferior().threads()
        for thread in threads:
            if thread.is_valid():
                thread.switch()
                samples.add(frames(arguments.depth))
        selected.switch()


class Records(gdb.Command):
    """Show the newest records in the trace buffer of a stopped program or kernel, or of a core file.

Usage: rftrace-records [NUMBER]

Reads rftrace's buffer out of the program's memory: the last NUMBER (default 20) calls and returns of all
threads, with time stamp counter ticks. Needs the symbol table of the program."""

    def __init__(self):
        super().__init__("rftrace-records", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        self.dont_repeat()
        try:
            limit = rftrace_samples.count(argument) if argument.strip() else 20
        except ValueError:
            raise gdb.GdbError(f"rftrace-records: {argument}: not a number above 0") from None
        inferior = gdb.selected_inferior()
        memory = rftrace_records.Memory(lambda address, size: bytes(inferior.read_memory(address, size)), self.symbol)
        try:
            rftrace_records.report(memory, limit, self.name)
        except ValueError as error:
            raise gdb.GdbError(f"rftrace-records: {error}") from None

    @staticmethod
    def symbol(name):
        try:
            return int(gdb.parse_and_eval(f"(unsigned long)&'{name}'"))
        except gdb.error:
            return None

    @staticmethod
    def name(address):
        text = gdb.execute(f"info symbol {address:#x}", to_string=True)
        if text.startswith("No symbol"):
            return f"{address:#x}"
        return text.split(" in section ")[0].rsplit(" + ", 1)[0]


Sample()
Records()
