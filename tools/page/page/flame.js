// The flame graph: functions as wide as they took time, below those that called them.

class Flame {
  /// The most levels that are drawn; those below are seen by a click on one above.
  static LEVELS = 500;

  constructor(app) {
    this.app = app;
    this.canvas = document.getElementById('flame');
    this.box = document.getElementById('panel-flame');
    this.sums = null;
    this.top = 0;
    this.focus = 0;
    this.boxes = [];
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  /// Shows other sums. What was zoomed to stays where it is there too.
  show(sums) {
    const path = this.sums ? this.path(this.top) : [];
    this.sums = sums;
    let node = 0;
    for (const fn of path) {
      const child = sums.childrenOf(node).find(child => sums.fn[child] === fn);
      if (child === undefined) break;
      node = child;
    }
    this.top = node;
    this.focus = node;
    this.draw();
  }

  path(node) {
    const path = [];
    for (; node !== 0; node = this.sums.parent[node]) path.unshift(this.sums.fn[node]);
    return path;
  }

  draw() {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      this.isDirty = false;
      if (this.sums && !this.box.hidden) this.paint();
    });
  }

  /// The visible functions, from the top down.
  layout(width) {
    const { sums } = this;
    const found = [];
    const above = [];
    for (let node = this.top; node !== 0; node = sums.parent[node]) above.unshift(node);
    above.slice(0, -1).forEach((node, level) => found.push({ node, x: 0, width, level }));
    const scale = sums.total[this.top] > 0 ? width / sums.total[this.top] : 0;
    const level = Math.max(0, above.length - 1);
    const rest = this.top === 0
      ? []
      : [{ node: this.top, x: 0, width, level }];
    const expand = ({ node, x, level }) => {
      for (const child of sums.childrenOf(node)) {
        const width = sums.total[child] * scale;
        if (width < 0.4 || level >= Flame.LEVELS) break;
        rest.push({ node: child, x, width, level });
        x += width;
      }
    };
    if (this.top === 0) expand({ node: 0, x: 0, level: 0 });
    for (let box; (box = rest.pop());) {
      found.push(box);
      expand({ ...box, level: box.level + 1 });
    }
    return found;
  }

  paint() {
    const { sums } = this;
    const { colours, matched } = this.app;
    const width = Math.max(1, this.box.clientWidth);
    this.boxes = this.layout(width);
    const levels = this.boxes.reduce((most, box) => Math.max(most, box.level + 1), 0);
    const height = Math.max(levels * ROW + 4, this.box.clientHeight - 4);
    const context = sized(this.canvas, width, height);
    const char = context.measureText('0').width;
    context.fillStyle = colours.back;
    context.fillRect(0, 0, width, height);
    for (const { node, x, width, level } of this.boxes) {
      const fn = sums.fn[node];
      const y = 2 + level * ROW;
      const isAbove = node !== this.top && this.boxes.length > 0 && level < this.levelOfTop();
      context.fillStyle = matched ? (matched[fn] ? colours.found : colours.muted) : isAbove ? colours.muted : colours.fill(fn);
      context.fillRect(x, y, Math.max(0.5, width - 0.6), ROW - 1);
      if (width > 24) {
        context.fillStyle = matched ? (matched[fn] ? colours.text : colours.soft) : isAbove ? colours.soft : colours.ink(fn);
        label(context, this.app.labels(fn), x, y + ROW / 2, width, char);
      }
      if (node === this.focus) {
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y, Math.max(1, width - 2), ROW - 1);
      }
    }
    if (this.boxes.length === 0) {
      context.fillStyle = colours.text;
      context.fillText('No call takes time in this range.', 12, 20);
    }
  }

  levelOfTop() {
    return Math.max(0, this.path(this.top).length - 1);
  }

  pick(event) {
    const place = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const level = Math.floor((y - 2) / ROW);
    return this.boxes.find(box => box.level === level && box.x <= x && x < box.x + box.width)?.node;
  }

  zoomTo(node) {
    this.top = node;
    this.focus = node;
    this.draw();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener('pointermove', event => this.app.hoverNode(this.sums && this.pick(event), event));
    canvas.addEventListener('pointerleave', event => this.app.hoverNode(undefined, event));
    canvas.addEventListener('click', event => {
      // The second one of a double click would undo the first.
      if (event.detail > 1) return;
      const node = this.sums && this.pick(event);
      if (this.sums) this.zoomTo(node !== undefined && node === this.top ? this.sums.parent[node] : node ?? 0);
    });
    canvas.addEventListener('keydown', event => {
      const { sums, focus } = this;
      if (!sums || event.ctrlKey || event.metaKey || event.altKey) return;
      const beside = by => {
        const all = sums.childrenOf(sums.parent[focus]);
        return focus === 0 ? 0 : all[Math.max(0, Math.min(all.length - 1, all.indexOf(focus) + by))];
      };
      const does = {
        ArrowDown: () => sums.childrenOf(focus)[0] ?? focus,
        ArrowUp: () => sums.parent[focus],
        ArrowLeft: () => beside(-1),
        ArrowRight: () => beside(1),
        Enter: () => { this.top = focus; return focus; },
        Escape: () => { this.top = 0; return 0; },
      }[event.key];
      if (!does) return;
      event.preventDefault();
      event.stopPropagation();
      this.focus = does();
      this.app.showNode(this.focus);
      this.draw();
    });
  }
}
