"""Stacks that were sampled: a table of functions, and folded stacks for flame graphs. Knows no debugger."""

import argparse
import collections
import contextlib
import sys

HOOKS = ("rftrace_return_trampoline", "rftrace_paired_return_trampoline")


class Samples:
    """How often each stack was seen."""

    def __init__(self):
        self.stacks = collections.Counter()

    def add(self, stack):
        """Counts a stack: names, innermost first. What rftrace put between a function and its caller is left out."""
        own = tuple(name for name in reversed(stack) if name not in HOOKS)
        self.stacks[own or ("??",)] += 1

    def functions(self):
        """For each function: in how many samples it was the innermost one, and in how many it was open; most first."""
        itself, total = collections.Counter(), collections.Counter()
        for stack, count in self.stacks.items():
            itself[stack[-1]] += count
            for name in set(stack):
                total[name] += count
        return sorted(((itself[name], total[name], name) for name in total), key=lambda row: (-row[0], -row[1], row[2]))

    def table(self, limit=None):
        """The functions as lines of text."""
        n_samples = sum(self.stacks.values())
        lines = ["    Self    Total  Samples  Function", "  ======  =======  =======  ===================="]
        for itself, total, name in self.functions()[:limit]:
            lines.append(f"  {100 * itself / n_samples:5.1f}%  {100 * total / n_samples:6.1f}%  {itself:7}  {name}")
        return "\n".join(lines)

    def folded(self):
        """A line for each stack: names from the outermost on, separated by semicolons, and how often it was seen."""
        lines = (f"{';'.join(name.replace(';', ':') for name in stack)} {n}" for stack, n in self.stacks.most_common())
        return "".join(line + "\n" for line in lines)


class Parser(argparse.ArgumentParser):
    """Tells of wrong arguments by `ValueError`, as a debugger must not end for them."""

    def error(self, message):
        raise ValueError(f"{message}\n{self.format_usage().strip()}")


def positive(text):
    """A number above 0, for arguments."""
    number = float(text)
    if not number > 0:
        raise ValueError
    return number


def count(text):
    """A whole number above 0, for arguments."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def parser(prog, description):
    """The arguments of the sampling command."""
    parser = Parser(prog=prog, description=description)
    parser.add_argument("-n", "--samples", type=count, default=100, help="how often to stop the program (100)")
    parser.add_argument("-i", "--interval", type=positive, default=10, help="milliseconds between stops (10)")
    parser.add_argument("-d", "--depth", type=count, default=128, help="frames of a stack at most (128)")
    parser.add_argument("-l", "--limit", type=count, default=30, help="lines of the table (30)")
    parser.add_argument("-s", "--selected", action="store_true", help="only the selected thread (else all; CPUs of a guest are threads)")
    parser.add_argument("-f", "--folded", metavar="FILE", help="write folded stacks there, for flamegraph.pl or speedscope; - prints them")
    return parser


def parse(parser, words):
    """The arguments, or `None` if help was asked for and printed."""
    try:
        return parser.parse_args(words)
    except SystemExit:
        return None


def report(samples, arguments, n_stops, ended):
    """Prints the table and writes the folded stacks. `ended` says why there are fewer stops than asked for, or is `None`."""
    if ended:
        print(f"{n_stops} of {arguments.samples} stops: {ended}")
    if not samples.stacks:
        raise ValueError("no sample was taken")
    print(f"{sum(samples.stacks.values())} samples in {n_stops} stops")
    print(samples.table(arguments.limit))
    if arguments.folded:
        with contextlib.nullcontext(sys.stdout) if arguments.folded == "-" else open(arguments.folded, "w") as file:
            file.write(samples.folded())
