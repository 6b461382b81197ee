// The call tree and the functions, as tables.

/// So many rows are made at a time; a button makes more.
const CHUNK = 200;

/// A table's cell. Names are only ever text.
function cell(text, kind) {
  const made = document.createElement('td');
  made.className = kind;
  made.textContent = text;
  return made;
}

/// Shows the name of a function or task in a table, and the full one where that is short.
function showName(app, element, fn) {
  const [label] = app.labels(fn);
  const name = app.nodeName(fn);
  element.textContent = label;
  if (label !== name) element.title = name;
}

/// A row with a button that does something.
function moreRow(text, indent, act) {
  const row = document.createElement('tr');
  const made = cell('', 'name');
  made.colSpan = 9;
  made.style.paddingLeft = `${10 + indent}px`;
  const button = document.createElement('button');
  button.textContent = text;
  button.addEventListener('click', act);
  made.append(button);
  row.append(made);
  return row;
}

class FunctionTable {
  constructor(app) {
    this.app = app;
    this.body = document.getElementById('functions');
    this.key = 'total';
    this.isDown = true;
    this.limit = CHUNK;
    const columns = [['total', 'Total time'], ['self', 'Self time'], ['percent', 'Self %'], ['calls', 'Calls'], ['average', 'Average'], ['name', 'Function']];
    for (const [key, title] of columns) {
      const head = document.createElement('th');
      head.scope = 'col';
      head.dataset.key = key;
      if (key === 'name') head.className = 'name';
      const button = document.createElement('button');
      button.textContent = title;
      button.addEventListener('click', () => {
        this.isDown = this.key === key ? !this.isDown : key !== 'name';
        this.key = key;
        this.fill();
      });
      head.append(button);
      document.getElementById('columns').append(head);
    }
  }

  show(sums) {
    const { trace } = this.app;
    // Times without a processor are no function's own.
    const own = row => (isOffCpu(trace, row.fn) ? 0 : row.self);
    const all = sums.rows.reduce((sum, row) => sum + own(row), 0);
    this.rows = sums.rows.map(row => ({
      ...row, name: trace.functions[row.fn], percent: all > 0 ? own(row) / all * 100 : 0, average: row.total / row.calls,
    }));
    this.limit = CHUNK;
    this.fill();
  }

  /// The rows that are found, in order.
  sorted() {
    const { key, isDown } = this;
    const { matched } = this.app;
    const rows = matched ? this.rows.filter(row => matched[row.fn]) : [...this.rows];
    const compare = key === 'name' ? (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0) : (a, b) => a[key] - b[key];
    return rows.sort((a, b) => (isDown ? compare(b, a) : compare(a, b)) || a.fn - b.fn);
  }

  fill() {
    if (!this.rows) return;
    for (const head of document.getElementById('columns').children) {
      const isKey = head.dataset.key === this.key;
      head.setAttribute('aria-sort', isKey ? (this.isDown ? 'descending' : 'ascending') : 'none');
      head.firstChild.textContent = head.firstChild.textContent.replace(/ [↓↑]$/, '') + (isKey ? (this.isDown ? ' ↓' : ' ↑') : '');
    }
    const rows = this.sorted();
    const made = rows.slice(0, this.limit).map(row => {
      const line = document.createElement('tr');
      line.tabIndex = 0;
      line.title = 'Enter or double click: find its calls';
      const name = cell('', this.app.trace.pseudo[row.fn] ? 'name muted' : 'name');
      showName(this.app, name, row.fn);
      line.append(
        cell(duration(row.total), 'number'), cell(duration(row.self), 'number'), cell(isOffCpu(this.app.trace, row.fn) ? '' : `${row.percent.toFixed(2)}%`, ''),
        cell(count(row.calls), 'number'), cell(duration(Math.floor(row.average)), 'number'), name,
      );
      line.addEventListener('dblclick', () => this.app.find(row.name));
      line.addEventListener('keydown', event => { if (event.key === 'Enter') this.app.find(row.name); });
      return line;
    });
    if (rows.length > this.limit) {
      made.push(moreRow(`${count(rows.length - this.limit)} more functions`, 0, () => { this.limit *= 4; this.fill(); }));
    }
    this.body.replaceChildren(...made);
  }
}

class TreeList {
  /// The most rows at a time.
  static ROWS = 5000;

  constructor(app) {
    this.app = app;
    this.body = document.getElementById('tree');
    this.body.addEventListener('keydown', event => this.key(event));
  }

  show(sums) {
    this.sums = sums;
    /// Which nodes are open, and how many children each shows.
    this.open = new Map([[0, CHUNK]]);
    // Down to where there is something to see.
    for (let node = 0, level = 0; level < 6; level++) {
      const children = sums.childrenOf(node);
      if (children.length === 0 || sums.total[children[0]] < sums.total[0] / 4) break;
      node = children[0];
      this.open.set(node, CHUNK);
    }
    this.current = sums.childrenOf(0)[0];
    this.fill();
  }

  /// Which nodes lead to what is searched for, or are that.
  leading() {
    const { sums } = this;
    const { matched } = this.app;
    const leads = new Uint8Array(sums.length);
    for (let node = sums.length - 1; node > 0; node--) {
      if (matched[sums.fn[node]]) leads[node] = 1;
      if (leads[node]) leads[sums.parent[node]] = 1;
    }
    return leads;
  }

  fill() {
    if (!this.sums) return;
    const { sums, open } = this;
    const { matched } = this.app;
    const leads = matched && this.leading();
    const rows = [];
    const rest = [{ node: 0, level: 0 }];
    for (let at; (at = rest.pop());) {
      if (rows.length >= TreeList.ROWS) {
        rows.push(moreRow('Close all to see more', 0, () => { open.clear(); open.set(0, CHUNK); this.fill(); }));
        break;
      }
      if (at.more) {
        const { node, more, level } = at;
        rows.push(moreRow(`${count(more)} more`, level * 14, () => { open.set(node, open.get(node) * 4); this.fill(); }));
        continue;
      }
      const { node, level } = at;
      const children = leads ? sums.childrenOf(node).filter(child => leads[child]) : sums.childrenOf(node);
      if (node !== 0) rows.push(this.row(node, level, children.length > 0));
      const shown = open.get(node);
      if (shown === undefined) continue;
      if (children.length > shown) rest.push({ node, more: children.length - shown, level: level + 1 });
      for (const child of children.slice(0, shown).reverse()) rest.push({ node: child, level: level + 1 });
    }
    this.body.replaceChildren(...rows);
  }

  row(node, level, hasChildren) {
    const { sums, open, app } = this;
    const fn = sums.fn[node];
    const line = document.createElement('tr');
    line.dataset.node = node;
    line.tabIndex = node === this.current ? 0 : -1;
    line.setAttribute('aria-level', level);
    if (hasChildren) line.setAttribute('aria-expanded', open.has(node));
    if (app.matched?.[fn]) line.className = 'hit';
    const name = cell('', app.trace.pseudo[fn] ? 'name muted' : 'name');
    name.style.paddingLeft = `${10 + Math.min(level - 1, 60) * 14}px`;
    const fold = document.createElement('span');
    fold.className = 'fold';
    fold.textContent = hasChildren ? (open.has(node) ? '▾' : '▸') : '';
    fold.setAttribute('aria-hidden', 'true');
    const bar = document.createElement('span');
    bar.className = 'bar';
    bar.style.width = `${Math.round(sums.total[node] / Math.max(1, sums.total[0]) * 80)}px`;
    const text = document.createElement('span');
    text.className = 'text';
    showName(app, text, fn);
    name.append(fold, bar, text);
    const isTask = fn >= app.trace.functions.length;
    line.append(
      cell(duration(sums.total[node]), 'number'), cell(duration(sums.self[node]), 'number'),
      cell(isTask ? '' : count(sums.calls[node]), 'number'), name,
    );
    line.addEventListener('click', () => {
      this.current = node;
      if (hasChildren) this.toggle(node);
    });
    return line;
  }

  toggle(node) {
    if (!this.open.delete(node)) this.open.set(node, CHUNK);
    this.fill();
    this.body.querySelector(`[data-node="${node}"]`)?.focus();
  }

  key(event) {
    const line = event.target.closest('[data-node]');
    if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
    const node = Number(line.dataset.node);
    const isOpen = line.getAttribute('aria-expanded');
    const go = to => {
      if (!to?.dataset?.node) return;
      line.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
      this.current = Number(to.dataset.node);
    };
    const does = {
      ArrowDown: () => go(line.nextElementSibling),
      ArrowUp: () => go(line.previousElementSibling),
      ArrowRight: () => (isOpen === 'false' ? this.toggle(node) : go(line.nextElementSibling)),
      ArrowLeft: () => (isOpen === 'true' ? this.toggle(node) : go(this.body.querySelector(`[data-node="${this.sums.parent[node]}"]`))),
      Enter: () => isOpen && this.toggle(node),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  /// Opens what leads to hits.
  openHits() {
    const leads = this.leading();
    for (let node = 0, n = 0; node < this.sums.length && n < 300; node++) {
      if (leads[node] && !this.open.has(node)) { this.open.set(node, CHUNK); n++; }
    }
  }
}
