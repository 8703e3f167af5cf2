// Bars of the cases of a study, and curves of what was tried.

const data = JSON.parse(document.getElementById("data").textContent);

// A value with its unit; shares of 1 are per cent with their sign.
function said(value, unit) {
  if (value === null) return "none holds";
  if (unit === "%") return (value < 0 ? "−" : "+") + figure(100 * Math.abs(value)) + "%";
  return format(value) + " " + unit;
}

function bars(chart, id) {
  const { cases, series, unit } = chart;
  const told = cases.some((one) => one.published.some((value) => value !== null));
  const [BAR, GAP, HEAD, FOOT] = [13, 3, 19, 14];
  const lines = (one) => one.values.length + one.published.filter((value) => value !== null).length;
  const high = cases.map((one) => HEAD + lines(one) * (BAR + GAP) + FOOT);
  const every = cases.flatMap((one) => [...one.values, ...one.published]).filter((value) => value !== null);
  const low = Math.min(0, ...every);
  const top = Math.max(0, ...every) || 1;
  const colors = series.length === 2 && unit === "%" ? ["var(--c-gemm)", "var(--second)"] : COLORS;
  const legend = series.length > 1 || told ? series.map((name, s) => ({ name, color: colors[s] })) : undefined;
  if (told) legend.push({ name: "pale: published" });
  new Chart(id, {
    label: `${chart.title} of ${cases.length} cases`,
    legend,
    height: high.reduce((sum, one) => sum + one, 0) + 4,
    left: 0,
    right: 150,
    pick(drawn, x, y) {
      let found = 0;
      drawn.tops.forEach((at, i) => {
        if (y >= at) found = i;
      });
      return found;
    },
    paint(drawn) {
      const x = drawn.x(low, top);
      drawn.tops = [];
      drawn.positions = [];
      let y = drawn.box.top;
      cases.forEach((one, i) => {
        drawn.tops.push(y);
        drawn.positions.push(x(0));
        node(drawn.svg, "text", { x: 0, y: y + 12, class: "strong" }, one.name);
        y += HEAD;
        one.values.forEach((value, s) => {
          for (const [shown, pale] of [[value, false], [one.published[s], true]]) {
            if (pale && shown === null) continue;
            const from = Math.min(x(0), x(shown ?? 0));
            const wide = Math.max(1, Math.abs(x(shown ?? 0) - x(0)));
            node(drawn.svg, "rect", { x: from.toFixed(1), y, width: wide.toFixed(1), height: BAR, rx: 1.5, fill: colors[s], "fill-opacity": pale ? 0.3 : 1 });
            node(drawn.svg, "text", { x: from + wide + 6, y: y + BAR - 2.5 }, said(shown, unit) + (pale ? " published" : ""));
            y += BAR + GAP;
          }
        });
        y += FOOT;
      });
      if (low < 0) node(drawn.svg, "line", { class: "axis", x1: x(0), x2: x(0), y1: drawn.box.top, y2: y });
    },
    read: (i) => ({
      when: cases[i].name,
      rows: series.flatMap((name, s) => [
        { name, value: said(cases[i].values[s], unit), color: colors[s] },
        ...(cases[i].published[s] === null ? [] : [{ name: "published", value: said(cases[i].published[s], unit) }]),
      ]),
    }),
  });
}

function curves(chart, id) {
  const log = chart.y_unit === "ms";
  const points = chart.curves.flatMap((curve, c) => curve.x.map((x, i) => ({ curve, c, x, y: curve.y[i], inside: curve.inside.length ? curve.inside[i] : true }))).filter((p) => p.y !== null);
  const marked = chart.curves.some((curve) => curve.inside.length);
  const ys = [...points.map((p) => p.y).filter((y) => !log || y > 0), ...chart.limits];
  const xTop = niceTop(Math.max(...points.map((p) => p.x)), 6);
  const yFrom = log ? Math.min(...ys) / 1.3 : 0;
  const yTop = log ? Math.max(...ys) * 1.3 : niceTop(Math.max(...ys), 4);
  const text = (value) => (log ? short(value, "ms") : format(value));
  new Chart(id, {
    label: `${chart.title}: ${chart.curves.length} curves over ${chart.x_unit}`,
    legend: chart.curves.map((curve, c) => ({ name: curve.name, color: COLORS[c % COLORS.length] })),
    height: 340,
    left: 58,
    right: 24,
    bottom: 22,
    pick: (drawn, px, py) => nearest(points, drawn, px, py),
    paint(drawn) {
      const x = (drawn.sx = drawn.x(0, xTop));
      const y = (drawn.sy = drawn.y(yFrom, yTop, log));
      drawn.yAxis(y, log ? logTicks(yFrom, yTop) : ticks(0, yTop, 4), text);
      for (const limit of chart.limits) {
        node(drawn.svg, "line", { class: "bound", x1: drawn.box.left, x2: drawn.box.right, y1: y(limit), y2: y(limit) });
        node(drawn.svg, "text", { class: "strong", x: drawn.box.right, y: y(limit) - 5, "text-anchor": "end" }, "bound " + text(limit));
      }
      chart.curves.forEach((curve, c) => {
        drawn.path(curve.x, curve.y, x, y, { class: "line", stroke: COLORS[c % COLORS.length] });
      });
      if (marked)
        for (const p of points) {
          const color = COLORS[p.c % COLORS.length];
          node(drawn.svg, "circle", { cx: x(p.x).toFixed(1), cy: y(p.y).toFixed(1), r: 3, fill: p.inside ? color : "var(--paper)", stroke: color, "stroke-width": 1.4 });
        }
      drawn.xAxis(x, ticks(0, xTop, 6), "", format, chart.x_unit);
      drawn.positions = points.map((p) => x(p.x));
    },
    dots: (i, drawn) => [{ y: drawn.sy(points[i].y), color: "var(--ink)" }],
    read: (i) => ({
      when: points[i].curve.name,
      rows: [
        { name: chart.x_unit, value: format(points[i].x) },
        { name: chart.title, value: log ? milliseconds(points[i].y) : format(points[i].y) + " " + chart.y_unit },
        ...(marked ? [{ name: "within a bound", value: points[i].inside ? "yes" : "no" }] : []),
      ],
    }),
  });
}

data.charts.forEach((chart, i) => (chart.kind === "bars" ? bars : curves)(chart, `chart-${i}`));
