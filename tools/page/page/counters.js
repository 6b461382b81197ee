// Resources of processes over time, above the calls.

const COUNTER = 40;

/// One quantity of a process. It keeps each value until the next one.
class Counter {
  constructor({ name, isBytes, pid, process, times, values }) {
    Object.assign(this, { name, isBytes, pid, process });
    let time = 0;
    this.times = Float64Array.from(times, since => (time += since));
    this.values = Float64Array.from(values);
    this.most = this.values.reduce((most, value) => Math.max(most, value), 0);
  }

  /// How much it is at a time: nothing before it is known.
  at(time) {
    return this.values[upperBound(this.times, time, 0, this.times.length) - 1] ?? 0;
  }

  /// So much of it, as `rftrace resources` writes it.
  amount(value) {
    if (!this.isBytes) return count(value);
    if (value < 1e4) return `${value} bytes`;
    const [unit, name] = value < 1e7 ? [1e3, 'kB'] : value < 1e10 ? [1e6, 'MB'] : [1e9, 'GB'];
    return `${(value / unit).toFixed(1)} ${name}`;
  }

  get owner() {
    return this.process ? `${this.process} (${this.pid})` : `process ${this.pid}`;
  }

  get heading() {
    return `${this.name} of ${this.owner}: ${this.amount(this.most)} at the most`;
  }

  /// The facts on a time.
  lines(time) {
    return [this.amount(this.at(time)), this.name, `Process ${this.owner}`, `At ${exact(time)}`];
  }

  /// Draws the most that it is in each pixel, of `px` nanoseconds.
  paint(context, from, px, width, y) {
    const { times, values, most } = this;
    let k = upperBound(times, from, 0, times.length) - 1;
    for (let x = 0; x < width; x++) {
      let high = values[k] ?? 0;
      for (const to = from + (x + 1) * px; k + 1 < times.length && times[k + 1] < to;) high = Math.max(high, values[++k]);
      const height = high > 0 ? Math.max(1, Math.round(high / most * COUNTER)) : 0;
      if (height > 0) context.fillRect(x, y + COUNTER - height, 1, height);
    }
  }
}
