"use strict";
// Draws the reports of one run or of several. Each number on the page is one of a report, or a sum of such numbers.

// What a report lacks, as those of lessons that train nothing do, is empty.
const runs = JSON.parse(document.getElementById("data").textContent).map((run) => ({
  model: {}, time: {}, loss: [], validation: [], checks: [], first_step: 0, memory_ranks: [], receivers: {}, traffic: {}, provenance: {}, options: {}, ...run}));
const find = (selector) => document.querySelector(selector);
const COLOURS = ["blue", "red", "green", "orange", "pink", "sky"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "14 4", "1 5"];
const PARTS = ["compute", "exposed", "waiting", "io"], BESIDE = ["hidden", "fetching", "storing"];

/** An element of HTML, or of SVG where its name begins with "svg:". */
function make(name, attributes = {}, ...children) {
  const [, drawing, tag] = name.match(/^(svg:)?(.*)$/);
  const element = drawing ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== undefined));
  return element;
}
const titled = (text) => make("svg:title", {}, text);
const grouped = (number) => number === undefined || number === null ? "–" : number.toLocaleString("en-US", {maximumFractionDigits: 6});
const short = (number, digits = 4) => number === undefined || number === null ? "–" : String(Number(number.toPrecision(digits)));
const milliseconds = (seconds) => seconds ? (1e3 * seconds).toFixed(1) : "–";
const shown = (value) => typeof value === "number" ? grouped(value) : typeof value === "string" ? value || "–" : JSON.stringify(value);
const sum = (numbers) => numbers.reduce((all, number) => all + number, 0);
const most = (numbers) => numbers.reduce((all, number) => Math.max(all, number), 0);
const ranksOf = (run) => `${run.ranks} rank${run.ranks === 1 ? "" : "s"}`;
const nameOf = (run) => run.file || `${run.lesson} on ${ranksOf(run)}`;
const style = (i) => `stroke: var(--${COLOURS[i % 6]}); stroke-dasharray: ${DASHES[(i + Math.floor(i / 6)) % 6] || "none"}`;
const row = (cells, tag = "td", attributes = {}) => make("tr", {}, ...cells.map((cell, i) => i === 0 || tag === "th"
  ? make("th", {scope: tag === "th" ? "col" : "row"}, cell) : make("td", attributes, cell)));
const table = (head, rows, attributes = {}) =>
  make("table", attributes, head ? make("thead", {}, row(head, "th")) : undefined, make("tbody", {}, ...rows));
const scrolled = (element) => make("div", {class: "scroll"}, element);
const legend = (signs) => make("p", {class: "legend"}, ...signs.map(([sign, text]) => make("span", {}, make("b", {class: sign}), text)));
const part = (title, ...content) => make("section", {}, make("h3", {}, title), ...content);

/** The ranks' memory as {tier and category: {peak, current, formula, most}}, each the most of all ranks, and whether all agree. */
function memoryOf(run) {
  const found = {};
  for (const tiers of run.memory_ranks)
    for (const [tier, categories] of Object.entries(tiers))
      for (const [category, held] of Object.entries(categories)) {
        const name = tier === "device" ? category : `${category}, ${tier}`;
        const all = found[name] = found[name] || {category, peak: 0, current: 0, formula: 0, most: 0, known: false, agrees: true};
        all.peak = Math.max(all.peak, held.peak);
        all.current = Math.max(all.current, held.current);
        if (held.formula === undefined) continue;
        all.known = true;
        all.formula = Math.max(all.formula, held.formula);
        all.most = Math.max(all.most, held.formula_peak);
        all.agrees = all.agrees && held.peak === held.formula_peak && held.current === held.formula;
      }
  return Object.entries(found).filter(([, held]) => held.peak > 0);
}
const memoryScale = most(runs.flatMap((run) => memoryOf(run).map(([, held]) => Math.max(held.peak, held.most))));
// Steps that take far longer than the mean of the slowest run, as first ones do, are cut off.
const longestStep = most(runs.flatMap((run) => binned(run).map((bin) => bin.step)));
const timeScale = Math.min(longestStep, 2 * most(runs.map((run) => run.time.step_s || longestStep)));

/** Mean seconds of neighbouring steps, so few that each is seen: {first, last, step, compute, exposed, ...}. */
function binned(run) {
  const steps = run.steps || {step_s: []}, made = steps.step_s.length, size = Math.ceil(made / 80);
  const mean = (kind, first) => kind in steps ? sum(steps[kind].slice(first, first + size)) / Math.min(size, made - first) : 0;
  return Array.from({length: size ? Math.ceil(made / size) : 0}, (_, i) => {
    const bin = {first: i * size, last: Math.min(made, (i + 1) * size) - 1, step: mean("step_s", i * size)};
    for (const kind of [...PARTS, ...BESIDE]) bin[kind] = mean(`${kind}_s`, i * size);
    return bin;
  });
}

/** Axes of a chart: lines at round numbers between two values, and the function from a value to a height. */
function heights(svg, low, high, unit) {
  const bottom = svg.clientHeight - 22, rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const tick = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const y = (value) => bottom - (value - low) / (high - low || 1) * (bottom - 14);
  for (let value = Math.ceil(low / tick) * tick; value <= high + 1e-9 * tick; value += tick)
    svg.append(make("svg:line", {class: "grid", x1: 48, x2: svg.clientWidth, y1: y(value), y2: y(value)}),
               make("svg:text", {x: 44, y: y(value) + 4, "text-anchor": "end"}, short(value)));
  svg.append(make("svg:text", {x: 0, y: 10, class: "soft"}, unit));
  return y;
}

function drawLoss(svg) {
  const width = svg.clientWidth;
  const values = runs.flatMap((run) => [...run.loss, ...run.validation.map((v) => v.loss)]).filter(Number.isFinite);
  if (values.length === 0) return;
  const y = heights(svg, values.reduce((a, b) => Math.min(a, b)), most(values), "nats");
  const last = most(runs.map((run) => run.first_step + run.loss.length)), x = (step) => 52 + step / (last || 1) * (width - 60);
  for (const step of [0, Math.round(last / 2), last])
    svg.append(make("svg:text", {x: x(step), y: svg.clientHeight - 4, "text-anchor": step === last ? "end" : "middle"},
                    step === last ? `${step} steps` : step));
  runs.forEach((run, i) => {
    const points = run.loss.map((loss, k) => [run.first_step + k, loss]).filter(([, loss]) => Number.isFinite(loss));
    const line = points.map(([step, loss]) => `${x(step)},${y(loss)}`).join(" ");
    svg.append(make("svg:polyline", {class: "curve", style: style(i), points: line}, titled(nameOf(run))));
    for (const {step, loss} of run.validation.filter((v) => Number.isFinite(v.loss)))
      svg.append(make("svg:circle", {cx: x(step), cy: y(loss), r: 4, style: `fill: var(--${COLOURS[i % 6]})`},
                      titled(`${nameOf(run)}: validation after ${step} steps: ${short(loss, 6)}`)));
  });
}

function drawSteps(svg, run) {
  const bins = binned(run), y = heights(svg, 0, 1e3 * timeScale, "ms"), slot = (svg.clientWidth - 52) / bins.length;
  const at = (seconds) => y(1e3 * Math.min(seconds, timeScale));
  const bar = (kind, x, width, from, seconds, name) => seconds > 0 && svg.append(make("svg:rect", {
    class: kind, x, width, y: at(from + seconds), height: at(from) - at(from + seconds)}, titled(`${name}: ${kind} ${short(1e3 * seconds)} ms`)));
  bins.forEach((bin, i) => {
    const x = 52 + i * slot, name = bin.first === bin.last ? `step ${bin.first}` : `steps ${bin.first} to ${bin.last}, mean`;
    let from = 0;
    for (const kind of PARTS) {
      bar(kind, x, 0.7 * slot, from, bin[kind], name);
      from += bin[kind];
    }
    bar("other", x, 0.7 * slot, from, bin.step - from, name);
    if (bin.step > timeScale)
      svg.append(make("svg:text", {x: x + 0.35 * slot, y: 11, "text-anchor": "middle", class: "cut"}, "▲", titled(`${name}: ${short(1e3 * bin.step)} ms`)));
    bar("hidden", x + 0.7 * slot, 0.15 * slot, 0, sum(BESIDE.map((kind) => bin[kind])), name);
  });
}

function memoryPart(run) {
  const at = (bytes) => `${100 * bytes / memoryScale}%`;
  const bars = memoryOf(run).map(([name, held]) => make("div", {class: "bar"}, make("span", {}, name),
    make("span", {class: "track", title: `${name}: peak ${grouped(held.peak)}, at the end ${grouped(held.current)} bytes`},
      make("i", {class: held.category, style: `width: ${at(held.peak)}`}),
      ...(held.known ? [make("b", {style: `left: ${at(held.formula)}`}), make("b", {class: "most", style: `left: ${at(held.most)}`})] : [])),
    make("span", {class: held.agrees ? "" : "FAIL"}, `${grouped(held.peak)}${held.known ? held.agrees ? " =" : " ≠" : ""}`)));
  return part("Memory: peak of the largest rank, bytes", ...bars,
    legend([["tick", "formula: kept"], ["tick most", "formula: the most"], ["", "= as the formula, on all ranks"]]));
}

/** Bytes of a step by sender and receiver, of all axes. */
function matrixOf(run) {
  const axes = Object.values(run.receivers);
  const ranks = Array.from({length: axes.length ? run.ranks : 0}, (_, rank) => rank);
  return ranks.map((from) => ranks.map((to) => sum(axes.map((rows) => rows[from][to]))));
}

function trafficPart(run) {
  const rows = matrixOf(run), highest = most(rows.flat()), axes = Object.entries(run.traffic);
  if (axes.length === 0 || run.ranks === 1) return undefined;
  const cell = (bytes, from, to) => make("td", {title: `rank ${from} to rank ${to}`,
    style: `background: color-mix(in srgb, var(--orange) ${Math.round(70 * bytes / (highest || 1))}%, transparent)`}, bytes ? grouped(bytes) : "·");
  const lines = rows.map((sent, from) => make("tr", {}, make("th", {scope: "row"}, `from ${from}`), make("td", {class: "sum"}, grouped(sum(sent))),
    ...sent.map((bytes, to) => cell(bytes, from, to))));
  return part("Traffic of a step, bytes by sender and receiver",
    scrolled(table(["", "sum", ...rows.map((_, rank) => `to ${rank}`)], lines, {class: "matrix"})),
    ...axes.filter(([, sent]) => sent.bytes || sent.formula).map(([axis, sent]) => {
      const drawn = sum(run.receivers[axis] ? run.receivers[axis][0] : []);
      const [does, but] = drawn === sent.bytes ? ["sends", ""] : ["sends or reads", "; what has no single receiver is not in the table"];
      const pieces = sent.messages ? ` in ${grouped(sent.messages)} messages` : "";
      return make("p", {class: "note"}, `${axis}: rank 0 ${does} ${grouped(sent.bytes)} bytes${pieces}, by formula ${grouped(sent.formula)}${but}`);
    }));
}

function checksPart(run) {
  const checks = run.checks, failed = checks.filter((check) => !check.pass).length;
  const lines = checks.map((check) => make("tr", {}, make("th", {class: check.pass ? "" : "FAIL"}, check.pass ? "PASS" : "FAIL"),
    make("td", {class: "text"}, check.name),
    make("td", {class: "whole text"}, shown(check.measured)), make("td", {class: "text"}, `expected ${shown(check.expected)}`)));
  return make("details", failed ? {open: ""} : {},
    make("summary", {class: failed ? "FAIL" : ""}, `Checks: ${checks.length - failed} of ${checks.length} passed`), table(null, lines));
}

/** A table of names and values; those that are not the same in all runs are marked. */
function listPart(title, run, of) {
  const same = (name, value) => runs.every((other) => shown(of(other)[name]) === shown(value));
  const lines = Object.entries(of(run)).map(([name, value]) => make("tr", {class: same(name, value) ? "" : "differs"},
    make("th", {scope: "row"}, name), make("td", {class: "text"}, shown(value))));
  return make("details", {}, make("summary", {}, title), table(null, lines));
}

function runPart(run) {
  const svg = make("svg:svg", {class: "steps"});
  const kinds = [...PARTS.filter((kind) => binned(run).some((bin) => bin[kind] > 0)).map((kind) => [kind, kind]), ["other", "other"],
    ...(binned(run).some((bin) => BESIDE.some((kind) => bin[kind] > 0)) ? [["hidden", "beside the program"]] : [])];
  const times = run.steps ? [part("Time of each step", svg, legend(kinds.map(([kind, name]) => [`chip ${kind}`, name])))] : [];
  if (run.steps) drawings.push([svg, drawSteps, run]);
  return make("article", {}, make("h2", {}, nameOf(run)), ...times, memoryPart(run), trafficPart(run),
    checksPart(run), listPart("Options", run, (r) => r.options),
    listPart("Environment", run, (r) => ({...r.provenance, ...(r.clocks && {clocks: r.clocks})})));
}

const drawings = [[find("#loss"), drawLoss]];
const first = runs[0], one = runs.length === 1;
document.title = find("h1").textContent = one ? `${first.lesson}, ${first.model.name || ""}, ${ranksOf(first)}` : `${runs.length} runs side by side`;
if (one)
  find("#about").textContent = [`${grouped(first.model.parameters)} parameters`, first.provenance.date, first.finished ? "finished" : "not finished",
    first.digest && `digest ${first.digest.slice(0, 12)}`].filter(Boolean).join(", ");
const COLUMNS = {
  run: nameOf, ranks: (run) => run.ranks, "last loss": (run) => short(run.loss.at(-1), 6), validation: (run) => short((run.validation.at(-1) || {}).loss, 6),
  "step, ms": (run) => milliseconds(run.time.step_s), "tokens/s": (run) => grouped(run.time.tokens_per_s && Math.round(run.time.tokens_per_s)),
  "memory, bytes": (run) => grouped(run.memory_peak), "sent in a step": (run) => grouped(sum(Object.values(run.traffic).map((axis) => axis.bytes))),
  checks: (run) => run.checks.every((check) => check.pass) ? `${run.checks.length} pass` : "FAIL", digest: (run) => (run.digest || "–").slice(0, 8)};
find("#summary").append(...table(Object.keys(COLUMNS), runs.map((run) => row(Object.values(COLUMNS).map((column) => column(run))))).children);
find("#names").append(...runs.map((run, i) => {
  const line = make("svg:svg", {class: "line"}, make("svg:line", {class: "curve", style: style(i), x1: 0, x2: 40, y1: 6, y2: 6}));
  return make("span", {}, line, nameOf(run));
}), make("span", {}, "● validation"));
find("#runs").className = one ? "one" : "";
find("#runs").append(...runs.map(runPart));
new ResizeObserver(() => {
  for (const [svg, drawing, run] of drawings.filter(([svg]) => svg.clientWidth > 100)) {
    svg.replaceChildren();
    drawing(svg, run);
  }
}).observe(document.body);
