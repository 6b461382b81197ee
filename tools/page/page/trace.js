'use strict';
// The calls of a trace in columns, and how times are written. What is unpacked is described in src/pack.rs.

/// The first index of `sorted[lo..hi]` whose value is not below `value`.
function lowerBound(sorted, value, lo, hi) {
  while (lo < hi) {
    const middle = (lo + hi) >>> 1;
    if (sorted[middle] < value) lo = middle + 1; else hi = middle;
  }
  return lo;
}

/// The first index of `sorted[lo..hi]` whose value is above `value`.
function upperBound(sorted, value, lo, hi) {
  while (lo < hi) {
    const middle = (lo + hi) >>> 1;
    if (sorted[middle] <= value) lo = middle + 1; else hi = middle;
  }
  return lo;
}

/// Lets the browser do what waits: draw, take input. Timers would take 4 ms.
const pause = (() => {
  const channel = new MessageChannel();
  const waiting = [];
  channel.port1.onmessage = () => waiting.shift()();
  return () => new Promise(resolve => { waiting.push(resolve); channel.port2.postMessage(0); });
})();

/// The calls of one task at one depth, in order of time. They do not overlap, so both columns of times are sorted.
class Lane {
  constructor(length) {
    this.length = length;
    this.start = new Float64Array(length);
    this.end = new Float64Array(length);
    this.fn = new Uint32Array(length);
    /// The index of the caller, one depth above.
    this.parent = new Uint32Array(length);
    this.filled = 0;
    /// The calls that have values, as indices, and of each the numbers of its arguments and of its result: few, and beside the others.
    this.valued = new Uint32Array(0);
    this.values = new Uint32Array(0);
  }

  /// The calls of a range, as indices [lo, hi): what is open in it, and what takes no time at its beginning.
  within(from, to) {
    let lo = upperBound(this.end, from, 0, this.length);
    while (lo > 0 && this.start[lo - 1] >= from) lo--;
    return [lo, Math.max(lo, lowerBound(this.start, to, lo, this.length))];
  }
}

/// Unpacks the events of one task, `count` at a time.
class Unpacker {
  constructor(bytes, pos, end, lanes) {
    Object.assign(this, { bytes, pos, end, lanes, time: 0, depth: 0 });
  }

  /// Returns whether there are more.
  step(count) {
    const { bytes, end, lanes } = this;
    let { pos, time, depth } = this;
    while (pos < end && count-- > 0) {
      let byte = bytes[pos++];
      let id = byte & 0x7f;
      for (let shift = 7; byte > 0x7f; shift += 7) {
        byte = bytes[pos++];
        id |= (byte & 0x7f) << shift;
      }
      byte = bytes[pos++];
      let since = byte & 0x7f;
      for (let scale = 128; byte > 0x7f; scale *= 128) {
        byte = bytes[pos++];
        since += (byte & 0x7f) * scale;
      }
      time += since;
      if (id === 0) {
        const lane = lanes[--depth];
        lane.end[lane.filled - 1] = time;
      } else {
        const lane = lanes[depth];
        const i = lane.filled++;
        lane.start[i] = time;
        lane.fn[i] = id - 1;
        if (depth > 0) lane.parent[i] = lanes[depth - 1].filled - 1;
        depth++;
      }
    }
    Object.assign(this, { pos, time, depth });
    return pos < end;
  }
}

/// Unpacks the values of a task. Returns whether they end where they should.
async function unpackValues(bytes, pos, end, lanes) {
  const number = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[pos++];
      value |= (byte & 0x7f) << shift;
      if (!(byte > 0x7f)) return value;
    }
  };
  for (const lane of lanes) {
    if (pos >= end) break;
    const length = number();
    lane.valued = new Uint32Array(length);
    lane.values = new Uint32Array(2 * length);
    for (let k = 0, call = 0; k < length; k++, call++) {
      call += number();
      lane.valued[k] = call;
      lane.values[2 * k] = number();
      lane.values[2 * k + 1] = number();
      if (k % (1 << 18) === 0) await pause();
    }
  }
  return pos === end;
}

/// Of each function whether it is none: time without a processor, and what has no name.
function pseudoFunctions(names) {
  return names.map(name => /^[a-z]+:[^:]|^\((unknown|other functions)\)$/.test(name));
}

/// Whether a function stands for time without a processor, which is no call.
function isOffCpu(trace, fn) {
  return fn === trace.waiting || fn === trace.preempted;
}

/// All calls of functions.
function callsOf(trace) {
  return trace.calls.reduce((sum, n, fn) => sum + (isOffCpu(trace, fn) ? 0 : n), 0);
}

/// All of it. What a longer one answers by the server (`ZoomTrace`) is here at once.
class Trace {
  /// `progress` is told which part is done.
  static async unpack(bytes, progress) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const text = new TextDecoder();
    if (text.decode(bytes.subarray(0, 8)) !== 'rfpage1\n') throw new Error('the data are not a trace');
    const headEnd = 12 + view.getUint32(8, true);
    const head = JSON.parse(text.decode(bytes.subarray(12, headEnd)));
    head.counters = (head.counters ?? []).map(counter => new Counter(counter));
    head.labels = head.labels.map((labels, fn) => (labels.length > 0 ? labels : [head.functions[fn]]));
    if (head.calls) return new ZoomTrace(head);
    const trace = Object.assign(new Trace(), head);
    trace.calls = new Float64Array(trace.functions.length);
    let pos = headEnd;
    for (const task of trace.tasks) {
      task.lanes = task.depths.map(count => new Lane(count));
      const unpacker = new Unpacker(bytes, pos, pos + task.bytes, task.lanes);
      while (unpacker.step(1 << 18)) {
        progress(unpacker.pos / bytes.length);
        await pause();
      }
      if (unpacker.pos !== pos + task.bytes || unpacker.depth !== 0) throw new Error('the data are incomplete');
      pos = unpacker.pos + task.values;
      if (!await unpackValues(bytes, unpacker.pos, pos, task.lanes)) throw new Error('the data are incomplete');
      for (const lane of task.lanes) for (const fn of lane.fn) trace.calls[fn]++;
    }
    trace.nCalls = callsOf(trace);
    trace.pseudo = pseudoFunctions(trace.functions);
    return trace;
  }

  /// Is told what is seen.
  look() {}

  /// The calls of a row, and the hits of the search among them.
  row(task, depth) {
    const lane = this.tasks[task].lanes[depth];
    return { lane, found: this.hits && { lane, list: this.hits[task][depth] } };
  }

  /// Has calls of some functions found, or none.
  find(matched) {
    /// The hits of a search, `hits[task][depth]`, as indices of calls; null without one.
    this.hits = matched && this.tasks.map(task => task.lanes.map(lane => Trace.hitsIn(lane, matched)));
  }

  static hitsIn({ fn }, matched) {
    let n = 0;
    for (let i = 0; i < fn.length; i++) n += matched[fn[i]];
    const hits = new Uint32Array(n);
    for (let i = 0, k = 0; k < n; i++) if (matched[fn[i]]) hits[k++] = i;
    return hits;
  }

  /// The next hit in order of time behind a call, or the one before; null if there is none.
  next(at, by) {
    // In order of start, then of task and depth.
    const isAfter = (a, b) => a.start - b.start || a.task - b.task || a.depth - b.depth || a.i - b.i;
    let best = null;
    for (const [t, lanes] of this.hits.entries()) {
      for (const [depth, hits] of lanes.entries()) {
        const lane = this.tasks[t].lanes[depth];
        let [lo, hi] = [0, hits.length];
        const call = k => ({ start: lane.start[hits[k]], end: lane.end[hits[k]], task: t, depth, i: hits[k], n: 1, lane });
        const isPast = k => (at ? isAfter(call(k), at) > 0 : by > 0);
        const isBefore = k => (at ? isAfter(call(k), at) < 0 : by < 0);
        while (lo < hi) {
          const middle = (lo + hi) >>> 1;
          if (by > 0 ? isPast(middle) : !isBefore(middle)) hi = middle; else lo = middle + 1;
        }
        const k = by > 0 ? lo : lo - 1;
        if (k < 0 || k >= hits.length) continue;
        const found = call(k);
        if (!best || isAfter(found, best) * by < 0) best = found;
      }
    }
    return best;
  }

  sums(from, to, byThread, isOld) {
    return sumUp(this, from, to, byThread, isOld);
  }

  /// The arguments and the result of a call, each as text, or undefined.
  valuesOf(lane, i) {
    const k = lowerBound(lane.valued, i, 0, lane.valued.length);
    return [0, 1].map(which => (lane.valued[k] === i ? this.values[lane.values[2 * k + which] - 1] : undefined));
  }

  /// How long a call was in its own function.
  selfTime({ task, depth, i, lane }) {
    const below = this.tasks[task].lanes[depth + 1];
    let time = lane.end[i] - lane.start[i];
    if (below) {
      const hi = upperBound(below.parent, i, 0, below.length);
      for (let k = lowerBound(below.parent, i, 0, hi); k < hi; k++) time -= below.end[k] - below.start[k];
    }
    return time;
  }
}

/// Goes through calls of a range that are in order and do not overlap, `start[at(k)]` for k in [0, length). Calls that are narrower
/// than a pixel, of `px` nanoseconds, are one block with the others that begin in that pixel: of those, only the last can be wider
/// than it, as each ends before the next begins. So a binary search finds the block's end.
function eachBlock(lane, hits, from, to, px, block) {
  const { start, end } = lane;
  const length = hits ? hits.length : lane.length;
  const at = hits ? k => hits[k] : k => k;
  let lo = 0;
  for (let hi = length; lo < hi;) {
    const middle = (lo + hi) >>> 1;
    if (end[at(middle)] < from) lo = middle + 1; else hi = middle;
  }
  for (let k = lo; k < length && start[at(k)] < to;) {
    const i = at(k);
    if (end[i] - start[i] >= px) {
      block(start[i], end[i], i, lane.n ? lane.n[i] : 1);
      k++;
      continue;
    }
    const limit = (Math.floor(start[i] / px) + 1) * px;
    const first = k;
    let step = 1;
    let next = k + 1;
    while (next < length && start[at(next)] < limit) {
      k = next;
      step *= 2;
      next = k + step;
    }
    // The block ends in (k, next].
    let last = k + 1;
    for (let hi = Math.min(next, length); last < hi;) {
      const middle = (last + hi) >>> 1;
      if (start[at(middle)] < limit) last = middle + 1; else hi = middle;
    }
    if (last - 1 > first && end[at(last - 1)] - start[at(last - 1)] >= px) last--;
    // Blocks of the server's (`Blocks`) have several calls each, and none of those is the first.
    if (lane.n) block(start[i], end[last - 1], lane.busiest(first, last - 1), lane.count(first, last - 1));
    else block(start[i], end[at(last - 1)], i, last - first);
    k = last;
  }
}

/// As `rftrace report` writes times: in the largest unit that leaves a whole part, with three decimals, cut.
function duration(ns) {
  const [unit, name] = ns < 1e6 ? [1, 'us'] : ns < 1e9 ? [1e3, 'ms'] : [1e6, 's'];
  const thousandths = Math.floor(ns / unit);
  return `${Math.floor(thousandths / 1000)}.${String(thousandths % 1000).padStart(3, '0')} ${name}`;
}

/// The same, and all nanoseconds where that does not show them.
function exactDuration(ns) {
  return ns < 1e6 ? duration(ns) : `${duration(ns)} (${count(ns)} ns)`;
}

function count(number) {
  return number.toLocaleString('en-US');
}
