// A trace that is too long for the page: what is seen is asked of the server. How that is packed is described in src/zoom/.

/// Reads numbers as src/numbers.rs writes them.
class Numbers {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  next() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    let value = byte & 0x7f;
    for (let scale = 128; byte > 0x7f; scale *= 128) {
      byte = bytes[this.at++];
      value += (byte & 0x7f) * scale;
    }
    return value;
  }
}

/// Calls and blocks of calls of one task at one depth, in order of time: what a `Lane` is of a trace that is here.
class Blocks {
  constructor(length) {
    this.length = length;
    this.start = new Float64Array(length);
    this.end = new Float64Array(length);
    this.fn = new Uint32Array(length);
    /// How many calls, and which call of its depth is the first.
    this.n = new Float64Array(length);
    this.call = new Float64Array(length);
    /// Of one call its own time; of several how much of it the function took that took most.
    this.part = new Float64Array(length);
    this.values = new Uint32Array(2 * length);
  }

  /// Reads one row of an answer.
  static async read(numbers, slices) {
    const length = numbers.next();
    const blocks = new Blocks(length);
    const { start, end, fn, n, call, part, values } = blocks;
    if (length === 0) return blocks;
    let time = numbers.next();
    let number = numbers.next();
    for (let i = 0; i < length; i++) {
      if ((i & 0xfff) === 0 && slices.isOver) await slices.next();
      start[i] = time + numbers.next();
      const width = numbers.next();
      time = end[i] = start[i] + width;
      n[i] = numbers.next();
      call[i] = number;
      number += n[i];
      const kind = numbers.next();
      fn[i] = Math.floor(kind / 2);
      const without = numbers.next();
      part[i] = n[i] === 1 ? width - without : numbers.next();
      if (kind % 2 === 1) {
        values[2 * i] = numbers.next();
        values[2 * i + 1] = numbers.next();
      }
    }
    return blocks;
  }

  /// How many calls are in some blocks that follow each other.
  count(first, last) {
    return this.call[last] + this.n[last] - this.call[first];
  }

  /// Which of them has the function that takes most time.
  busiest(first, last) {
    let best = first;
    const time = i => (this.n[i] === 1 ? this.end[i] - this.start[i] : this.part[i]);
    for (let i = first + 1; i <= last; i++) if (time(i) > time(best)) best = i;
    return best;
  }
}

class ZoomTrace {
  /// The most pictures that are kept. They are of what was seen of late, and the first one of all.
  static PICTURES = 6;

  constructor(head) {
    Object.assign(this, head);
    this.nCalls = callsOf(this);
    // Names of no function: time without a processor, and what has no name.
    this.pseudo = pseudoFunctions(this.functions);
    /// Called when there is more to be drawn, and where the server does not answer.
    this.changed = () => {};
    this.failed = () => {};
    this.pictures = [];
    /// The functions that are searched for, by their numbers; null without a search.
    this.finds = null;
    this.isAsking = false;
    /// Once there is something to be drawn.
    this.ready = new Promise(resolve => { this.isReady = resolve; });
    if (this.tasks.length === 0) this.isReady();
  }

  async ask(name, question) {
    const answer = await fetch(name, { method: 'POST', body: JSON.stringify(question) });
    if (!answer.ok) throw new Error((await answer.text()).trim() || `it answers with status ${answer.status}`);
    return new Numbers(new Uint8Array(await answer.arrayBuffer()));
  }

  static key(task, depth) {
    return task * 8192 + depth;
  }

  /// Is told what is seen: `rows` of `task` and `depth`, from one time to another, in pixels of so many nanoseconds. Asks for what is not
  /// here, one question at a time: when that was answered it is told anew.
  look(rows, from, to, px) {
    this.view = { from: Math.max(from, this.begin), to: Math.min(to, this.end + 1), px: Math.max(px, 1) };
    if (this.isAsking || rows.length === 0) return;
    const { view } = this;
    const isMissing = rows.some(({ task, depth }) => !this.shows(this.picture(task, depth), view));
    if (isMissing) {
      // Some more on both sides, and finer: the next moves need no other picture.
      const margin = (view.to - view.from) / 2;
      const asked = {
        from: Math.max(this.begin, Math.floor(view.from - margin)), to: Math.min(this.end + 1, Math.ceil(view.to + margin)),
        px: Math.max(1, Math.floor(view.px / 2)),
      };
      this.askFor('picture', asked, rows.map(({ task, depth }) => ZoomTrace.key(task, depth)));
      return;
    }
    if (!this.finds) return;
    const unfound = new Map();
    for (const { task, depth } of rows) {
      const key = ZoomTrace.key(task, depth);
      const picture = this.picture(task, depth);
      if (picture.find !== this.finds) { picture.hits = new Map(); picture.find = this.finds; }
      if (!picture.hits.has(key)) unfound.set(picture, [...(unfound.get(picture) ?? []), key]);
    }
    const [first] = unfound;
    if (first) this.askFor('hits', ...first);
  }

  /// Asks for rows, of a picture that is there or for a new one.
  async askFor(name, picture, keys) {
    this.isAsking = true;
    const { from, to, px } = picture;
    const find = this.finds;
    const rows = [];
    for (const key of keys) {
      const [task, depth] = [Math.floor(key / 8192), key % 8192];
      const last = rows[rows.length - 1];
      if (last?.[0] === task && last[2] === depth) last[2]++;
      else rows.push([task, depth, depth + 1]);
    }
    try {
      const numbers = await this.ask(name, { from, to, px, rows, ...(name === 'hits' ? { find } : {}) });
      const slices = new Slices(() => false);
      const found = new Map();
      for (const key of keys) found.set(key, await Blocks.read(numbers, slices));
      if (name === 'picture') this.keep({ from, to, px, rows: found, hits: new Map(), find });
      else if (picture.find === find) for (const [key, blocks] of found) picture.hits.set(key, blocks);
      this.isReady();
    } catch (error) {
      this.failed(error);
      this.isReady();
      // It is not asked at once again.
      await new Promise(resolve => setTimeout(resolve, 2000));
    }
    this.isAsking = false;
    this.changed();
  }

  /// The one that was seen longest ago goes, but the first, which is of all.
  keep(picture) {
    this.pictures.push(picture);
    if (this.pictures.length > ZoomTrace.PICTURES) this.pictures.splice(1, 1);
  }

  shows(picture, { from, to, px }) {
    return picture !== undefined && picture.from <= from && picture.to >= to && picture.px <= px;
  }

  /// The best picture of a row: it shows most of the visible range, then most finely.
  picture(task, depth) {
    const key = ZoomTrace.key(task, depth);
    const { from, to } = this.view;
    const part = picture => Math.min(picture.to, to) - Math.max(picture.from, from);
    let best;
    for (const picture of this.pictures) {
      if (!picture.rows.has(key)) continue;
      const more = best === undefined ? 1 : part(picture) - part(best);
      if (more > 0 || (more === 0 && picture.px <= best.px)) best = picture;
    }
    return best;
  }

  /// The blocks of a row, as far as they are here, and those with hits of the search.
  row(task, depth) {
    const key = ZoomTrace.key(task, depth);
    const picture = this.view && this.picture(task, depth);
    if (!picture) return {};
    const isFound = this.finds && picture.find === this.finds && picture.hits.has(key);
    return { lane: picture.rows.get(key), found: isFound ? { lane: picture.hits.get(key), list: null } : null };
  }

  find(matched) {
    this.finds = null;
    if (!matched) return;
    this.finds = [];
    matched.forEach((isHit, fn) => { if (isHit && this.calls[fn] > 0) this.finds.push(fn); });
  }

  /// The next hit behind a call, or the one before.
  async next(here, by) {
    const place = here && [here.start, here.task, here.depth, here.lane.call[here.i] + (by > 0 ? here.n - 1 : 0)];
    const numbers = await this.ask('next', { find: this.finds, here: place, back: by < 0 });
    if (numbers.next() === 0) return null;
    const [task, depth, call, start, end, fn, part, args, result] = Array.from({ length: 9 }, () => numbers.next());
    const lane = new Blocks(1);
    for (const [column, value] of Object.entries({ call, start, end, fn, part, n: 1 })) lane[column][0] = value;
    lane.values.set([args, result]);
    return { task, depth, i: 0, n: 1, start, end, lane };
  }

  valuesOf(lane, i) {
    return [0, 1].map(which => this.values[lane.values[2 * i + which] - 1]);
  }

  selfTime({ lane, i }) {
    return lane.part[i];
  }

  /// The sums of a range; null if `isOld` says that nobody waits for them any more. One question at a time.
  async sums(from, to, byThread, isOld) {
    while (this.summing) await this.summing;
    if (isOld()) return null;
    let numbers;
    try {
      this.summing = this.ask('sums', { from, to, apart: byThread });
      numbers = await this.summing;
    } catch (error) {
      this.failed(error);
      return null;
    } finally {
      this.summing = null;
    }
    const sums = new Sums();
    sums.missing = numbers.next();
    const length = numbers.next();
    sums.total[0] = numbers.next();
    const slices = new Slices(isOld);
    for (let node = 1; node < length; node++) {
      if ((node & 0x3fff) === 0 && slices.isOver && !await slices.next()) return null;
      const above = numbers.next();
      sums.add(above, numbers.next());
      sums.calls[node] = numbers.next();
      sums.total[node] = numbers.next();
      sums.self[node] = numbers.next();
    }
    sums.finish();
    sums.rows = [];
    for (let n = numbers.next(); n > 0; n--) {
      const [fn, calls, total, self] = [numbers.next(), numbers.next(), numbers.next(), numbers.next()];
      sums.rows.push({ fn, total, self, calls });
    }
    return sums;
  }
}
