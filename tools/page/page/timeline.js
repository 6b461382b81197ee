// The timeline: all calls of all threads, drawn as far as they are seen.

const ROW = 18;
const HEAD = 24;
const AXIS = 24;
const FONT = '11px ui-monospace, "DejaVu Sans Mono", monospace';

/// The colours of functions. Those of one module, the part before the last `::`, are alike.
class Colours {
  constructor(trace) {
    this.trace = trace;
    this.hues = trace.functions.map(name => {
      const module = name.replace(/::[^:]*$/, '');
      return [Colours.hash(module) % 360, Colours.hash(name) % 5];
    });
    this.choose(false);
  }

  static hash(text) {
    let hash = 7;
    for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
    return (hash ^ (hash >>> 15)) >>> 0;
  }

  choose(isDark) {
    const style = getComputedStyle(document.documentElement);
    for (const name of ['back', 'panel', 'text', 'soft', 'line', 'accent', 'select', 'hit']) this[name] = style.getPropertyValue(`--${name}`).trim();
    this.muted = isDark ? '#343a42' : '#dfe2e6';
    // Stronger than any function's: others had the processor.
    this.preempted = isDark ? '#8f5200' : '#f08c00';
    this.found = isDark ? '#b0357c' : '#ffa6d5';
    const [saturation, light, step] = isDark ? [34, 25, 2.5] : [58, 76, 3];
    this.of = this.hues.map(([hue, shade], fn) => {
      if (fn === this.trace.preempted) return this.preempted;
      return this.trace.pseudo[fn] ? this.muted : Colours.hex(hue, saturation / 100, (light + shade * step) / 100);
    });
    this.pixels = Uint32Array.from(this.of, Colours.pixel);
  }

  /// A colour by hue (0 to 360), saturation and lightness (0 to 1).
  static hex(hue, saturation, lightness) {
    const part = n => {
      const k = (n + hue / 30) % 12;
      const value = lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return Math.round(value * 255).toString(16).padStart(2, '0');
    };
    return `#${part(0)}${part(8)}${part(4)}`;
  }

  /// As an image has it.
  static pixel(hex) {
    const [red, green, blue] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
    return (0xff000000 | blue << 16 | green << 8 | red) >>> 0;
  }

  /// That of a function; of tasks, which come after the functions, the muted one.
  fill(fn) {
    return this.of[fn] ?? this.muted;
  }

  /// That of a name on the function's own colour.
  ink(fn) {
    return this.trace.pseudo[fn] && fn !== this.trace.preempted ? this.soft : this.text;
  }
}

/// Gives a canvas the size of a box, in the screen's own pixels. Returns its context.
function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d', { alpha: false });
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = FONT;
  context.textBaseline = 'middle';
  return context;
}

/// Writes as much of a name as fits.
function label(context, labels, x, y, width, char) {
  const fits = Math.floor((width - 6) / char);
  if (fits >= 3) context.fillText(labels.find(label => label.length <= fits) ?? `${labels.at(-1).slice(0, fits - 1)}…`, x + 3, y);
}

class Timeline {
  static COUNTERS = 8;

  /// `app` is told of what is chosen: `showCall`, `select`, and has `trace`, `colours` and `tooltip`.
  constructor(app) {
    this.app = app;
    this.canvas = document.getElementById('timeline');
    this.box = document.getElementById('timeline-scroll');
    this.space = document.getElementById('timeline-space');
    /// Tasks by their numbers, and counters. Of many counters most are folded at first.
    this.folded = new Set(app.trace.counters.slice(Timeline.COUNTERS));
    this.selection = null;
    this.pinned = null;
    this.frames = 0;
    this.drawing = { last: 0, longest: 0 };
    this.reset();
    this.layout();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  reset() {
    const { begin, end } = this.app.trace;
    this.from = begin;
    this.to = Math.max(end, begin + 1);
    this.draw();
  }

  /// The places of all rows, from the top: tasks by their numbers, each process's counters above its first one.
  layout() {
    const { tasks, counters } = this.app.trace;
    this.places = [];
    this.placeTops = [];
    this.tops = [];
    let y = AXIS;
    const put = (place, height) => {
      this.places.push(place);
      this.placeTops.push(y);
      y += HEAD + (this.folded.has(place) ? 0 : height) + 4;
    };
    const waiting = Map.groupBy(counters, counter => counter.pid);
    const putCounters = pid => {
      for (const counter of waiting.get(pid) ?? []) put(counter, COUNTER);
      waiting.delete(pid);
    };
    for (const [t, task] of tasks.entries()) {
      putCounters(task.pid);
      this.tops.push(y);
      put(t, task.depths.length * ROW);
    }
    for (const pid of [...waiting.keys()]) putCounters(pid);
    this.height = y + 8;
    // Browsers have no higher ones.
    this.space.style.height = `${Math.min(this.height, 3e7)}px`;
    this.draw();
  }

  draw() {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      this.isDirty = false;
      const begun = performance.now();
      this.paint();
      this.frames++;
      this.drawing.last = performance.now() - begun;
      this.drawing.longest = Math.max(this.drawing.longest, this.drawing.last);
    });
  }

  get width() {
    return Math.max(1, this.box.clientWidth);
  }

  /// Nanoseconds a pixel.
  get px() {
    return (this.to - this.from) / this.width;
  }

  x(time) {
    return (time - this.from) / this.px;
  }

  time(x) {
    return this.from + x * this.px;
  }

  paint() {
    const { trace, colours } = this.app;
    const [width, height] = [this.width, this.box.clientHeight];
    const context = sized(this.canvas, width, height);
    this.char ??= context.measureText('0').width;
    context.fillStyle = colours.back;
    context.fillRect(0, 0, width, height);
    const scroll = this.box.scrollTop;
    const first = Math.max(0, upperBound(this.placeTops, scroll, 0, this.places.length) - 1);
    const rows = [];
    const heads = [];
    for (let k = first; k < this.places.length && this.placeTops[k] - scroll < height; k++) {
      const [place, top] = [this.places[k], this.placeTops[k] - scroll];
      heads.push([place, top]);
      if (this.folded.has(place) || place instanceof Counter) continue;
      const nDepths = trace.tasks[place].depths.length;
      const begin = Math.max(0, Math.floor((AXIS - top - HEAD) / ROW));
      for (let depth = begin; depth < nDepths && top + HEAD + depth * ROW < height; depth++) {
        rows.push({ task: place, depth, y: top + HEAD + depth * ROW });
      }
    }
    trace.look(rows, this.from, this.to, (this.to - this.from) / this.canvas.width);
    this.paintRows(context, rows, width);
    this.paintPinned(context, width, scroll);
    for (const [place, top] of heads) this.paintPlace(context, width, place, top);
    this.paintAxis(context, width);
    if (this.selection) {
      const [a, b] = this.selection.map(time => this.x(time));
      context.fillStyle = colours.select;
      context.fillRect(a, 0, b - a, height);
      context.fillStyle = colours.accent;
      context.fillRect(a, 0, 1, height);
      context.fillRect(b - 1, 0, 1, height);
    }
    if (trace.tasks.length === 0) {
      context.fillStyle = colours.text;
      context.fillText('There are no calls.', 12, this.height - scroll + 12);
    }
  }

  /// The head of a task; of a counter all of it.
  paintPlace(context, width, place, top) {
    const { trace, colours } = this.app;
    const isFolded = this.folded.has(place);
    const isCounter = place instanceof Counter;
    if (isCounter && !isFolded) {
      context.fillStyle = colours.accent;
      place.paint(context, this.from, this.px, width, top + HEAD);
    }
    context.fillStyle = colours.panel;
    context.fillRect(0, top, width, HEAD - 3);
    context.fillStyle = colours.text;
    const name = isCounter ? place.heading : this.app.taskName(trace.tasks[place]);
    context.fillText(`${isFolded ? '▸' : '▾'} ${name}`, 8, top + HEAD / 2 - 1);
  }

  /// Narrow calls and blocks of them, which may be as many as there are pixels, become an image with a line for each row; wide ones
  /// are rectangles with names.
  paintRows(context, rows, width) {
    const { trace, colours } = this.app;
    if (rows.length === 0) return;
    const columns = this.canvas.width;
    const px = (this.to - this.from) / columns;
    const scale = columns / width;
    if (this.image?.width !== columns || this.image.height < rows.length) this.image = new ImageData(columns, rows.length + 16);
    const pixels = new Uint32Array(this.image.data.buffer);
    pixels.fill(Colours.pixel(colours.back), 0, columns * rows.length);
    const [muted, found] = [Colours.pixel(colours.muted), Colours.pixel(colours.found)];
    const wide = [];
    const isSearch = this.app.matched !== null;
    for (const [r, { task, depth, y }] of rows.entries()) {
      const { lane, found: hits } = trace.row(task, depth);
      if (!lane) continue;
      const draw = (lane, list, pixelOf, isHit) => {
        eachBlock(lane, list, this.from, this.to, px, (start, end, i, n) => {
          const left = (start - this.from) / px;
          const right = (end - this.from) / px;
          if (n === 1 && right - left > 3 * scale) {
            wide.push({ left: Math.max(-2, left / scale), right: Math.min(width + 2, right / scale), y, fn: lane.fn[i], isHit });
            return;
          }
          const from = Math.max(0, Math.floor(left));
          const to = Math.min(columns, Math.max(Math.floor(left) + 1, Math.round(right)));
          pixels.fill(pixelOf(lane.fn[i]), r * columns + from, r * columns + Math.max(from, to));
        });
      };
      draw(lane, null, isSearch ? () => muted : fn => colours.pixels[fn], false);
      if (hits) draw(hits.lane, hits.list, () => found, true);
    }
    this.strip ??= document.createElement('canvas');
    if (this.strip.width !== columns || this.strip.height !== this.image.height) {
      [this.strip.width, this.strip.height] = [columns, this.image.height];
    }
    this.strip.getContext('2d', { alpha: false }).putImageData(this.image, 0, 0, 0, 0, columns, rows.length);
    context.imageSmoothingEnabled = false;
    for (const [r, { y }] of rows.entries()) context.drawImage(this.strip, 0, r, columns, 1, 0, y, width, ROW - 1);
    for (const { left, right, y, fn, isHit } of wide) {
      context.fillStyle = isHit ? colours.found : isSearch ? colours.muted : colours.fill(fn);
      context.fillRect(left, y, right - left - 0.6, ROW - 1);
      if (right - left > 24) {
        context.fillStyle = isHit ? colours.text : isSearch ? colours.soft : colours.ink(fn);
        label(context, trace.labels[fn], Math.max(0, left), y + ROW / 2, right - Math.max(0, left), this.char);
      }
    }
  }

  paintPinned(context, width, scroll) {
    const { pinned } = this;
    if (pinned?.i === undefined || this.folded.has(pinned.task)) return;
    const left = Math.max(-2, this.x(pinned.start));
    const right = Math.min(width + 2, this.x(pinned.end));
    const y = this.tops[pinned.task] - scroll + HEAD + pinned.depth * ROW;
    context.strokeStyle = this.app.colours.text;
    context.lineWidth = 2;
    if (right > left - 3) context.strokeRect(left, y, Math.max(2, right - left), ROW - 1);
  }

  paintAxis(context, width) {
    const { colours } = this.app;
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width, AXIS - 2);
    context.fillStyle = colours.line;
    context.fillRect(0, AXIS - 2, width, 1);
    const least = this.px * 110;
    const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    const step = Math.max(1, [1, 2, 5, 10].map(n => n * power).find(step => step >= least) ?? 10 * power);
    context.fillStyle = colours.text;
    for (let n = Math.ceil(this.from / step); n * step < this.to; n++) {
      const x = this.x(n * step);
      context.fillRect(x, AXIS - 8, 1, 6);
      context.fillText(Timeline.moment(n * step, step), x + 4, AXIS / 2 - 2);
    }
  }

  /// A time since the trace's start, as exact as the distance of ticks.
  static moment(ns, step) {
    const [unit, name] = ns < 1e6 ? [1e3, 'us'] : ns < 1e9 ? [1e6, 'ms'] : [1e9, 's'];
    const digits = Math.max(0, Math.min(9, Math.round(Math.log10(unit)) - Math.floor(Math.log10(step))));
    return `${(ns / unit).toFixed(digits)} ${name}`;
  }

  /// The call at a place; of those narrower than a pixel, the first one, and how many there are.
  pick(x, y) {
    const { trace } = this.app;
    if (y < AXIS) return null;
    const inside = y + this.box.scrollTop;
    const k = upperBound(this.placeTops, inside, 0, this.places.length) - 1;
    if (k < 0) return null;
    const t = this.places[k];
    const row = inside - this.placeTops[k] - HEAD;
    if (row < 0) return { fold: t };
    if (t instanceof Counter) return this.folded.has(t) ? null : { counter: t, time: Math.round(this.time(x)) };
    const depth = Math.floor(row / ROW);
    const lane = this.folded.has(t) ? undefined : trace.row(t, depth).lane;
    if (!lane) return null;
    let found = null;
    const time = this.time(x);
    eachBlock(lane, null, time - 2 * this.px, time + this.px, this.px, (start, end, i, n) => {
      if (start <= time + this.px / 2 && Math.max(end, start + this.px) >= time - this.px / 2) found = { task: t, depth, i, n, start, end, lane };
    });
    return found;
  }

  view(from, to) {
    const { begin, end } = this.app.trace;
    const whole = Math.max(1, end - begin);
    const span = Math.min(Math.max(to - from, 20), whole * 1.2);
    const middle = (from + to) / 2;
    const least = begin - whole * 0.1;
    const most = end + whole * 0.1;
    this.from = Math.min(Math.max(middle - span / 2, least), Math.max(least, most - span));
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, x = this.width / 2) {
    const time = this.time(x);
    const span = Math.max(20, (this.to - this.from) * factor);
    const from = time - span * (x / this.width);
    this.view(from, from + span);
  }

  pan(part) {
    const by = (this.to - this.from) * part;
    this.view(this.from + by, this.to + by);
  }

  zoomTo(from, to) {
    const margin = Math.max(5, (to - from) * 0.05);
    this.view(from - margin, to + margin);
  }

  /// Shows a call: its time, as wide as it may be seen, and its row.
  show(call, fits) {
    const { start, end } = call;
    this.pinned = call;
    if (fits) this.zoomTo(start, end);
    else if (end - start < this.px * 4) this.zoomTo(start - (end - start + 20) * 40, end + (end - start + 20) * 40);
    else if (start < this.from || end > this.to) {
      const span = Math.max(this.to - this.from, (end - start) * 1.5);
      this.view((start + end - span) / 2, (start + end + span) / 2);
    }
    if (this.folded.delete(call.task)) this.layout();
    const y = this.tops[call.task] + HEAD + call.depth * ROW;
    if (y < this.box.scrollTop + AXIS || y + ROW > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = y - this.box.clientHeight / 2;
    }
    this.app.showCall(call);
    this.draw();
  }

  listen() {
    const { canvas, box } = this;
    const place = event => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    box.addEventListener('scroll', () => this.draw());
    canvas.addEventListener('wheel', event => {
      event.preventDefault();
      const [x] = place(event);
      const scale = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.pan((event.deltaX || event.deltaY) * scale / this.width);
      } else {
        this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * scale * 0.003))), x);
      }
    }, { passive: false });
    let drag = null;
    canvas.addEventListener('pointerdown', event => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      drag = { x, y, time: this.time(x), from: this.from, to: this.to, scroll: box.scrollTop, selects: event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', event => {
      const [x, y] = place(event);
      if (!drag) {
        this.app.hover(this.pick(x, y), event);
        return;
      }
      if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) drag.moved = true;
      if (!drag.moved) return;
      this.app.hover(null, event);
      if (drag.selects) {
        const { begin, end } = this.app.trace;
        const times = [drag.time, this.time(x)].sort((a, b) => a - b).map(time => Math.round(Math.min(Math.max(time, begin), end)));
        this.app.select(times[0] < times[1] ? times : null);
      } else {
        const by = (drag.x - x) * this.px;
        this.view(drag.from + by, drag.to + by);
        box.scrollTop = drag.scroll + drag.y - y;
      }
    });
    const end = event => {
      if (drag && !drag.moved) {
        const found = this.pick(drag.x, drag.y);
        if (found?.fold !== undefined) {
          if (!this.folded.delete(found.fold)) this.folded.add(found.fold);
          this.layout();
        } else {
          this.pinned = found;
          this.app.showCall(found);
          this.draw();
        }
      }
      drag = null;
      if (event.type === 'pointercancel') this.app.hover(null, event);
    };
    canvas.addEventListener('pointerup', end);
    canvas.addEventListener('pointercancel', end);
    canvas.addEventListener('pointerleave', event => this.app.hover(null, event));
    canvas.addEventListener('dblclick', event => {
      const found = this.pick(...place(event));
      if (found?.i !== undefined) this.show(found, true);
    });
    canvas.addEventListener('keydown', event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const does = {
        ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
        ArrowUp: () => { box.scrollTop -= 3 * ROW; }, ArrowDown: () => { box.scrollTop += 3 * ROW; },
        Enter: () => { if (this.pinned?.i !== undefined) this.show(this.pinned, true); },
      }[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    });
  }
}
