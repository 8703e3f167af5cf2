"use strict";
// Small charts in SVG. Every chart redraws itself to the width it has, reads out under the pointer, and can be read with the arrow keys.

const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");
// Of groups and curves, in their order.
const COLORS = ["var(--main)", "var(--second)", "var(--c-moe)", "var(--c-attention)", "var(--alert)", "var(--c-elementwise)", "var(--c-gemm)"];

function node(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  parent.appendChild(element);
  return element;
}

function format(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  const places = Math.min(6, Math.max(0, digits - whole));
  return value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: places });
}

// Three significant digits, kept even where they are zeros: for values that stand beside each other.
function figure(value) {
  const whole = value > 0 ? Math.floor(Math.log10(value)) + 1 : 1;
  const places = Math.min(6, Math.max(0, 3 - whole));
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
}

function milliseconds(value) {
  return value >= 1000 ? figure(value / 1000) + " s" : figure(value) + " ms";
}

function worded(value, unit) {
  return unit === "ms" ? milliseconds(value) : format(value) + " " + unit;
}

// A tick's label: seconds from 1 s on where the unit is ms.
function short(value, unit) {
  if (unit !== "ms") return value >= 1000 ? format(value / 1000) + "k" : format(value);
  return value >= 1000 ? format(value / 1000) + " s" : format(value) + " ms";
}

// Ticks at 1, 2 or 5 times a power of ten; the last one may lie beyond the data so that the top is labelled.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function niceTop(high, count) {
  const marks = ticks(0, high, count);
  const step = marks.length > 1 ? marks[1] - marks[0] : high || 1;
  return Math.ceil(high / step - 1e-9) * step || 1;
}

function logTicks(low, high) {
  const found = [];
  const decades = Math.log10(high / low);
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++)
    for (const m of decades > 3 ? [1] : decades > 1.4 ? [1, 3] : [1, 2, 5]) {
      const value = m * Math.pow(10, k);
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  return found;
}

// What a chart needs besides its marks: margins, scales, axes, a cursor and the read-out.
class Chart {
  constructor(host, options) {
    this.host = typeof host === "string" ? document.getElementById(host) : host;
    this.options = options;
    this.group = options.group;
    if (options.legend) this.legend(options.legend);
    this.svg = node(this.host, "svg", { role: "img", tabindex: 0, "aria-label": options.label });
    this.draw();
    let width = this.host.clientWidth;
    new ResizeObserver(() => {
      if (this.host.clientWidth && this.host.clientWidth !== width) {
        width = this.host.clientWidth;
        this.draw();
      }
    }).observe(this.host);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const last = this.positions.length - 1;
      this.at = Math.min(last, Math.max(0, (this.at ?? -move) + move));
      const box = this.svg.getBoundingClientRect();
      this.show(this.at, box.left + this.positions[this.at], box.top + 12);
    });
  }

  legend(items) {
    const box = document.createElement("div");
    box.className = "legend";
    for (const item of items) {
      const entry = document.createElement("span");
      if (item.color) {
        const swatch = document.createElement("i");
        swatch.style.background = item.color;
        if (item.tick) swatch.className = "tick";
        entry.append(swatch);
      }
      entry.append(item.name);
      if (item.value) {
        const value = document.createElement("b");
        value.textContent = item.value;
        entry.append(value);
      }
      box.append(entry);
    }
    this.host.appendChild(box);
  }

  draw() {
    const o = this.options;
    const width = Math.max(160, this.host.clientWidth || 600);
    const height = o.height || 180;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.box = { left: o.left ?? 52, right: width - (o.right ?? 10), top: o.top ?? 8, bottom: height - (o.bottom ?? 34), width, height };
    this.positions = [];
    o.paint(this);
    this.cursor = node(this.svg, "line", { class: "cursor", y1: this.box.top, y2: this.box.bottom, visibility: "hidden" });
    this.dots = node(this.svg, "g", {});
  }

  x(low, high, log) {
    const { left, right } = this.box;
    if (log) return (v) => left + (Math.log(Math.max(v, low) / low) / Math.log(high / low)) * (right - left);
    return (v) => left + ((v - low) / (high - low || 1)) * (right - left);
  }

  y(low, high, log) {
    const { top, bottom } = this.box;
    if (log) return (v) => bottom - (Math.log(Math.max(v, low) / low) / Math.log(high / low)) * (bottom - top);
    return (v) => bottom - ((v - low) / (high - low || 1)) * (bottom - top);
  }

  // With `unit` the last label carries the unit and no line is spent on a title.
  xAxis(scale, marks, label, text = format, unit) {
    const { left, right, bottom, height } = this.box;
    node(this.svg, "line", { class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 });
    const inside = marks.filter((mark) => scale(mark) >= left - 1 && scale(mark) <= right + 1);
    let free = -Infinity;
    for (const mark of inside) {
      const at = scale(mark);
      const word = text(mark) + (unit && mark === inside[inside.length - 1] ? ` ${unit}` : "");
      const half = word.length * 3.2;
      if (at - half < free) continue;
      free = at + half + 8;
      node(this.svg, "line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 });
      const anchor = at + half > this.box.width ? "end" : "middle";
      node(this.svg, "text", { x: anchor === "end" ? this.box.width : at, y: bottom + 16, "text-anchor": anchor }, word);
    }
    if (label) node(this.svg, "text", { x: right, y: height - 3, "text-anchor": "end" }, label);
  }

  yAxis(scale, marks, text = format) {
    const { left, right } = this.box;
    for (const mark of marks) {
      const at = Math.round(scale(mark)) + 0.5;
      node(this.svg, "line", { class: "gridline", x1: left, x2: right, y1: at, y2: at });
      node(this.svg, "text", { x: left - 8, y: at + 4, "text-anchor": "end" }, text(mark));
    }
  }

  path(xs, ys, x, y, attributes, floor) {
    let d = "";
    let open = false;
    let from = 0;
    const close = (i) => {
      if (floor !== undefined && open) d += `L${x(xs[i - 1]).toFixed(1)} ${y(floor).toFixed(1)}L${x(xs[from]).toFixed(1)} ${y(floor).toFixed(1)}Z`;
      open = false;
    };
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === null) {
        close(i);
        continue;
      }
      if (!open) from = i;
      d += `${open ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      open = true;
    }
    close(xs.length);
    return node(this.svg, "path", { d, ...attributes });
  }

  point(event) {
    if (!this.positions.length) return;
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.box.width;
    if (this.options.pick) {
      const found = this.options.pick(this, at, ((event.clientY - box.top) / box.height) * this.box.height);
      this.show(Math.min(this.positions.length - 1, Math.max(0, found)), event.clientX, event.clientY);
      return;
    }
    let low = 0;
    let high = this.positions.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.positions[middle] <= at) low = middle;
      else high = middle;
    }
    const nearest = Math.abs(this.positions[high] - at) < Math.abs(this.positions[low] - at) ? high : low;
    this.show(nearest, event.clientX, event.clientY);
  }

  show(index, clientX, clientY) {
    this.at = index;
    for (const chart of this.group || [this]) chart.follow(index);
    const { when, rows } = this.options.read(index, this);
    tip.replaceChildren();
    const head = document.createElement("div");
    head.className = "when";
    head.textContent = when;
    tip.append(head);
    for (const row of rows) {
      const line = document.createElement("div");
      line.className = "row";
      const name = document.createElement("span");
      if (row.color) {
        const swatch = document.createElement("i");
        swatch.style.background = row.color;
        name.append(swatch);
      }
      name.append(row.name);
      const value = document.createElement("b");
      value.textContent = row.value;
      line.append(name, value);
      tip.append(line);
    }
    tip.hidden = false;
    const { offsetWidth, offsetHeight } = tip;
    const left = clientX + 16 + offsetWidth > window.innerWidth ? clientX - 16 - offsetWidth : clientX + 16;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, Math.min(window.innerHeight - offsetHeight - 4, clientY - offsetHeight / 2)) + "px";
  }

  follow(index) {
    const at = this.positions[index];
    if (at === undefined) return;
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    if (!this.options.pick) this.cursor.setAttribute("visibility", "visible");
    this.dots.replaceChildren();
    for (const dot of (this.options.dots && this.options.dots(index, this)) || [])
      if (dot.y !== null && isFinite(dot.y)) node(this.dots, "circle", { cx: at, cy: dot.y, r: 3.2, fill: dot.color });
  }

  leave() {
    this.at = undefined;
    tip.hidden = true;
    for (const chart of this.group || [this]) {
      chart.cursor.setAttribute("visibility", "hidden");
      chart.dots.replaceChildren();
    }
  }
}

// Stacked bars at [from, to) on x; `layers` are {name, color, values}.
function stack(chart, bars, layers, x, y) {
  bars.forEach(([from, to], i) => {
    let sum = 0;
    const left = x(from);
    const width = Math.max(0.8, x(to) - left - (x(to) - left > 5 ? 1 : 0));
    for (const layer of layers) {
      const value = layer.values[i] || 0;
      if (value <= 0) continue;
      const top = y(sum + value);
      node(chart.svg, "rect", { x: left.toFixed(1), y: top.toFixed(1), width: width.toFixed(1), height: Math.max(0, y(sum) - top).toFixed(1), fill: layer.color });
      sum += value;
    }
  });
}

// Which of `points` is drawn nearest to a place of the chart.
function nearest(points, chart, x, y) {
  let best = 0;
  const far = (p) => (chart.sx(p.x) - x) ** 2 + (chart.sy(p.y) - y) ** 2;
  points.forEach((p, i) => {
    if (far(p) < far(points[best])) best = i;
  });
  return best;
}
