"use strict";
// Draws what numbers alone do not show. All numbers and tables are in the page without it.
(async function () {
  const redraws = []; // of pictures, in other colours: dark or light, and light on paper
  const $ = (selector, root) => (root || document).querySelector(selector);
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue("--" + name).trim() || style().getPropertyValue("--none").trim();
  const PHASES = { fwd: "forward", recompute: "recompute", bwd: "backward", grad_sync: "gradient kernels",
    optimizer: "optimizer", none: "other kernels" };
  const AXES = { tensor: "tensor parallel", context: "context parallel", expert: "expert parallel",
    pipeline: "send and receive", data: "data parallel", other: "other communication" };

  function time(s) {
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
      if (Math.abs(s) >= size) return Number((s / size).toPrecision(4)).toLocaleString("en") + " " + unit;
    return Number((s * 1e9).toPrecision(3)) + " ns";
  }

  function sortable(table) {
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        all("thead th", table).forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.children[column].dataset.v ?? row.children[column].textContent;
        const body = $("tbody", table);
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        });
        body.append(...rows);
      });
    });
  }

  function spans(packed) {
    let at = 0;
    const start = packed.start.map((step) => (at += step));
    return { ...packed, start, end: start.map((s, i) => s + packed.long[i]), n: start.length };
  }
  function firstEnding(list, tick) { // the first stretch that ends behind a moment
    let low = 0, high = list.n;
    while (low < high) { const mid = (low + high) >> 1; if (list.end[mid] <= tick) low = mid + 1; else high = mid; }
    return low;
  }

  // The step over time: a row for each GPU, its passes above its communication.
  function pipeline(box, chart) {
    const canvas = $("canvas", box), pen = canvas.getContext("2d"), tip = $("#tip"), said = $("#said");
    const rows = chart.rows.map((row) => ({ ...row, compute: spans(row.compute),
      lanes: Object.fromEntries(Object.entries(row.lanes).map(([name, one]) => [name, spans(one)])) }));
    const lanes = chart.lanes, HIGH = 20, THIN = 6, ROW = HIGH + lanes.length * THIN + 8, TOP = 22;
    let GUTTER = 104, view = [0, chart.ticks], width = 0, picked = null;
    const x = (tick) => GUTTER + (tick - view[0]) / (view[1] - view[0]) * (width - GUTTER);
    const tickAt = (px) => view[0] + (px - GUTTER) / (width - GUTTER) * (view[1] - view[0]);

    function lane(list, y, high, colourOf) { // no stripes: each column shows the share of each kind in it
      const columns = Math.max(1, Math.round((width - GUTTER) * ratio)), kinds = list.kinds.length;
      const share = new Float32Array(columns * kinds), scale = columns / (view[1] - view[0]);
      for (let i = firstEnding(list, view[0]); i < list.n && list.start[i] < view[1]; i++) {
        const full = list.end[i] - list.start[i], dense = full > 0 ? Math.min(1, list.busy[i] / full) : 1;
        const a = Math.max(0, (list.start[i] - view[0]) * scale), b = Math.min(columns, (list.end[i] - view[0]) * scale);
        for (let c = Math.floor(a); c < b; c++)
          share[c * kinds + list.kind[i]] += (Math.min(b, c + 1) - Math.max(a, c)) * (high > THIN ? 1 : dense);
      }
      const fills = list.kinds.map(colourOf);
      for (let c = 0; c < columns; c++) {
        let top = y;
        for (let k = 0; k < kinds; k++) {
          const part = Math.min(1, share[c * kinds + k]) * high;
          if (part < 0.02 * high) continue;
          let run = 1; // columns that look alike are one rectangle
          while (part >= high && c + run < columns && share[(c + run) * kinds + k] >= 1) run++;
          pen.fillStyle = fills[k];
          pen.fillRect(GUTTER + c / ratio, top, run / ratio + 0.3, part);
          top += part;
          if (run > 1) { c += run - 1; break; }
        }
      }
    }
    let ratio = 1;
    function draw() {
      width = box.clientWidth; GUTTER = width < 600 ? 60 : 104; ratio = Math.max(1, window.devicePixelRatio || 1);
      const height = TOP + rows.length * ROW;
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
      const text = colour("fg"), soft = colour("soft"), line = colour("line"), back = colour("bg");
      const seconds = (view[1] - view[0]) * chart.tick_s, step = 10 ** Math.floor(Math.log10(seconds / 4));
      const every = [1, 2, 5, 10].map((k) => k * step).find((one) => seconds / one <= Math.max(3, (width - GUTTER) / 110));
      for (let t = Math.ceil(view[0] * chart.tick_s / every) * every; t <= view[1] * chart.tick_s; t += every) {
        const at = x(t / chart.tick_s);
        pen.fillStyle = line; pen.fillRect(at, TOP - 4, 1, height);
        pen.fillStyle = soft; pen.fillText(time(Math.abs(t) < every / 2 ? 0 : t).replace(/^0 ns$/, "0"), at + 3, 9);
      }
      rows.forEach((row, number) => {
        const y = TOP + number * ROW;
        pen.fillStyle = text;
        pen.fillText(width < 600 ? `s${row.stage} r${row.rank}` : `stage ${row.stage}, rank ${row.rank}`, 0, y + HIGH / 2);
        lane(row.compute, y, HIGH, (kind) => colour(PHASES[kind] ? kind : "none"));
        lanes.forEach((name, place) => {
          if (row.lanes[name]) lane(row.lanes[name], y + HIGH + 1 + place * THIN, THIN - 1, () => colour(name));
        });
        pen.fillStyle = back; pen.textAlign = "center";
        for (let i = firstEnding(row.compute, view[0]); i < row.compute.n && row.compute.start[i] < view[1]; i++) {
          const a = Math.max(GUTTER, x(row.compute.start[i])), b = Math.min(width, x(row.compute.end[i]));
          if (b - a > 3) { pen.fillRect(b - 0.5, y, 0.5, HIGH); }
          if (b - a > 22 && row.compute.mb[i] >= 0) pen.fillText(row.compute.mb[i], (a + b) / 2, y + HIGH / 2 + 0.5);
        }
        pen.textAlign = "left";
      });
      if (picked) {
        const one = rows[picked.row].compute;
        pen.strokeStyle = text; pen.lineWidth = 2;
        pen.strokeRect(x(one.start[picked.at]), TOP + picked.row * ROW, Math.max(2, x(one.end[picked.at]) - x(one.start[picked.at])), HIGH);
      }
    }
    function told(number, name, i) {
      const row = rows[number], list = name === "compute" ? row.compute : row.lanes[name];
      const s = (ticks) => time(ticks * chart.tick_s), kind = list.kinds[list.kind[i]];
      const layers = list.first[i] < 0 ? "" : list.first[i] === list.last[i] ? `, layer ${list.first[i]}`
        : `, layers ${list.first[i]} to ${list.last[i]}`;
      const chunk = name === "compute" && list.chunk[i] > 0 ? `, chunk ${list.chunk[i]}` : "";
      const mb = list.mb[i] >= 0 ? `microbatch ${list.mb[i]}` : "";
      const what = name === "compute" ? PHASES[kind] || kind || "kernels" : AXES[name];
      const out = [`${what}${mb ? ", " + mb : ""}${chunk}${layers}`, `stage ${row.stage}, rank ${row.rank}` +
        (row.ranks > 1 ? ` (as ${row.ranks - 1} other${row.ranks > 2 ? "s" : ""})` : ""),
        `${s(list.start[i])} to ${s(list.end[i])}: ${s(list.long[i])}`];
      if (name !== "compute") out.push(`${list.ops[i].toLocaleString("en")} call${list.ops[i] > 1 ? "s" : ""}, moving for ${s(list.busy[i])}`);
      else if (list.gap[i] > 0 && list.why[i] >= 0) {
        out.push(`${s(list.gap[i])} before it waited for ${row.reasons[list.why[i]]}`);
        if (list.peer[i] > 0) out.push(`${s(list.peer[i])} of that for the other side`);
      }
      return out.join("\n");
    }
    function hit(px, py) {
      const number = Math.floor((py - TOP) / ROW), inside = (py - TOP) % ROW;
      if (number < 0 || number >= rows.length || px < GUTTER) return null;
      const place = Math.floor((inside - HIGH - 1) / THIN);
      const name = inside < HIGH ? "compute" : lanes[place];
      const list = name === "compute" ? rows[number].compute : name && rows[number].lanes[name];
      if (!list) return null;
      const tick = tickAt(px), slack = (view[1] - view[0]) / (width - GUTTER), i = firstEnding(list, tick - slack);
      return i < list.n && list.start[i] <= tick + slack ? { row: number, name, at: i } : null;
    }
    function show(found, px, py) {
      if (!found) { tip.hidden = true; return; }
      tip.textContent = told(found.row, found.name, found.at);
      tip.hidden = false;
      box.append(tip);
      tip.style.left = Math.max(0, Math.min(px + 14, width - tip.offsetWidth - 4)) + "px";
      tip.style.top = py + 16 + "px";
    }
    function look(a, b) {
      const long = Math.min(chart.ticks, Math.max(20, b - a));
      a = Math.max(0, Math.min(a, chart.ticks - long));
      view = [a, a + long];
      all("button[data-view]").forEach((one) => one.setAttribute("aria-pressed", "false"));
      requestAnimationFrame(draw);
    }
    function zoom(factor, at) { look(at - (at - view[0]) * factor, at + (view[1] - at) * factor); }
    function pick(row, at) {
      const list = rows[row].compute;
      if (at < 0 || at >= list.n) return;
      picked = { row, at };
      const long = view[1] - view[0];
      if (list.start[at] < view[0] || list.end[at] > view[1]) look(list.start[at] - long / 4, list.start[at] + long * 3 / 4);
      said.textContent = told(row, "compute", at).replaceAll("\n", ". ");
      show({ row, name: "compute", at }, x((list.start[at] + list.end[at]) / 2), TOP + row * ROW + HIGH);
      requestAnimationFrame(draw);
    }
    const windows = { whole: () => [0, chart.ticks] };
    const part = chart.ticks * Math.min(1, 8 / Math.max(1, chart.microbatches));
    windows.first = () => [0, part];
    windows.steady = () => [(chart.ticks - part) / 2, (chart.ticks + part) / 2];
    windows.last = () => [chart.ticks - part, chart.ticks];
    all("button[data-view]", box.closest("section")).forEach((button) => {
      button.addEventListener("click", () => {
        look(...windows[button.dataset.view]());
        button.setAttribute("aria-pressed", "true");
      });
    });
    let dragged = null;
    canvas.addEventListener("pointerdown", (e) => { dragged = [e.clientX, ...view]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointermove", (e) => {
      const at = canvas.getBoundingClientRect(), px = e.clientX - at.left, py = e.clientY - at.top;
      if (dragged && e.buttons) {
        const moved = (e.clientX - dragged[0]) / (width - GUTTER) * (dragged[2] - dragged[1]);
        look(dragged[1] - moved, dragged[2] - moved);
        tip.hidden = true;
      } else show(hit(px, py), px, py);
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey || e.shiftKey) {
        e.preventDefault();
        zoom(Math.exp((e.deltaY || e.deltaX) * 0.0015), tickAt(e.clientX - canvas.getBoundingClientRect().left));
      }
    }, { passive: false });
    canvas.addEventListener("dblclick", (e) => zoom(0.4, tickAt(e.clientX - canvas.getBoundingClientRect().left)));
    canvas.addEventListener("keydown", (e) => {
      const long = view[1] - view[0], middle = (view[0] + view[1]) / 2, now = picked || { row: 0, at: -1 };
      const does = {
        ArrowLeft: () => look(view[0] - long / 8, view[1] - long / 8),
        ArrowRight: () => look(view[0] + long / 8, view[1] + long / 8),
        ArrowDown: () => pick(Math.min(rows.length - 1, now.row + 1), Math.min(rows[Math.min(rows.length - 1, now.row + 1)].compute.n - 1, Math.max(0, now.at))),
        ArrowUp: () => pick(Math.max(0, now.row - 1), Math.min(rows[Math.max(0, now.row - 1)].compute.n - 1, Math.max(0, now.at))),
        "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1 / 0.6, middle),
        Home: () => look(0, long), End: () => look(chart.ticks - long, chart.ticks),
        n: () => pick(now.row, now.at + 1), p: () => pick(now.row, now.at - 1),
        Escape: () => { picked = null; tip.hidden = true; look(0, chart.ticks); },
      }[e.key];
      if (does) { e.preventDefault(); does(); }
    });
    const phases = new Set(rows.flatMap((row) => [...new Set(row.compute.kind)].map((k) => row.compute.kinds[k])));
    const named = [...Object.entries(PHASES).filter(([key]) => phases.has(key) || (key === "none" && phases.has(""))),
      ...lanes.map((name) => [name, AXES[name]])];
    $("#legend" + box.id.slice(5)).innerHTML = named.map(([key, label]) => `<span style="--c:var(--${key})">${label}</span>`).join("");
    new ResizeObserver(() => requestAnimationFrame(draw)).observe(box);
    redraws.push(draw);
    draw();
    return { rows, chart, where: (row, at) => { // of a pass, for tests: the middle of it on the canvas
      const list = rows[row].compute;
      return [x((list.start[at] + list.end[at]) / 2), TOP + row * ROW + HIGH / 2];
    }, view: () => view };
  }

  const axis = (more) => ({ stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 },
    ticks: { stroke: () => colour("line") }, font: "11px system-ui", ...more });

  // What a stage holds, one category on the other; the peak is a line that can be clicked.
  function memory(box, stages) {
    const select = $("#stage"), peak = $("#peak");
    let plot = null;
    const opened = () => { const one = $("#peak-" + select.value); one.open = true; one.scrollIntoView({ block: "nearest" }); };
    function draw() {
      if (plot) plot.destroy();
      const one = stages.find((stage) => String(stage.stage) === select.value);
      let sum = one.s.map(() => 0);
      const levels = one.gib.map((level) => (sum = level.map((size, i) => size + sum[i])));
      const series = one.categories.map((name, i) => ({ label: name, scale: "y", width: 1, points: { show: false },
        stroke: () => colour("m" + i), fill: () => colour("m" + i), paths: uPlot.paths.stepped({ align: 1 }),
        value: (_, __, k, at) => at == null ? "-" : one.gib[k - 1][at].toFixed(2) + " GiB" }));
      const bands = levels.slice(1).map((_, i) => ({ series: [i + 2, i + 1], fill: () => colour("m" + (i + 1)) }));
      // Drawn from the highest sum down: each covers what is below its own category.
      plot = new uPlot({ width: box.clientWidth, height: 260, bands, legend: { live: true },
        scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.05] } }, cursor: { drag: { x: true, y: false } },
        axes: [axis({ values: (_, marks) => marks.map((one) => time(one).replace(/^0 ns$/, "0")) }), axis({ values: (_, marks) => marks.map((one) => one + " GiB"), size: 64 })],
        series: [{ label: "time", value: (_, v) => v == null ? "-" : time(v) }, ...series],
        hooks: { draw: [(u) => {
          if (one.peak_s == null) return;
          const at = u.valToPos(one.peak_s, "x", true);
          u.ctx.save(); u.ctx.strokeStyle = colour("fg"); u.ctx.setLineDash([4, 3]); u.ctx.lineWidth = 1.5;
          u.ctx.beginPath(); u.ctx.moveTo(at, u.bbox.top); u.ctx.lineTo(at, u.bbox.top + u.bbox.height); u.ctx.stroke(); u.ctx.restore();
        }] } }, [one.s, ...levels], box);
      plot.over.addEventListener("click", (e) => {
        if (one.peak_s != null && Math.abs(plot.valToPos(one.peak_s, "x") - e.offsetX) < 12) opened();
      });
    }
    select.addEventListener("change", draw);
    peak.addEventListener("click", opened);
    new ResizeObserver(() => { if (plot && plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: 260 }); }).observe(box);
    redraws.push(() => plot.redraw());
    draw();
  }

  function roofline(box, chart) {
    if (!chart.kernels.length || !chart.peak || !chart.bytes_per_s) { box.remove(); return; }
    const points = [...chart.kernels].sort((a, b) => a[1] - b[1]), ridge = chart.peak / chart.bytes_per_s;
    const low = Math.min(points[0][1], ridge / 4) / 2, high = Math.max(points.at(-1)[1], ridge * 4) * 2;
    const xs = [...new Set([low, ridge, high, ...points.map((one) => one[1])])].sort((a, b) => a - b);
    const roof = xs.map((at) => Math.min(chart.peak, at * chart.bytes_per_s) / 1e12);
    const plot = new uPlot({ width: box.clientWidth, height: 280, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
      axes: [axis({ label: "flop per byte of memory", labelSize: 18, labelFont: "11px system-ui" }), axis({ label: "TFLOP/s", size: 60, labelFont: "11px system-ui" })],
      series: [{}, { stroke: () => colour("soft"), width: 1.5, points: { show: false } }],
      hooks: { draw: [(u) => {
        let low = 14; // names in turn above and below
        for (const [name, at, flops, share] of points) {
          const px = u.valToPos(at, "x", true), py = u.valToPos(flops / 1e12, "y", true);
          u.ctx.globalAlpha = 0.75; u.ctx.fillStyle = colour(flops / 1e12 > 0 && at < ridge ? "bwd" : "fwd");
          u.ctx.beginPath(); u.ctx.arc(px, py, (2.5 + 14 * Math.sqrt(share)) * devicePixelRatio, 0, 7); u.ctx.fill(); u.ctx.globalAlpha = 1;
          if (share > 0.04) { u.ctx.fillStyle = colour("fg"); u.ctx.font = 11 * devicePixelRatio + "px system-ui"; u.ctx.textAlign = px > u.bbox.left + u.bbox.width * 0.7 ? "right" : "left"; u.ctx.fillText(name, px + (u.ctx.textAlign === "left" ? 10 : -10) * devicePixelRatio, py + (low = -low) * devicePixelRatio); }
        }
      }] } }, [xs, roof], box);
    new ResizeObserver(() => { if (plot.width !== box.clientWidth) plot.setSize({ width: box.clientWidth, height: 280 }); }).observe(box);
    redraws.push(() => plot.redraw());
  }

  const redraw = () => redraws.forEach((one) => one());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const event of ["beforeprint", "afterprint"])
    addEventListener(event, () => {
      const paper = event === "beforeprint";
      document.documentElement.classList.toggle("paper", paper);
      all(paper ? "#assumed details:not([open])" : "details.opened").forEach((one) => {
        one.open = paper;
        one.classList.toggle("opened", paper);
      });
      redraw();
    });

  all("table.sortable").forEach(sortable);
  let data;
  try {
    const bytes = Uint8Array.from(atob($("#data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    data = JSON.parse(await new Response(stream).text());
  } catch (error) {
    all("#lanes, #memory-chart, #roofline-chart").forEach((one) => {
      one.innerHTML = "<p class=failed>This browser cannot unpack the pictures (it lacks DecompressionStream); tables have the numbers.</p>";
    });
    throw error;
  }
  window.page = { data, pipelines: [] };
  for (const key of ["", "-b"]) {
    const box = $("#lanes" + key), chart = data["pipeline" + key.replace("-", "_")];
    if (box && chart && chart.rows.length) window.page.pipelines.push(pipeline(box, chart));
  }
  if ($("#memory-chart") && data.memory.length) memory($("#memory-chart"), data.memory);
  if ($("#roofline-chart")) roofline($("#roofline-chart"), data.roofline);
  window.page.ready = true;
})();
