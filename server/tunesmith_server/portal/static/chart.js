// <ts-chart data-series="train_loss:Training,valid_loss:Validation" data-log>: a uPlot that shares its
// cursor and its range with the other charts of the page. A page with `data-axis` compares jobs: line n of
// each chart is job n.
import { number } from "./job.js";
import { decades, hatch, held, joined, label, refined, smoothed, spans, unpacked } from "./curves.js";

const page = document.querySelector("#job");
const tools = document.querySelector("#chart-tools");
const said = document.querySelector("#said");
const charts = /** @type {Set<Chart>} */ (new Set());
const { axis } = page.dataset;
const hues = 8;
const STACK = ["--c0", "--s2", "--s1", "--s4", "--s3", "--c5"];
const LEAST_MS = 250; // between two drawings of live curves
const MOST = 2000; // points after which the curves are fetched again, thinned by the server to 600
const view = { zoom: null, smoothing: Number(page.dataset.smoothing || 0), log: true, at: page.dataset.at ? Number(page.dataset.at) : null, hidden: new Set((page.dataset.hidden || "").split(",").filter(Boolean)) };
let whole = { curves: {}, void: [] }; // all steps, thinned
let fine = {}; // curves with more points and digits of the zoom
const current = () => ({ ...whole.curves, ...fine });

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
const colours = new Map();
/** Value of a custom property as a colour that a canvas takes. */
function resolve(name) {
  if (!colours.has(name)) {
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}
const faint = (value) => value.replace(/^rgb\((.*)\)$/, "rgba($1, 0.3)");

class Chart extends HTMLElement {
  connectedCallback() {
    this.lines = this.dataset.series.split(",").map((pair) => pair.split(":"));
    this.box = this.querySelector(".chart-box");
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "application");
    this.box.setAttribute("aria-label", `${this.dataset.title}. Arrow keys move along the curve.`);
    this.box.addEventListener("keydown", (event) => this.press(event));
    const png = this.querySelector("[data-png]");
    png.hidden = false;
    png.addEventListener("click", () => this.save());
    charts.add(this);
    new IntersectionObserver(([entry]) => {
      this.unseen = !entry.isIntersecting;
      if (!this.unseen && this.stale) this.draw();
    }).observe(this);
    new ResizeObserver(() => {
      if (this.plot) this.plot.setSize(this.size());
      else if (whole.ready) this.fetched ? this.draw() : load();
    }).observe(this);
  }

  /** False in a folded part of the page: its width is 0, or in newer browsers it is only skipped. */
  isOpen() {
    return this.box.clientWidth > 0 && this.box.checkVisibility();
  }

  size() {
    return { width: Math.max(160, this.box.clientWidth), height: this.hasAttribute("data-main") ? 300 : 184 };
  }

  /** Series and data: curves, the smoothed ones, the band, void stretches. */
  table() {
    const curves = current();
    const stacked = this.hasAttribute("data-stack");
    const series = [{}];
    const columns = [];
    const add = (curve, options) => {
      columns.push(curve);
      series.push({ points: { show: false }, width: 1.6, spanGaps: false, ...options });
    };
    const bands = [];
    const wide = curves[this.dataset.band];
    const main = curves[this.lines[0][0]];
    if (wide && main) {
      const half = new Map(wide.steps.map((step, index) => [step, wide.values[index]]));
      const edge = (sign) => ({ steps: main.steps, values: main.values.map((value, index) => (value === null || half.get(main.steps[index]) == null ? null : value + sign * half.get(main.steps[index]))) });
      add(edge(1), { stroke: "transparent" });
      add(edge(-1), { stroke: "transparent" });
      bands.push({ series: [1, 2], fill: faint(resolve("--s1")) });
    }
    const order = [];
    const names = stacked ? [...this.lines.keys()].reverse() : [...this.lines.keys()];
    for (const index of names) {
      const [name] = this.lines[index];
      if (view.hidden.has(String(index + 1))) continue;
      const curve = stacked ? stack(curves, this.lines.slice(0, index + 1)) : curves[name];
      if (!curve) continue;
      const stroke = resolve(stacked ? STACK[index] : `--s${(index % hues) + 1}`);
      const dash = index && !stacked && !axis ? [6, 3] : undefined;
      if (view.smoothing && !stacked && curve.values.length > 2) {
        add(curve, { stroke: faint(stroke), width: 1 });
        add({ steps: curve.steps, values: smoothed(curve.values, view.smoothing) }, { stroke, dash });
      } else add(curve, { stroke, dash, fill: stacked ? stroke : undefined, points: { show: curve.steps.length < 40 && !stacked, size: 5 } });
      order.push([name, series.length - 1, stroke, index + 1]);
    }
    for (const { curves: old } of whole.void) {
      this.lines.forEach(([name], index) => old[name] && !stacked && add(old[name], { stroke: faint(resolve(`--s${(index % hues) + 1}`)), dash: [2, 3], width: 1 }));
    }
    const limit = Number(this.dataset.limit);
    if (limit && main) add({ steps: [main.steps[0], main.steps.at(-1)], values: [limit, limit] }, { stroke: resolve("--bad"), dash: [2, 4], width: 1 });
    return { series, bands, order, data: columns.length ? joined(columns) : [[]] };
  }

  draw() {
    if (!this.isOpen()) return;
    this.stale = false;
    const { series, bands, order, data } = this.table();
    this.order = order;
    const log = view.log && this.hasAttribute("data-log") && spans(data.slice(1), 30);
    const form = JSON.stringify([series, order, log]);
    if (this.plot && this.form === form) {
      this.plot.setData(data);
      return this.tell(this.plot);
    }
    this.form = form;
    this.plot?.destroy();
    this.plot = null;
    this.box.textContent = "";
    if (!data[0].length) {
      const none = document.createElement("p");
      none.className = "none";
      none.textContent = "Nothing measured yet";
      this.box.append(none);
      return;
    }
    const [text, line] = [resolve("--muted"), resolve("--line")];
    const font = "12px Inter, sans-serif";
    const share = this.hasAttribute("data-stack");
    const config = {
      ...this.size(), series, bands, legend: { show: false }, ...(axis && { padding: [null, this.box.clientWidth > 480 ? 116 : 20, null, null] }),
      cursor: { sync: { key: "job" }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: (_, low, high) => view.zoom ?? (low === high ? [low - 1, high + 1] : [low, high]) }, y: { distr: log ? 3 : 1, ...(share && { range: [0, 1] }) } },
      axes: [
        { stroke: text, font, grid: { show: false }, ticks: { stroke: line, size: 4 }, size: 30, values: (_, ticks) => ticks.map((tick) => (axis === "hours" || Number.isInteger(tick) ? number(tick) : "")) },
        { stroke: text, font, grid: { stroke: line, width: 1, ...(log && { filter: decades }) }, ticks: { show: false }, size: 58, ...(log && { filter: decades }), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      hooks: {
        drawClear: [(plot) => this.shade(plot)],
        draw: [(plot) => held(plot, view.at, resolve("--line-strong")), (plot) => (axis ? label(plot, this.order, (index) => this.lines[index - 1][1], resolve("--surface")) : this.marks(plot))],
        setCursor: [(plot) => this.tell(plot)],
        setSelect: [(plot) => plot.select.width > 2 && zoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")].map((end) => (axis === "hours" ? Math.max(0, Number(end.toFixed(4))) : Math.max(0, Math.round(end)))))],
      },
    };
    config.cursor.drag.setScale = false;
    this.plot = new uPlot(config, data, this.box);
    this.plot.over.addEventListener("dblclick", () => zoom(null));
    this.plot.over.addEventListener("click", (event) => this.follow(event));
    this.tell(this.plot);
  }

  /** Hatch the steps that a later attempt repeated. */
  shade(plot) {
    for (const stretch of whole.void) hatch(plot, stretch.first_step, stretch.last_step, resolve("--line-strong"));
  }

  /** Draw the marks at the axis; the list below the charts has them as links. */
  marks(plot) {
    const { ctx, bbox } = plot;
    this.near = [];
    for (const link of document.querySelectorAll("#marks [data-step]")) {
      const left = plot.valToPos(Number(link.dataset.step), "x", true);
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      const bad = ["warning", "stalled"].includes(link.dataset.kind);
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = resolve(bad ? "--bad" : link.dataset.kind === "checkpoint" ? "--good" : "--hold");
      ctx.beginPath();
      const low = bbox.top + bbox.height;
      ctx.moveTo(left - 4 * devicePixelRatio, low);
      ctx.lineTo(left + 4 * devicePixelRatio, low);
      ctx.lineTo(left, low - 7 * devicePixelRatio);
      ctx.fill();
      ctx.restore();
      this.near.push([(left - bbox.left) / devicePixelRatio, link]);
    }
  }

  /** Go to the mark under the pointer in the list of marks; elsewhere, hold the values of the step. */
  follow(event) {
    const low = !axis && this.plot.over.clientHeight - event.offsetY < 14;
    const link = low && this.near.find(([left]) => Math.abs(left - event.offsetX) < 7)?.[1];
    if (!link) return this.hold();
    link.closest("details").open = true;
    link.focus();
  }

  hold() {
    const step = this.plot.data[0][this.plot.cursor.idx] ?? null;
    view.at = view.at === step ? null : step;
    remember();
    for (const chart of charts) if (chart.plot) chart.plot.redraw(false), chart.tell(chart.plot);
  }

  /** Put the values at the cursor, else those held, else the last ones shown, into the key. */
  tell(plot) {
    const end = view.at ?? view.zoom?.[1] ?? null;
    const at = plot.cursor.idx ?? (end === null ? null : plot.valToIdx(end));
    for (const [name, column] of this.order) {
      const values = plot.data[column];
      let index = at ?? values.length - 1;
      while (index >= 0 && values[index] == null) index -= 1;
      const shown = this.querySelector(`[data-last="${CSS.escape(name)}"]`);
      const curves = current();
      const stacked = this.hasAttribute("data-stack") && curves[name];
      const value = stacked ? curves[name].values[curves[name].steps.indexOf(plot.data[0][index])] : values[index];
      if (shown) shown.textContent = number(value);
    }
  }

  press(event) {
    if (event.key === "Escape" && view.zoom) {
      event.preventDefault();
      return zoom(null);
    }
    const plot = this.plot;
    if (event.key === "Enter" && plot) return this.hold();
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!plot || !(event.key in moves)) return;
    event.preventDefault();
    const steps = plot.data[0];
    const [first, last] = plot.series[0].idxs ?? [0, steps.length - 1];
    const by = moves[event.key] * (event.shiftKey ? Math.max(1, Math.round((last - first) / 20)) : 1);
    const at = Math.max(first, Math.min(last, (plot.cursor.idx ?? last) + by));
    plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: plot.over.clientHeight / 3 });
    const values = this.lines.map(([name, label]) => `${label} ${this.querySelector(`[data-last="${CSS.escape(name)}"]`)?.textContent}`);
    said.textContent = `${axis && axis !== "step" ? axis : "Step"} ${number(steps[at])}: ${values.join(", ")}`;
  }

  /** Save the chart as a picture with its title. */
  save() {
    if (this.stale) this.draw();
    if (!this.plot) return;
    const source = this.plot.ctx.canvas;
    const head = 32 * devicePixelRatio;
    const picture = Object.assign(document.createElement("canvas"), { width: source.width, height: source.height + head });
    const pen = picture.getContext("2d");
    pen.fillStyle = resolve("--surface");
    pen.fillRect(0, 0, picture.width, picture.height);
    pen.fillStyle = resolve("--text");
    pen.font = `600 ${13 * devicePixelRatio}px Inter, sans-serif`;
    pen.fillText(`${page.dataset.name}: ${this.dataset.title}`, 12 * devicePixelRatio, 20 * devicePixelRatio);
    pen.drawImage(source, 0, head);
    const link = Object.assign(document.createElement("a"), { href: picture.toDataURL("image/png"), download: `${page.dataset.job}-${this.lines[0][0]}.png` });
    link.click();
  }
}

/** Cumulated values of the first of several shares. */
function stack(curves, lines) {
  const own = curves[lines.at(-1)[0]];
  if (!own) return undefined;
  const parts = lines.map(([name]) => new Map(curves[name]?.steps.map((step, index) => [step, curves[name].values[index]])));
  return { steps: own.steps, values: own.steps.map((step) => parts.reduce((sum, part) => sum + (part.get(step) ?? 0), 0)) };
}

let drawing = 0;
function redraw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    for (const chart of charts) chart.draw();
  });
}

let drawn = -Infinity;
let following = 0;
/** Draw new points of the charts that are on the screen, at most once in `LEAST_MS`; other charts follow
 * when they come into view. */
function drawLive() {
  following ||= setTimeout(() => requestAnimationFrame((now) => {
    following = 0;
    drawn = now;
    for (const chart of charts) {
      if (chart.unseen) chart.stale = true;
      else chart.draw();
    }
  }), drawn + LEAST_MS - performance.now());
}

/** Metrics of the charts that have been open. */
function names() {
  return new Set([...charts].filter((chart) => chart.fetched).flatMap((chart) => [...chart.lines.map(([name]) => name), chart.dataset.band ?? ""]).filter(Boolean));
}

async function fetched(range) {
  for (const chart of charts) chart.fetched ||= chart.isOpen();
  const query = axis ? new URLSearchParams(page.dataset.query) : new URLSearchParams({ names: [...names()].join() });
  if (range) [["from", range[0]], ["to", range[1]]].forEach(([name, step]) => query.set(name, step));
  const reply = await fetch(`${page.dataset.path}/curves?${query}`);
  if (!reply.ok) throw new Error(`${reply.status}`);
  return { ...unpacked(await reply.json()), ready: true };
}

/** Show steps `range`, or all; finer points come from the server. */
async function zoom(range) {
  view.zoom = range && range[1] > range[0] ? [...range] : null;
  fine = {};
  redraw();
  remember();
  if (!view.zoom || !whole.finer) return;
  const asked = view.zoom;
  const found = await fetched(asked).catch(() => null);
  if (found && view.zoom === asked) fine = refined(whole.curves, found.curves, asked);
  redraw();
}

function remember() {
  const query = new URLSearchParams(location.search);
  const set = (name, value) => (value ? query.set(name, value) : query.delete(name));
  set("x", view.zoom?.join("-"));
  set("s", view.smoothing ? view.smoothing.toFixed(2) : "");
  set("at", view.at);
  set("hide", [...view.hidden].join());
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`);
}

document.addEventListener("ts:live", ({ detail }) => {
  const { kind, data } = detail.data ?? {};
  if (detail.kind !== "event" || !whole.ready && !loading) return;
  if (axis) return void (later ||= setTimeout(() => (later = 0, load()), 2000));
  if (kind === "resumed") return loading ? loading.finally(() => load(true)) : load(true);
  if (kind !== "metrics") return;
  for (const name of names()) {
    const value = data[name];
    if (value === undefined) continue;
    for (const curve of [whole.curves[name], fine[name]]) {
      if (curve && curve.steps.at(-1) >= data.step) continue;
      if (curve) curve.steps.push(data.step), curve.values.push(value);
    }
    if (!whole.curves[name] && (value === null || typeof value === "number")) whole.curves[name] = { steps: [data.step], values: [value] };
  }
  if (!whole.ready) return; // `load` keeps these points
  document.querySelector(".charts").removeAttribute("data-empty");
  if (Object.values(whole.curves).some((curve) => curve.steps.length > MOST)) return load();
  drawLive();
});

let later = 0;
let loading = null;
/** Fetch all curves. Points that came meanwhile stay, except those of an earlier attempt. */
function load(isNew) {
  loading ??= fetched(null).then((found) => {
    for (const [name, { steps, values }] of Object.entries(isNew || axis ? {} : whole.curves)) {
      const own = (found.curves[name] ??= { steps: [], values: [] });
      const at = steps.findIndex((step) => step > (own.steps.at(-1) ?? -1));
      if (at >= 0) own.steps.push(...steps.slice(at)), own.values.push(...values.slice(at));
    }
    whole = found;
    if (view.zoom) zoom(view.zoom);
    redraw();
  }).finally(() => {
    loading = null;
    if ([...charts].some((chart) => !chart.fetched && chart.isOpen())) load(); // opened meanwhile
  });
  return loading;
}

function controls() {
  const smooth = tools.querySelector("#smooth");
  const log = tools.querySelector("#log");
  smooth.value = String(view.smoothing);
  smooth.addEventListener("input", () => {
    view.smoothing = Number(smooth.value);
    redraw();
    remember();
  });
  log.addEventListener("click", () => {
    view.log = !view.log;
    log.setAttribute("aria-pressed", String(view.log));
    redraw();
  });
  tools.querySelector("#whole").addEventListener("click", () => zoom(null));
  tools.querySelector("#share").addEventListener("click", share);
  for (const button of document.querySelectorAll("[data-hide]")) {
    button.addEventListener("click", () => {
      const { hide } = button.dataset;
      if (!view.hidden.delete(hide)) view.hidden.add(hide);
      button.setAttribute("aria-pressed", String(!view.hidden.has(hide)));
      redraw();
      remember();
    });
  }
  tools.dataset.ready = "";
}

/** Copy a link to this range and smoothing, with the name and the values. */
async function share() {
  const main = document.querySelector("ts-chart[data-main]");
  const values = main.lines.map(([name, label]) => `${label} ${main.querySelector(`[data-last="${CSS.escape(name)}"]`)?.textContent}`);
  const held = view.at === null ? "" : `, ${axis && axis !== "step" ? axis : "step"} ${number(view.at)}`;
  const range = view.zoom ? `, ${axis && axis !== "step" ? axis : "steps"} ${view.zoom.join("–")}` : "";
  const shared = tools.querySelector("#shared");
  try {
    await navigator.clipboard.writeText(`${page.dataset.name}${range}${held}: ${values.join(", ")}\n${location.href}`);
    shared.textContent = "Copied";
  } catch {
    shared.textContent = location.href;
  }
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.zoom && !event.defaultPrevented && !document.querySelector("dialog[open], dialog:popover-open")) zoom(null);
});
customElements.define("ts-chart", Chart);
if (tools && charts.size) {
  controls();
  if (page.dataset.zoom) view.zoom = page.dataset.zoom.split("-").map(Number);
  await load();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    redraw();
  });
}
