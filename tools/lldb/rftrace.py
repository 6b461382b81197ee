"""Commands for lldb: `command script import tools/lldb/rftrace.py`, then `help rftrace-sample`, `help rftrace-records`."""

import contextlib
import os
import pathlib
import shlex
import signal
import sys
import threading

import lldb

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "debugger"))
import rftrace_records  # noqa: E402
import rftrace_samples  # noqa: E402


# After that a signal has been lost.
LOST_SECONDS = 2


def name_at(address):
    """The function at an `SBAddress`, or `None`."""
    name = address.GetFunction().GetName() or address.GetSymbol().GetName()
    return name.split("(")[0] if name else None


def take(process, samples, arguments):
    threads = [process.GetSelectedThread()] if arguments.selected else list(process)
    for thread in threads:
        frames = (thread.GetFrameAtIndex(number) for number in range(min(thread.GetNumFrames(), arguments.depth)))
        samples.add([frame.GetFunctionName() or f"{frame.GetPC():#x}" for frame in frames])


def is_of_this_machine(pid):
    """Whether a debugger of this machine has the process: the ids that a remote target tells mean nothing here."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "\nTracerPid:\t0\n" not in status


def is_alarm(process):
    """Whether the last stop was that of the alarm: no breakpoint, no fault, no other signal."""
    for thread in process:
        reason = thread.GetStopReason()
        is_signal = reason == lldb.eStopReasonSignal and thread.GetStopReasonDataAtIndex(0) == signal.SIGINT
        if not is_signal and reason not in (lldb.eStopReasonNone, lldb.eStopReasonInvalid):
            return False
    return True


class Alarm(threading.Thread):
    """Interrupts a process after some time, and again if that was lost. A signal waits for a process that does not run
    yet; an interrupt by lldb would be lost."""

    def __init__(self, process, seconds):
        super().__init__(daemon=True)
        self.pid = process.GetProcessID()
        self.seconds = seconds
        self.has_stopped = threading.Event()
        self.start()

    def run(self):
        seconds = self.seconds
        while not self.has_stopped.wait(seconds):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)
            seconds = LOST_SECONDS

    def end(self):
        self.has_stopped.set()
        self.join()


def run(process, arguments):
    samples = rftrace_samples.Samples()
    n_stops, ended = 0, None
    while n_stops < arguments.samples and not ended:
        alarm = Alarm(process, arguments.interval / 1000)
        error = process.Continue()
        alarm.end()
        if error.Fail():
            ended = f"the program cannot go on: {error}"
        elif process.GetState() != lldb.eStateStopped:
            ended = "the program has ended"
        elif not is_alarm(process):
            ended = "the program has stopped by itself"
        else:
            n_stops += 1
            take(process, samples, arguments)
    rftrace_samples.report(samples, arguments, n_stops, ended)


class Sample:
    """Stops the program again and again, and shows which functions it was in."""

    def __init__(self, debugger, _dictionary):
        self.parser = rftrace_samples.parser("rftrace-sample", self.__doc__)

    def get_short_help(self):
        return self.__doc__

    def get_long_help(self):
        return self.parser.format_help()

    def __call__(self, debugger, command, context, result):
        process = context.GetProcess()
        was_async = debugger.GetAsync()
        signals = process.GetUnixSignals()
        was_suppressed = signals.GetShouldSuppress(signal.SIGINT)
        try:
            arguments = rftrace_samples.parse(self.parser, shlex.split(command))
            if not arguments:
                return
            if not process.IsValid() or process.GetState() != lldb.eStateStopped:
                raise ValueError("no stopped program: start it or attach to it")
            if not is_of_this_machine(process.GetProcessID()):
                raise ValueError("lldb samples programs of this machine only: use gdb for others, and for kernels")
            debugger.SetAsync(False)
            signals.SetShouldSuppress(signal.SIGINT, True)
            run(process, arguments)
        except (ValueError, OSError) as error:
            result.SetError(f"rftrace-sample: {error}")
        finally:
            debugger.SetAsync(was_async)
            signals.SetShouldSuppress(signal.SIGINT, was_suppressed)


class Records:
    """Shows the newest records in the trace buffer of a stopped program or kernel: rftrace-records [NUMBER]"""

    def __init__(self, debugger, _dictionary):
        pass

    def get_short_help(self):
        return self.__doc__

    def get_long_help(self):
        return self.__doc__

    def __call__(self, debugger, command, context, result):
        target, process = context.GetTarget(), context.GetProcess()

        def read(address, size):
            error = lldb.SBError()
            data = process.ReadMemory(address, size, error)
            if error.Fail():
                raise ValueError(f"{size} bytes at {address:#x}: {error}")
            return data

        def symbol(name):
            address = target.FindSymbols(name).GetContextAtIndex(0).GetSymbol().GetStartAddress().GetLoadAddress(target)
            return None if address == lldb.LLDB_INVALID_ADDRESS else address

        def name(address):
            return name_at(target.ResolveLoadAddress(address)) or f"{address:#x}"

        try:
            limit = rftrace_samples.count(command) if command.strip() else 20
            rftrace_records.report(rftrace_records.Memory(read, symbol), limit, name)
        except ValueError as error:
            result.SetError(f"rftrace-records: {error}")


def __lldb_init_module(debugger, _dictionary):
    for name, command in (("rftrace-sample", Sample), ("rftrace-records", Records)):
        debugger.HandleCommand(f"command script add -c {__name__}.{command.__name__} {name}")
