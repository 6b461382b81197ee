// Begins: gets the data, and ties the parts of the page together.

const byId = id => document.getElementById(id);

/// The state that the parts share.
class App {
  constructor(trace) {
    this.trace = trace;
    this.colours = new Colours(trace);
    this.isDark = matchMedia('(prefers-color-scheme: dark)').matches;
    /// For each function whether it is searched for; null without a search.
    this.matched = null;
    this.range = null;
    this.nSums = 0;
    this.theme(this.isDark);
    document.title = `${trace.title} – rftrace`;
    byId('title').textContent = byId('title').title = trace.title;
    const threads = trace.tasks.length === 1 ? '1 thread' : `${count(trace.tasks.length)} threads`;
    byId('facts').textContent = `${duration(trace.end - trace.begin)}, ${threads}, ${count(trace.nCalls)} calls`;
    byId('notes').replaceChildren(...trace.notes.map(note => Object.assign(document.createElement('li'), { textContent: note })));
    this.timeline = new Timeline(this);
    this.flame = new Flame(this);
    this.functions = new FunctionTable(this);
    this.tree = new TreeList(this);
    trace.changed = () => this.timeline.draw();
    trace.failed = error => { byId('busy').textContent = `rftrace view does not answer: ${error.message}. If it has ended, start it again.`; };
    this.listen();
    this.select(null);
  }

  theme(isDark) {
    this.isDark = isDark;
    document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
    this.colours.choose(isDark);
    this.timeline?.draw();
    this.flame?.draw();
  }

  taskName(task) {
    const own = task.name || task.process || 'task';
    const process = task.process && task.process !== own ? ` of ${task.process}` : '';
    return `${own} (${task.tid})${process}`;
  }

  /// That of a function or, beyond those, of a task.
  nodeName(fn) {
    const { functions, tasks } = this.trace;
    return functions[fn] ?? this.taskName(tasks[fn - functions.length]);
  }

  /// Its labels, the widest first.
  labels(fn) {
    return this.trace.labels[fn] ?? [this.nodeName(fn)];
  }

  /// Chooses a range; null is all of the trace. The sums follow.
  select(range) {
    const { trace, timeline } = this;
    this.range = range;
    timeline.selection = range;
    timeline.draw();
    const [from, to] = range ?? [trace.begin, trace.end];
    byId('range-text').textContent = range
      ? `Range of ${duration(to - from)}: ${exact(from)} to ${exact(to)}`
      : 'All of the trace. Shift + drag selects a range.';
    byId('range-zoom').hidden = byId('range-clear').hidden = !range;
    clearTimeout(this.waiting);
    this.summed = new Promise(resolve => {
      this.waiting = setTimeout(() => resolve(this.sum(from, to)), range ? 60 : 0);
    });
  }

  async sum(from, to) {
    const number = ++this.nSums;
    byId('busy').textContent = 'Summing up …';
    const sums = await this.trace.sums(from, to, byId('by-thread').checked, () => number !== this.nSums);
    if (!sums) return;
    byId('busy').textContent = sums.missing > 0 ? `${count(sums.missing)} calls are not in the flame graph and the call tree: they have too many call paths` : '';
    this.sums = sums;
    this.flame.show(sums);
    this.functions.show(sums);
    this.tree.show(sums);
  }

  // Search.

  /// Looks for functions by a part of their names, or /regex/.
  search(text) {
    const { trace, timeline } = this;
    text = text.trim();
    let test = null;
    try {
      const regex = /^\/(.+)\/$/.exec(text);
      const lower = text.toLowerCase();
      if (regex) { const pattern = new RegExp(regex[1]); test = name => pattern.test(name); }
      else if (text) test = name => name.toLowerCase().includes(lower);
    } catch (error) {
      byId('hits').textContent = 'invalid regular expression';
      return;
    }
    this.matched = test && Uint8Array.from(trace.functions, name => test(name));
    trace.find(this.matched);
    let nFunctions = 0;
    let nCalls = 0;
    this.matched?.forEach((isHit, fn) => { if (isHit) { nFunctions++; nCalls += trace.calls[fn]; } });
    byId('hits').textContent = this.matched ? `${count(nCalls)} calls of ${count(nFunctions)} functions` : '';
    if (this.matched && this.sums) this.tree.openHits();
    timeline.draw();
    this.flame.draw();
    this.functions.fill();
    this.tree.fill();
  }

  find(name) {
    byId('search').value = name;
    this.search(name);
    this.step(1);
  }

  /// Goes to the next hit in order of time, or to the one before.
  async step(by) {
    const { trace, timeline } = this;
    if (!this.matched) return;
    const found = await trace.next(timeline.pinned?.i !== undefined ? timeline.pinned : null, by);
    if (found && this.matched) timeline.show(found, false);
  }

  // The facts on a call.

  lines(call) {
    if (call.counter) return call.counter.lines(call.time);
    const task = this.trace.tasks[call.task];
    const { lane } = call;
    const name = this.trace.functions[lane.fn[call.i]];
    if (call.n > 1) return [`${count(call.n)} short calls`, lane.n ? `most of their time in ${name}` : `the first is ${name}`, 'Zoom in to see each.', `Thread ${this.taskName(task)}`];
    const [start, end] = [lane.start[call.i], lane.end[call.i]];
    const [args, result] = this.trace.valuesOf(lane, call.i);
    return [
      name, `Total ${exactDuration(end - start)}`, `Self ${exactDuration(this.trace.selfTime(call))}`,
      ...(args === undefined ? [] : [`Arguments ${args}`]), ...(result === undefined ? [] : [`Result ${result}`]),
      `Start ${exact(start)}`, `Thread ${this.taskName(task)}`,
    ];
  }

  tooltip(lines, event) {
    const box = byId('tooltip');
    box.hidden = !lines;
    if (!lines) return;
    const [name, ...rest] = lines;
    const made = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
    box.replaceChildren(made('b', name), ...rest.map(line => made('div', line)));
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    box.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 18}px`;
  }

  hover(call, event) {
    const key = call?.counter ? `${call.counter.heading} ${call.time}`
      : call?.i === undefined ? '' : `${call.task} ${call.depth} ${call.start} ${call.end} ${call.i} ${call.n}`;
    if (key !== this.hovered) this.hoveredLines = key && this.lines(call);
    this.hovered = key;
    this.tooltip(key && this.hoveredLines, event);
  }

  nodeLines(node) {
    const { sums } = this;
    const all = sums.total[0] || 1;
    return [
      this.nodeName(sums.fn[node]), `Total ${exactDuration(sums.total[node])}, ${(sums.total[node] / all * 100).toFixed(2)}% of the range`,
      `Self ${exactDuration(sums.self[node])}`, `Calls ${count(sums.calls[node])}`,
    ];
  }

  hoverNode(node, event) {
    this.tooltip(node ? this.nodeLines(node) : null, event);
  }

  showNode(node) {
    byId('call').textContent = byId('call').title = node ? this.nodeLines(node).join(' · ') : '';
  }

  showCall(call) {
    byId('call').textContent = byId('call').title = call?.i === undefined && !call?.counter ? '' : this.lines(call).join(' · ');
  }

  // Tabs, buttons, keys.

  tab(tab) {
    for (const other of document.querySelectorAll('[role=tab]')) {
      other.setAttribute('aria-selected', other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      byId(other.getAttribute('aria-controls')).hidden = other !== tab;
    }
    this.flame.draw();
  }

  listen() {
    const { timeline } = this;
    const tabs = [...document.querySelectorAll('[role=tab]')];
    for (const tab of tabs) tab.addEventListener('click', () => this.tab(tab));
    document.querySelector('[role=tablist]').addEventListener('keydown', event => {
      const at = tabs.indexOf(event.target);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (at < 0 || to === undefined) return;
      event.preventDefault();
      const tab = tabs[(to + tabs.length) % tabs.length];
      this.tab(tab);
      tab.focus();
    });
    byId('by-thread').addEventListener('change', () => this.select(this.range));
    byId('range-clear').addEventListener('click', () => this.select(null));
    byId('range-zoom').addEventListener('click', () => this.range && timeline.zoomTo(...this.range));
    byId('theme').addEventListener('click', () => this.theme(!this.isDark));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', event => this.theme(event.matches));
    byId('help-button').addEventListener('click', () => byId('help').showModal());
    const field = byId('search');
    field.addEventListener('input', () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search(field.value), 120);
    });
    field.addEventListener('keydown', event => {
      if (event.key !== 'Enter') return;
      clearTimeout(this.typing);
      this.search(field.value);
      this.step(event.shiftKey ? -1 : 1);
    });
    byId('next').addEventListener('click', () => this.step(1));
    byId('previous').addEventListener('click', () => this.step(-1));
    document.addEventListener('keydown', event => {
      if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open) return;
      const inField = event.target === field;
      if (event.key === 'Escape') {
        field.value = '';
        this.search('');
        this.select(null);
        timeline.canvas.focus();
      } else if (!inField) {
        const does = {
          '/': () => field.focus(), n: () => this.step(1), N: () => this.step(-1), 0: () => timeline.reset(),
          f: () => this.range && timeline.zoomTo(...this.range),
          w: () => timeline.zoom(0.7), s: () => timeline.zoom(1 / 0.7), a: () => timeline.pan(-0.15), d: () => timeline.pan(0.15),
          '+': () => timeline.zoom(0.7), '-': () => timeline.zoom(1 / 0.7), '?': () => byId('help').showModal(),
        }[event.key];
        if (!does) return;
        event.preventDefault();
        does();
      }
    });
    timeline.canvas.focus({ preventScroll: true });
  }
}

/// A time since the trace's start, to the nanosecond.
function exact(ns) {
  const [unit, digits, name] = ns < 1e6 ? [1e3, 3, 'us'] : ns < 1e9 ? [1e6, 6, 'ms'] : [1e9, 9, 's'];
  const whole = Math.floor(ns / unit);
  return `${whole}.${String(Math.round(ns - whole * unit)).padStart(digits, '0')} ${name}`;
}

/// The data: embedded, compressed, in base64; or the server's.
async function load() {
  const embedded = byId('data');
  if (!embedded) {
    const answer = await fetch('data');
    if (!answer.ok) throw new Error(`rftrace view answers with status ${answer.status}`);
    return new Uint8Array(await answer.arrayBuffer());
  }
  const text = embedded.textContent;
  const step = 1 << 20;
  const parts = [];
  for (let at = 0; at < text.length; at += step) {
    const raw = atob(text.slice(at, at + step));
    const part = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) part[i] = raw.charCodeAt(i);
    parts.push(part);
  }
  embedded.remove();
  const plain = new Blob(parts).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/// For tests: the whole state.
window.rftrace = { app: null, error: null, firstPicture: null };
(async () => {
  const loading = byId('loading');
  try {
    const trace = await Trace.unpack(await load(), part => { loading.textContent = `Loading … ${Math.round(part * 100)}%`; });
    window.rftrace.app = new App(trace);
    await trace.ready;
    loading.hidden = true;
    requestAnimationFrame(() => requestAnimationFrame(() => { window.rftrace.firstPicture = performance.now(); }));
  } catch (error) {
    loading.hidden = false;
    loading.textContent = `Cannot show the trace: ${error.message}.\nIf rftrace view has ended, start it again.`;
    window.rftrace.error = String(error.stack ?? error);
  }
})();
