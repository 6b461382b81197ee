"""Reads the newest records out of a stopped program's or kernel's trace buffer. Knows no debugger."""

import struct

# The layout of src/abi/: its VERSION, which is part of a symbol's name, sizes, and offsets of fields. All else here goes by these.
# The test `samplers::offsets_are_those_of_the_tracer` compares them with the tracer's.
VERSION = 10
CONTROL_SYMBOL = "rftrace_backend_control_v{}"
LAYOUT = {
    "Control.chunk_bytes": 8,
    "Control.n_chunks": 16,
    "Control.chunks": 24,
    "Control.cycle_start_tsc": 96,
    "ChunkHeader.lease": 0,
    "ChunkHeader.tid": 28,
    "ChunkHeader.taken_tsc": 32,
    "ChunkHeader": 64,
    "Record.tsc": 0,
    "Record.word": 8,
    "Record": 16,
    "chunk_state.MASK": 7,
    "chunk_state.FREE": 0,
    "chunk_state.FULL": 2,
    "kind.MASK": 3,
    "kind.ENTRY": 0,
    "kind.EXIT": 1,
    "kind.LOST": 2,
    "kind.RESYNC": 3,
    "kind.POINT": 4,
    "kind.LEFT": 4,
    "kind.NEW_THREAD": 4,
    "state.HIDDEN": 8,
    "ADDRESS_SHIFT": 16,
    "MIN_CHUNK_BYTES": 512,
    "MAX_CHUNK_BYTES": 65536,
}


class Memory:
    """What is to be read: `read(address, size)` gives bytes, `symbol(name)` an address or `None`."""

    def __init__(self, read, symbol):
        self.read = read
        self.symbol = symbol

    def word(self, address):
        return struct.unpack("<Q", self.read(address, 8))[0]


def control_address(memory):
    """Where the control block is: the function that returns it loads its address, relative to the next instruction."""
    address = memory.symbol(CONTROL_SYMBOL.format(VERSION))
    if address is None:
        others = [version for version in range(1, 100) if memory.symbol(CONTROL_SYMBOL.format(version)) is not None]
        if others:
            raise ValueError(f"the tracer in this program has version {others[0]}, this script knows {VERSION}: use that of its release")
        raise ValueError(f"no symbol {CONTROL_SYMBOL.format(VERSION)}: load the symbols of a program that has rftrace in it")
    code = bytes(memory.read(address, 24))
    place = code.find(b"\x48\x8d\x05")  # lea rax, [rip + offset]
    if place < 0 or place + 7 > len(code):
        raise ValueError(f"{CONTROL_SYMBOL.format(VERSION)} at {address:#x} is not code as expected: {code.hex()}")
    return address + place + 7 + struct.unpack_from("<i", code, place + 3)[0]


class Record:
    """A record: when, in which thread, and its word."""

    def __init__(self, tsc, tid, word):
        self.tsc = tsc
        self.tid = tid
        self.word = word
        self.kind = word & LAYOUT["kind.MASK"]
        self.address = word >> LAYOUT["ADDRESS_SHIFT"]

    def text(self, name_of):
        """What happened."""
        if self.kind == LAYOUT["kind.ENTRY"]:
            return f"entry  {name_of(self.address)}" + (" (return not hooked)" if self.word & LAYOUT["kind.POINT"] else "")
        if self.kind == LAYOUT["kind.EXIT"]:
            return f"exit   {name_of(self.address)}" + (" (left)" if self.word & LAYOUT["kind.LEFT"] else "")
        if self.kind == LAYOUT["kind.LOST"]:
            return f"lost   {self.address} calls, nested too deep"
        return f"resync {self.address} functions open"


def newest(memory, limit):
    """The newest records of this cycle, oldest of them first."""
    control = control_address(memory)
    field = lambda name: memory.word(control + LAYOUT["Control." + name])
    chunk_bytes, n_chunks, chunks, start = map(field, ("chunk_bytes", "n_chunks", "chunks", "cycle_start_tsc"))
    if chunk_bytes == 0:
        raise ValueError("the tracer has no buffer yet")
    if not LAYOUT["MIN_CHUNK_BYTES"] <= chunk_bytes <= LAYOUT["MAX_CHUNK_BYTES"] or chunk_bytes & (chunk_bytes - 1):
        raise ValueError(f"the control block at {control:#x} makes no sense: chunks of {chunk_bytes} bytes")
    candidates = []
    for number in range(n_chunks):
        address = chunks + number * chunk_bytes
        header = memory.read(address, LAYOUT["ChunkHeader"])
        (tid,) = struct.unpack_from("<I", header, LAYOUT["ChunkHeader.tid"])
        lease, taken = (struct.unpack_from("<Q", header, LAYOUT["ChunkHeader." + name])[0] for name in ("lease", "taken_tsc"))
        state = lease & LAYOUT["chunk_state.MASK"]
        if state == LAYOUT["chunk_state.FREE"] or tid == 0:
            continue
        last = memory.word(address + chunk_bytes - LAYOUT["Record"] + LAYOUT["Record.tsc"])
        # When its newest record was written, if that is known: by the last record of a chunk that is full.
        newest_tsc = last if state == LAYOUT["chunk_state.FULL"] and last >= taken else (1 << 64) - 1
        candidates.append((newest_tsc, address, tid, taken))
    candidates.sort(reverse=True)
    records = []
    for newest_tsc, address, tid, taken in candidates:
        if len(records) >= limit and newest_tsc < records[0].tsc:
            break
        records += of_chunk(memory.read(address, chunk_bytes), tid, max(taken, start), taken)
        records.sort(key=lambda record: record.tsc)
        del records[:-limit]
    return records


def of_chunk(chunk, tid, start, taken):
    """The records of a chunk since `start`."""
    for offset in range(LAYOUT["ChunkHeader"], len(chunk), LAYOUT["Record"]):
        tsc, word = struct.unpack_from("<QQ", chunk, offset)
        if tsc < taken:
            continue
        record = Record(tsc, tid, word)
        if record.kind == LAYOUT["kind.RESYNC"] and word & LAYOUT["kind.NEW_THREAD"]:
            tid = record.address
        elif tsc >= start and not (record.kind == LAYOUT["kind.EXIT"] and word & LAYOUT["state.HIDDEN"]):
            yield record


def report(memory, limit, name_of):
    """Prints the newest records."""
    records = newest(memory, limit)
    if not records:
        print("no records")
        return
    print("               TICKS  SINCE BEFORE  THREAD  WHAT")
    before = records[0].tsc
    for record in records:
        print(f"{record.tsc:20}  {record.tsc - before:12}  {record.tid:6}  {record.text(name_of)}")
        before = record.tsc
