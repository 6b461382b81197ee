// The calls of a range, summed up by the functions that they were called through.

/// A tree in columns. Node 0 is around all; nodes follow their parents.
class Sums {
  static MAX = 1 << 20;

  constructor() {
    this.length = 0;
    this.grow(1 << 10);
    this.missing = 0;
    this.add(0, 0xffffffff);
  }

  grow(size) {
    const larger = (Kind, old) => { const made = new Kind(size); if (old) made.set(old); return made; };
    this.fn = larger(Uint32Array, this.fn);
    this.parent = larger(Uint32Array, this.parent);
    this.total = larger(Float64Array, this.total);
    this.self = larger(Float64Array, this.self);
    this.calls = larger(Float64Array, this.calls);
    // A hash table of nodes by parent and function; 0 is a free place.
    this.mask = size * 2 - 1;
    this.table = new Uint32Array(size * 2);
    for (let node = 1; node < this.length; node++) this.table[this.place(this.parent[node], this.fn[node])] = node;
  }

  /// Where a node is in the table, or would be.
  place(parent, fn) {
    let at = Math.imul(parent, 0x9e3779b1) ^ Math.imul(fn, 0x85ebca6b);
    at = (at ^ (at >>> 15)) & this.mask;
    for (let node; (node = this.table[at]) !== 0; at = (at + 1) & this.mask) {
      if (this.parent[node] === parent && this.fn[node] === fn) break;
    }
    return at;
  }

  add(parent, fn) {
    if (this.length === this.fn.length) this.grow(this.length * 2);
    const node = this.length++;
    this.parent[node] = parent;
    this.fn[node] = fn;
    if (node > 0) this.table[this.place(parent, fn)] = node;
    return node;
  }

  /// The node of a function below another one; 0 if there are too many.
  below(parent, fn) {
    const node = this.table[this.place(parent, fn)];
    if (node !== 0) return node;
    return this.length < Sums.MAX ? this.add(parent, fn) : 0;
  }

  /// Counts a call for its node and the time for that of its caller, which is not the caller's own.
  count(node, caller, time) {
    this.total[node] += time;
    this.self[node] += time;
    this.calls[node]++;
    if (caller !== 0) this.self[caller] -= time;
  }

  /// Links nodes, once all calls are in.
  finish() {
    this.firstChild = new Uint32Array(this.length);
    this.sibling = new Uint32Array(this.length);
    for (let node = this.length - 1; node > 0; node--) {
      const parent = this.parent[node];
      this.sibling[node] = this.firstChild[parent];
      this.firstChild[parent] = node;
    }
    this.children = new Map();
  }

  /// By time, longest first.
  childrenOf(node) {
    let found = this.children.get(node);
    if (!found) {
      found = [];
      for (let child = this.firstChild[node]; child !== 0; child = this.sibling[child]) found.push(child);
      found.sort((a, b) => this.total[b] - this.total[a] || a - b);
      this.children.set(node, found);
    }
    return found;
  }
}

/// Says when the browser should have its turn.
class Slices {
  constructor(isOld) {
    this.isOld = isOld;
    this.end = performance.now() + 8;
  }

  get isOver() {
    return performance.now() > this.end;
  }

  /// Returns whether to go on.
  async next() {
    await pause();
    this.end = performance.now() + 8;
    return !this.isOld();
  }
}

/// Sums up the calls of [from, to), which count for the time that they were in it. Returns null if `isOld` says that nobody waits for
/// it any more.
async function sumUp(trace, from, to, byThread, isOld) {
  // A call that ends a trace at its last nanosecond is in it.
  if (to >= trace.end) to = Infinity;
  const slices = new Slices(isOld);
  const parts = trace.tasks.map((task, t) => ({ t, lanes: task.lanes, within: task.lanes.map(lane => lane.within(from, to)) }));
  const sums = new Sums();
  if (!await sumTree(sums, trace, parts, from, to, byThread, slices)) return null;
  sums.rows = await sumFunctions(trace, parts, from, to, slices);
  return sums.rows && sums;
}

/// Depth by depth: what a call's caller counts for is known then, and where there are too many nodes the outer ones are there.
async function sumTree(sums, trace, parts, from, to, byThread, slices) {
  for (const part of parts) {
    part.top = byThread ? sums.below(0, trace.functions.length + part.t) : 0;
    part.above = null;
  }
  let rest = parts;
  for (let depth = 0; rest.length > 0; depth++) {
    rest = rest.filter(({ within }) => depth < within.length && within[depth][0] < within[depth][1]);
    for (const part of rest) {
      const [lo, hi] = part.within[depth];
      const [aboveLo, aboveHi] = depth > 0 ? part.within[depth - 1] : [0, 0];
      const { start, end, fn, parent } = part.lanes[depth];
      const { above } = part;
      const nodes = new Uint32Array(hi - lo);
      for (let i = lo; i < hi; i++) {
        if ((i & 0x3fff) === 0 && slices.isOver && !await slices.next()) return false;
        const time = Math.min(end[i], to) - Math.max(start[i], from);
        let caller = 0;
        if (depth === 0) {
          sums.total[0] += time;
          if (part.top !== 0) sums.total[part.top] += time;
        } else {
          const p = parent[i];
          // One at the range's very edge, whose caller is outside.
          if (p < aboveLo || p >= aboveHi) continue;
          caller = above[p - aboveLo];
          if (caller === 0) { sums.missing++; continue; }
        }
        const node = sums.below(depth === 0 ? part.top : caller, fn[i]);
        nodes[i - lo] = node;
        if (node === 0) {
          sums.missing++;
          if (caller !== 0) sums.self[caller] -= time;
        } else {
          sums.count(node, caller, time);
        }
      }
      part.above = nodes;
    }
  }
  sums.finish();
  return true;
}

/// A row for each function that was called. In `total`, calls within a call of the same function do not count again: so calls are gone
/// through as they were made.
async function sumFunctions(trace, parts, from, to, slices) {
  const n = trace.functions.length;
  const [total, self, calls, nOpen] = [new Float64Array(n), new Float64Array(n), new Float64Array(n), new Uint32Array(n)];
  let steps = 0;
  for (const { lanes, within } of parts) {
    const next = within.map(([lo]) => lo);
    const open = new Uint32Array(lanes.length);
    for (let depth = 0; depth >= 0;) {
      if ((++steps & 0x3fff) === 0 && slices.isOver && !await slices.next()) return null;
      if (depth < lanes.length) {
        const lane = lanes[depth];
        const hi = within[depth][1];
        let i = next[depth];
        // Past what is at the range's very edge, whose caller is outside.
        if (depth > 0) while (i < hi && lane.parent[i] < open[depth - 1]) i++;
        if (i < hi && (depth === 0 || lane.parent[i] === open[depth - 1])) {
          const fn = lane.fn[i];
          const time = Math.min(lane.end[i], to) - Math.max(lane.start[i], from);
          if (nOpen[fn]++ === 0) total[fn] += time;
          self[fn] += time;
          calls[fn]++;
          if (depth > 0) self[lanes[depth - 1].fn[open[depth - 1]]] -= time;
          open[depth] = i;
          next[depth] = i + 1;
          depth++;
          continue;
        }
        next[depth] = i;
      }
      depth--;
      if (depth >= 0) nOpen[lanes[depth].fn[open[depth]]]--;
    }
  }
  const rows = [];
  for (let fn = 0; fn < n; fn++) if (calls[fn] > 0) rows.push({ fn, total: total[fn], self: self[fn], calls: calls[fn] });
  return rows;
}
