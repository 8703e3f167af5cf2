// The two charts of a sweep.

const data = JSON.parse(document.getElementById("data").textContent);

// The run beside its point, several where points coincide, those of the front first; left out where it would lie on
// another name.
function label(chart, points, x, y) {
  const places = new Map();
  for (const p of points) {
    const place = Math.round(x(p.x)) + " " + Math.round(y(p.y));
    const same = places.get(place);
    places.set(place, { ...p, run: same ? same.run + ", " + p.run : p.run, front: p.front || (same ? same.front : false) });
  }
  const taken = [];
  for (const p of [...places.values()].sort((a, b) => b.front - a.front)) {
    const wide = 7 * p.run.length;
    const [left, top] = [x(p.x) + 7, y(p.y) - 6];
    if (taken.some((t) => left < t.left + t.wide + 2 && t.left < left + wide + 2 && Math.abs(t.top - top) < 11)) continue;
    taken.push({ left, top, wide });
    node(chart.svg, "text", p.front ? { x: left, y: top, class: "strong" } : { x: left, y: top }, p.run);
  }
}

function scatter(id, xName, yName, xLabel, yText, front) {
  const points = data.points.map((point, i) => ({ ...point, x: point[xName], y: point[yName], front: data.front.includes(i) })).filter((p) => p.x !== null && p.y !== null);
  if (!points.length) {
    const note = document.createElement("p");
    note.className = "empty";
    note.textContent = "No configuration ran.";
    document.getElementById(id).append(note);
    return;
  }
  // A scatter needs no zero: where all points lie far from it, the axis starts at a tick below them.
  const xTop = niceTop(Math.max(...points.map((p) => p.x)), 5);
  const xLow = Math.min(...points.map((p) => p.x));
  const step = ticks(xLow, xTop, 5)[1] - ticks(xLow, xTop, 5)[0];
  const xFrom = xLow > 0.4 * xTop && step > 0 ? Math.floor(xLow / step) * step : 0;
  const yLow = Math.min(...points.map((p) => p.y));
  const yHigh = Math.max(...points.map((p) => p.y));
  const yLog = yLow > 0 && yHigh / yLow > 60;
  const yTop = yLog ? yHigh * 1.2 : niceTop(yHigh, 4);
  const yFrom = yLog ? yLow / 1.2 : 0;
  new Chart(id, {
    label: `${points.length} configurations, ${yName} against ${xName}`,
    height: 300,
    left: 58,
    pick: (chart, x, y) => nearest(points, chart, x, y),
    paint(chart) {
      const x = (chart.sx = chart.x(xFrom, xTop));
      const y = (chart.sy = chart.y(yFrom, yTop, yLog));
      chart.yAxis(y, yLog ? logTicks(yFrom, yTop) : ticks(0, yTop, 4), yText);
      if (front) {
        const line = data.front.map((i) => data.points[i]);
        chart.path(line.map((p) => p[xName]), line.map((p) => p[yName]), x, y, { class: "line", stroke: "var(--main)" });
      }
      for (const p of [...points].sort((a, b) => a.front - b.front))
        node(chart.svg, "circle", { cx: x(p.x), cy: y(p.y), r: p.front ? 4.5 : 3.5, fill: p.front ? "var(--main)" : "var(--paper)", stroke: p.front ? "var(--main)" : "var(--soft)", "stroke-width": 1.4 });
      label(chart, points, x, y);
      chart.xAxis(x, ticks(xFrom, xTop, 5), xLabel);
      chart.positions = points.map((p) => x(p.x));
    },
    dots: (i, chart) => [{ y: chart.sy(points[i].y), color: "var(--second)" }],
    read: (i) => ({
      when: points[i].label === points[i].run ? "run " + points[i].run : "run " + points[i].run + ": " + points[i].label,
      rows: [
        { name: "tok/s per GPU", value: format(points[i].gpu) },
        { name: "tok/s per user", value: format(points[i].user) },
        { name: "P99 TTFT", value: points[i].ttft === null ? "–" : milliseconds(points[i].ttft) },
        { name: "median TPOT", value: points[i].tpot === null ? "–" : milliseconds(points[i].tpot) },
        ...(points[i].usd === null ? [] : [{ name: "1M output tokens", value: "$" + figure(points[i].usd) }]),
        { name: "bottleneck", value: points[i].bottleneck || "–" },
      ],
    }),
  });
}

scatter("pareto", "user", "gpu", "output tok/s per user", format, true);
scatter("hockey", "gpu", "ttft", "output tok/s per GPU", (v) => (v === 0 ? "0" : v >= 1000 ? format(v / 1000) + " s" : format(v) + " ms"), false);
