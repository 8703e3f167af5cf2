// The page's charts, from the embedded data.

const data = JSON.parse(document.getElementById("data").textContent);
const color = (name) => `var(--${name})`;
const COMPONENTS = { gemm: "matrix products", attention: "attention", moe: "experts", head: "LM head and sampler", elementwise: "norms and activations", collective: "collectives", launch: "kernel launches", host: "host", draft: "drafting" };

function empty(id, text) {
  const host = document.getElementById(id);
  if (!host) return;
  const note = document.createElement("p");
  note.className = "empty";
  note.textContent = text;
  host.append(note);
}

function component(name) {
  return { name: COMPONENTS[name] || name, color: `var(--c-${name}, var(--c-transfer))` };
}

// Components in the order of the legend, those of a model that has them.
function components(values) {
  const known = Object.keys(COMPONENTS).filter((name) => name in values);
  return known.concat(Object.keys(values).filter((name) => !(name in COMPONENTS)));
}

for (const name of ["ttft", "tpot", "itl", "e2el"]) {
  const cdf = data.cdf[name];
  if (!cdf) {
    empty(`cdf-${name}`, "No sample.");
    continue;
  }
  const low = Math.max(cdf.ms.find((v) => v > 0) || 1e-3, 1e-6);
  const slowest = cdf.ms[cdf.ms.length - 1];
  // Few samples far beyond all others would leave those no room: the axis ends before them, and says where they are.
  const cut = cdf.p99 > low && slowest > low + 8 * (cdf.p99 - low);
  const high = cut ? low + 4 * (cdf.p99 - low) : slowest;
  const shown = cut ? cdf.ms.filter((v) => v <= high).length : cdf.ms.length;
  const [at, share] = [cdf.ms.slice(0, shown), cdf.share.slice(0, shown)];
  const log = high / low > 60;
  const seconds = high >= 5000;
  const unit = seconds ? 1000 : 1;
  new Chart(`cdf-${name}`, {
    label: `Cumulative distribution of ${name.toUpperCase()}: median ${milliseconds(cdf.p50)}, P99 ${milliseconds(cdf.p99)}, ${cdf.count} samples`,
    height: 206,
    left: 38,
    top: 32,
    paint(chart) {
      // A distribution that lies far from zero fills its axis.
      const from = log ? low : low > high / 2 && high > low ? low - (high - low) / 8 : 0;
      const to = Math.max(high, from * 1.001 + 1e-9);
      const x = (chart.sx = chart.x(from, to, log));
      const y = (chart.sy = chart.y(0, 1));
      chart.yAxis(y, [0, 0.25, 0.5, 0.75, 1], (v) => 100 * v + "%");
      const marks = (log ? logTicks(from / unit, to / unit) : ticks(from / unit, to / unit, 4)).map((v) => v * unit);
      chart.xAxis(x, marks, `${seconds ? "s" : "ms"}${log ? ", log scale" : ""}${cut ? `, slowest ${milliseconds(slowest)}` : ""}`, (v) => format(v / unit));
      for (const [word, value, part] of [["P50", cdf.p50, 0.5], ["P99", cdf.p99, 0.99]]) {
        const place = x(value);
        node(chart.svg, "line", { class: "p", x1: place, x2: place, y1: chart.box.top, y2: chart.box.bottom });
        // The two labels stand side by side however near their lines are, and inside the chart.
        const gap = 58;
        const middle = Math.min(Math.max((x(cdf.p50) + x(cdf.p99)) / 2, chart.box.left + gap / 2), chart.box.width - gap);
        const spread = x(cdf.p99) - x(cdf.p50) < gap;
        const centre = spread ? middle + (part < 0.9 ? -gap / 2 : gap / 2) : place;
        const label = Math.min(Math.max(centre, 26), chart.box.width - 24);
        node(chart.svg, "text", { x: label, y: 9, "text-anchor": "middle" }, word);
        node(chart.svg, "text", { class: "strong", x: label, y: 23, "text-anchor": "middle" }, milliseconds(value));
        node(chart.svg, "circle", { cx: place, cy: y(part), r: 3, fill: color("main") });
      }
      chart.path(at, share, x, y, { class: "line", stroke: color("main") });
      chart.positions = at.map(x);
    },
    read: (i) => ({ when: `P${format(100 * cdf.share[i])}`, rows: [{ name: `${name.toUpperCase()} at most`, value: milliseconds(cdf.ms[i]) }] }),
    dots: (i, chart) => [{ y: chart.sy(cdf.share[i]), color: color("main") }],
  });
}

if (data.parts.length) {
  const kinds = [["queue", "second"], ["prefill", "c-attention"], ["decode", "main"]];
  const top = Math.max(...data.parts.map((row) => row.queue + row.prefill + row.decode));
  const unit = top >= 2000 ? 1000 : 1;
  const rowHeight = 46;
  new Chart("parts", {
    label: "Mean queue, prefill and decode time: " + data.parts.map((r) => `${r.group}: ${kinds.map(([k]) => `${k} ${milliseconds(r[k])}`).join(", ")}`).join("; "),
    height: data.parts.length * rowHeight + 30,
    left: 0,
    bottom: 22,
    pick: (chart, x, y) => Math.floor((y - chart.box.top) / rowHeight),
    legend: kinds.map(([name, tone]) => ({ name, color: color(tone) })),
    paint(chart) {
      const x = chart.x(0, top);
      data.parts.forEach((row, r) => {
        const y = chart.box.top + r * rowHeight;
        let sum = 0;
        const title = node(chart.svg, "text", { x: 0, y: y + 8 }, "");
        title.append(`${row.group} `);
        node(title, "tspan", { style: "font-weight: 600; fill: var(--ink)" }, milliseconds(row.queue + row.prefill + row.decode));
        for (const [kind, tone] of kinds) {
          const left = x(sum);
          const width = x(sum + row[kind]) - left;
          node(chart.svg, "rect", { x: left, y: y + 14, width: Math.max(0, width - (width > 3 ? 1 : 0)), height: 18, fill: color(tone) });
          if (width > 76) node(chart.svg, "text", { class: "onbar", x: left + 7, y: y + 27, style: "fill: var(--paper); font-weight: 600" }, milliseconds(row[kind]));
          sum += row[kind];
        }
        chart.positions.push(x(sum) / 2);
      });
      chart.xAxis(x, ticks(0, top / unit, 8).map((v) => v * unit), "", (v) => format(v / unit), unit === 1000 ? "s" : "ms");
    },
    read(i) {
      const row = data.parts[i];
      return { when: row.group, rows: kinds.map(([kind, tone]) => ({ name: kind, value: milliseconds(row[kind]), color: color(tone) })) };
    },
  });
} else empty("parts", "No request finished.");

const time = data.time;
if (time) {
  const group = [];
  const last = time.t.length * time.width_s;
  const [unit, word] = last > 7200 ? [3600, "h"] : last > 600 ? [60, "min"] : [1, "s"];
  const centre = time.t.map((t) => t + time.width_s / 2);
  const when = (i) => `${format(time.t[i] / unit, 4)} – ${format((time.t[i] + time.width_s) / unit, 4)} ${word}`;
  const timeChart = (id, label, series, extra = {}) => {
    const count = extra.count || 4;
    const top = extra.top || niceTop(Math.max(extra.limit || 0, ...series.flatMap((s) => s.values)), count);
    const chart = new Chart(id, {
      label,
      group,
      height: (extra.height || 160) + (extra.last ? 14 : 0),
      bottom: extra.last ? 34 : 20,
      legend: extra.legend || (series.length > 1 ? series.map((s) => ({ name: s.name, color: s.color })) : undefined),
      paint(chart) {
        const x = chart.x(0, last);
        const y = (chart.sy = chart.y(0, top));
        chart.yAxis(y, ticks(0, top, count), extra.text);
        for (const s of series) {
          if (s.fill) chart.path(centre, s.values, x, y, { fill: s.fill, stroke: "none" }, 0);
        }
        if (extra.before) extra.before(chart, x, y);
        for (const s of series) chart.path(centre, s.values, x, y, { class: "line", stroke: s.color });
        chart.xAxis(x, ticks(0, last / unit, 10).map((v) => v * unit), extra.last ? `time since first arrival (${word})` : "", (v) => format(v / unit));
        chart.positions = centre.map(x);
      },
      read: (i) => ({ when: when(i), rows: series.map((s) => ({ name: s.name, color: s.color, value: (extra.text || format)(s.values[i]) })).concat(extra.rows ? extra.rows(i) : []) }),
      dots: (i, chart) => series.map((s) => ({ y: s.values[i] === null ? null : chart.sy(s.values[i]), color: s.color })),
    });
    group.push(chart);
  };
  timeChart("time-output", "Output tokens per second over time", [{ name: "output tokens/s", values: time.output, color: color("main"), fill: color("main-fill") }]);
  timeChart("time-input", "Prompt tokens computed per second over time", [{ name: "prompt tokens/s", values: time.input, color: color("main"), fill: color("main-fill") }], { height: 116, count: 3 });
  const limit = time.seats && time.seats <= 1.6 * Math.max(...time.running) ? time.seats : 0;
  timeChart("time-queue", "Requests running and waiting over time", [
    { name: "waiting", values: time.waiting, color: color("second"), fill: color("second-fill") },
    { name: "running", values: time.running, color: color("main"), fill: color("main-fill") },
  ], {
    limit,
    before(chart, x, y) {
      if (!limit) return;
      node(chart.svg, "line", { class: "limit", x1: chart.box.left, x2: chart.box.right, y1: y(limit), y2: y(limit) });
      node(chart.svg, "text", { x: chart.box.right, y: y(limit) - 5, "text-anchor": "end" }, `${format(limit)} seats`);
    },
  });
  const percent = (v) => (v === null ? "–" : format(100 * v) + "%");
  if (time.hits) {
    const rates = [{ name: "look-ups of the interval", values: time.hits.bin, color: color("second") }];
    if (time.hits.logged) rates.push({ name: "as logged: the last 1,000 look-ups", values: time.hits.logged, color: color("main") });
    timeChart("time-hits", "Prefix cache hit rate over time", rates, { height: 116, count: 2, top: 1, text: percent });
  }
  const legend = [{ name: "peak", color: color("main-fill") }, { name: "mean", color: color("main") }];
  if (time.marks_total) legend.push({ name: `preemptions (${time.marks_total.toLocaleString("en-US")})`, color: color("alert"), tick: true });
  timeChart("time-kv", `KV cache use over time, ${time.marks_total} preemptions`, [{ name: "mean", values: time.kv_mean, color: color("main") }], {
    top: Math.max(...time.kv_max) > 0.5 ? 1 : niceTop(Math.max(...time.kv_max), 4),
    last: true,
    text: percent,
    legend,
    before(chart, x, y) {
      chart.path(centre, time.kv_max, x, y, { fill: color("main-fill"), stroke: "none" }, 0);
      for (const mark of time.marks) node(chart.svg, "line", { class: "mark", x1: x(mark), x2: x(mark), y1: chart.box.bottom, y2: chart.box.bottom - 11 });
    },
    rows: (i) => [{ name: "peak", value: percent(time.kv_max[i]), color: color("main-fill") }].concat(time.preemptions[i] ? [{ name: "preemptions", value: format(time.preemptions[i]), color: color("alert") }] : []),
  });
} else for (const id of ["time-output", "time-input", "time-queue", "time-kv"]) empty(id, "Steps were not recorded in this run.");

// Three views of the same seconds: decode-only steps and steps with prefill by batch, and all of them over time.
const views = [];
if (data.batch) {
  const named = { decode: ["Decode-only steps", "requests in the batch"], prefill: ["Steps with prefill", "tokens in the batch"] };
  for (const kind in named) {
    const group = data.batch.groups[kind];
    if (!group || !Object.keys(group.components).length) continue;
    const width = group.edges[1] - group.edges[0];
    views.push({
      name: `${named[kind][0]} (${format(100 * group.share)}% of step time)`,
      label: named[kind][1],
      bars: group.bin.map((b) => [group.edges[b], group.edges[b] + width]),
      values: group.components,
      when: (i) => {
        const from = group.edges[group.bin[i]];
        return `${width > 1 ? `${format(from, 6)} – ${format(from + width - 1, 6)}` : format(from, 6)} ${named[kind][1].split(" ")[0]}, ${format(group.steps[i], 6)} steps`;
      },
    });
  }
}
if (time && Object.keys(time.components).length) {
  const last = time.t.length * time.width_s;
  const [unit, word] = last > 7200 ? [3600, "h"] : last > 600 ? [60, "min"] : [1, "s"];
  views.push({
    name: "All steps over time",
    label: `time since first arrival (${word})`,
    scale: unit,
    bars: time.t.map((t) => [t, t + time.width_s]),
    values: time.components,
    when: (i) => `from ${format(time.t[i] / unit, 4)} ${word}`,
  });
}
function showView(view) {
  const host = document.getElementById("step-components");
  host.replaceChildren();
  const layers = components(view.values).map((name) => ({ ...component(name), values: view.values[name].map((v) => v || 0) }));
  const totals = view.bars.map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0));
  const top = niceTop(Math.max(...totals), 4);
  const box = document.createElement("div");
  host.append(box);
  new Chart(box, {
    label: `Mean milliseconds per step by component, ${view.name}: ${layers.map((l) => l.name).join(", ")}`,
    height: 240,
    top: 20,
    legend: layers.map((layer) => ({ name: layer.name, color: layer.color })),
    paint(chart) {
      const low = view.scale ? 0 : view.bars[0][0];
      const high = view.bars[view.bars.length - 1][1];
      const x = chart.x(low, high);
      const y = chart.y(0, top);
      node(chart.svg, "text", { x: 0, y: 9 }, "ms per step");
      chart.yAxis(y, ticks(0, top, 4));
      stack(chart, view.bars, layers, x, y);
      const scale = view.scale || 1;
      chart.xAxis(x, ticks(low / scale, high / scale, 10).filter((v) => view.scale || Number.isInteger(v)).map((v) => v * scale), view.label, (v) => format(v / scale, 6));
      chart.positions = view.bars.map(([from, to]) => x((from + to) / 2));
    },
    read: (i) => ({
      when: view.when(i),
      rows: layers.filter((l) => l.values[i] > 0).map((l) => ({ name: l.name, color: l.color, value: milliseconds(l.values[i]) })).reverse().concat([{ name: "step", value: milliseconds(totals[i]) }]),
    }),
  });
}
if (views.length) {
  const tabs = document.getElementById("step-tabs");
  const buttons = views.map((view) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", "tab");
    button.textContent = view.name;
    tabs.append(button);
    return button;
  });
  const select = (chosen) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === chosen));
      button.tabIndex = i === chosen ? 0 : -1;
    });
    showView(views[chosen]);
  };
  buttons.forEach((button, i) => {
    button.addEventListener("click", () => select(i));
    button.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      const next = (i + move + buttons.length) % buttons.length;
      select(next);
      buttons[next].focus();
    });
  });
  select(0);
} else empty("step-components", "Step costs were not recorded in this run.");

if (data.batch) {
  const tones = { eager: ["eager", "second"], piecewise: ["piecewise CUDA graph", "c-head"], full: ["full CUDA graph", "main"] };
  const { edges, steps } = data.batch;
  const layers = Object.keys(tones).filter((mode) => steps[mode]).map((mode) => ({ name: tones[mode][0], color: color(tones[mode][1]), values: steps[mode] }));
  const totals = edges.slice(1).map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0));
  const all = totals.reduce((a, b) => a + b, 0);
  const top = niceTop(Math.max(...totals), 4);
  new Chart("batch-histogram", {
    label: `Histogram of requests per step over ${all} steps`,
    height: 170,
    top: 20,
    legend: layers.map((layer) => ({ name: layer.name, color: layer.color, value: format((100 * layer.values.reduce((a, b) => a + b, 0)) / all) + "%" })),
    paint(chart) {
      const x = chart.x(edges[0], edges[edges.length - 1]);
      const y = chart.y(0, top);
      node(chart.svg, "text", { x: 0, y: 9 }, "steps");
      chart.yAxis(y, ticks(0, top, 4));
      stack(chart, totals.map((_, i) => [edges[i], edges[i + 1]]), layers, x, y);
      const half = edges[1] - edges[0] === 1 ? 0.5 : 0;
      chart.xAxis((v) => x(v + half), ticks(edges[0], edges[edges.length - 1] - half, 10).filter(Number.isInteger), "requests in the batch");
      chart.positions = totals.map((_, i) => x((edges[i] + edges[i + 1]) / 2));
    },
    read: (i) => ({
      when: `${edges[i + 1] - edges[i] > 1 ? `${edges[i]} – ${edges[i + 1] - 1}` : edges[i]} requests`,
      rows: layers.map((l) => ({ name: l.name, color: l.color, value: format(l.values[i], 6) })).concat([{ name: "share of steps", value: format((100 * totals[i]) / all) + "%" }]),
    }),
  });
} else empty("batch-histogram", "Steps were not recorded in this run.");

if (data.memory) {
  const palette = ["c-gemm", "c-collective", "c-launch", "c-moe", "c-elementwise", "c-transfer", "c-head"];
  let next = 0;
  const gib = 2 ** 30;
  const terms = data.memory.terms.map((term) => ({
    ...term,
    color: term.name === data.memory.kv ? color("c-attention") : /free|outside|unused|not budgeted/i.test(term.name) ? color("c-free") : color(palette[next++ % palette.length]),
  }));
  const positive = terms.filter((term) => term.bytes > 0);
  const sum = positive.reduce((a, term) => a + term.bytes, 0);
  const whole = Math.max(sum, data.memory.device_bytes);
  new Chart("memory-chart", {
    label: "Memory of one GPU: " + terms.map((t) => `${t.name} ${format(t.bytes / gib)} GiB`).join(", "),
    height: 70,
    left: 0,
    right: 0,
    bottom: 22,
    pick(chart, x) {
      let sum = 0;
      return positive.findIndex((term) => chart.scale((sum += term.bytes)) >= x);
    },
    legend: positive.map((term) => ({ name: term.name, color: term.color, value: format(term.bytes / gib) + " GiB" })),
    paint(chart) {
      const x = (chart.scale = chart.x(0, whole));
      let at = 0;
      for (const term of positive) {
        const left = x(at);
        const width = x(at + term.bytes) - left;
        node(chart.svg, "rect", { x: left, y: 8, width: Math.max(0.8, width - 1), height: 34, fill: term.color });
        chart.positions.push(left + width / 2);
        at += term.bytes;
      }
      if (sum > data.memory.device_bytes) {
        const edge = x(data.memory.device_bytes);
        node(chart.svg, "line", { class: "mark", x1: edge, x2: edge, y1: 2, y2: 48 });
      }
      chart.xAxis(x, ticks(0, whole / gib, 8).map((v) => v * gib), "", (v) => format(v / gib), "GiB");
    },
    read: (i) => ({ when: positive[i].name, rows: [{ name: "bytes", value: `${format(positive[i].bytes / gib)} GiB` }, { name: "of the device", value: `${format((100 * positive[i].bytes) / data.memory.device_bytes)}%` }] }),
  });
}

for (const name of ["prompt", "output"]) {
  const found = data.workload[name];
  if (!found) {
    empty(`hist-${name}`, "No request.");
    continue;
  }
  const top = niceTop(Math.max(...found.counts), 3);
  new Chart(`hist-${name}`, {
    label: `Histogram of ${name} lengths: mean ${format(found.mean)}, median ${format(found.median)}, longest ${found.max} tokens`,
    height: 150,
    left: 40,
    bottom: 20,
    legend: [{ name: "mean", value: format(found.mean) }, { name: "median", value: format(found.median) }, { name: "longest", value: format(found.max, 9) }],
    paint(chart) {
      const { edges, counts } = found;
      const x = chart.x(edges[0], edges[edges.length - 1]);
      const y = chart.y(0, top);
      chart.yAxis(y, ticks(0, top, 3));
      stack(chart, counts.map((_, i) => [edges[i], edges[i + 1]]), [{ color: color("main"), values: counts }], x, y);
      chart.xAxis(x, ticks(edges[0], edges[edges.length - 1], 4).filter(Number.isInteger));
      chart.positions = counts.map((_, i) => x((edges[i] + edges[i + 1]) / 2));
    },
    read: (i) => ({ when: `${found.edges[i]} – ${found.edges[i + 1] - 1} tokens`, rows: [{ name: "requests", value: format(found.counts[i], 6) }].concat(found.beyond ? [{ name: `longer than shown`, value: format(found.beyond, 6) }] : []) }),
  });
}

const arrivals = data.workload.arrivals;
if (arrivals) {
  const top = niceTop(Math.max(...arrivals.rate), 3);
  const last = arrivals.t.length * arrivals.width_s;
  const [unit, word] = last > 7200 ? [3600, "h"] : last > 600 ? [60, "min"] : [1, "s"];
  new Chart("arrivals", {
    label: `Arrivals over time, ${format(arrivals.mean)} per second on average`,
    height: 150,
    left: 40,
    bottom: 20,
    legend: [{ name: "mean", value: format(arrivals.mean) }],
    paint(chart) {
      const x = chart.x(0, last);
      const y = chart.y(0, top);
      chart.yAxis(y, ticks(0, top, 3));
      stack(chart, arrivals.t.map((t) => [t, t + arrivals.width_s]), [{ color: color("main"), values: arrivals.rate }], x, y);
      chart.xAxis(x, ticks(0, last / unit, 4).map((v) => v * unit), "", (v) => format(v / unit), word);
      chart.positions = arrivals.t.map((t) => x(t + arrivals.width_s / 2));
    },
    read: (i) => ({ when: `from ${format(arrivals.t[i] / unit, 4)} ${word}`, rows: [{ name: "requests per second", value: format(arrivals.rate[i]) }] }),
  });
} else empty("arrivals", "All requests arrive at once.");
