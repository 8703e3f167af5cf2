// Predicted over measured, both axes logarithmic and alike.

const data = JSON.parse(document.getElementById("data").textContent);
const NEAR = 0.2;

function scatter(panel, id) {
  const { x, y, group, unit } = panel;
  const every = [...x, ...y];
  const low = Math.min(...every) / 1.25;
  const high = Math.max(...every) * 1.25;
  const used = data.groups.filter((_, g) => group.includes(g));
  new Chart(id, {
    label: `${panel.title}: ${x.length} points, predicted against measured`,
    legend: used.length > 1 ? used.map((name) => ({ name, color: COLORS[data.groups.indexOf(name) % COLORS.length] })) : undefined,
    height: 340,
    left: 58,
    pick(chart, px, py) {
      let best = 0;
      const far = (i) => (chart.sx(x[i]) - px) ** 2 + (chart.sy(y[i]) - py) ** 2;
      for (let i = 1; i < x.length; i++) if (far(i) < far(best)) best = i;
      return best;
    },
    paint(chart) {
      const sx = (chart.sx = chart.x(low, high, true));
      const sy = (chart.sy = chart.y(low, high, true));
      const marks = logTicks(low, high);
      chart.yAxis(sy, marks, (v) => short(v, unit));
      const line = (factor, style) => {
        const from = factor < 1 ? low / factor : low;
        const to = factor > 1 ? high / factor : high;
        node(chart.svg, "line", { class: style, x1: sx(from), y1: sy(from * factor), x2: sx(to), y2: sy(to * factor), ...(style === "axis" ? { "shape-rendering": "auto" } : {}) });
      };
      line(1 + NEAR, "limit");
      line(1 - NEAR, "limit");
      line(1, "axis");
      x.forEach((value, i) => node(chart.svg, "circle", { cx: sx(value).toFixed(1), cy: sy(y[i]).toFixed(1), r: x.length > 400 ? 2 : 3, fill: COLORS[group[i] % COLORS.length], "fill-opacity": x.length > 400 ? 0.45 : 0.7 }));
      chart.xAxis(sx, marks, "measured", (v) => short(v, unit));
      node(chart.svg, "text", { x: chart.box.left + 6, y: chart.box.top + 10 }, "predicted");
      chart.positions = x.map((value) => sx(value));
    },
    dots: (i, chart) => [{ y: chart.sy(y[i]), color: "var(--ink)" }],
    read: (i) => ({
      when: panel.name[i],
      rows: [
        { name: "measured", value: worded(x[i], unit) },
        { name: "predicted", value: worded(y[i], unit) },
        { name: "error", value: (y[i] >= x[i] ? "+" : "−") + format(Math.abs(100 * (y[i] / x[i] - 1))) + "%" },
      ],
    }),
  });
}

data.panels.forEach((panel, i) => scatter(panel, `panel-${i}`));
