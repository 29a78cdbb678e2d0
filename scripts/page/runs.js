// Draws the reports of one run or of several. Each number on the page is one of a report, or a sum of such numbers.

// What a report lacks, as those of lessons that train nothing do, is empty.
const EMPTY = {model: {}, time: {}, loss: [], validation: [], checks: [], first_step: 0, memory_ranks: [], receivers: {},
               traffic: {}, provenance: {}, options: {}};
const runs = JSON.parse(find("#data").textContent).map((run) => ({...EMPTY, ...run}));
const COLOURS = ["blue", "red", "green", "orange", "pink", "sky"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "14 4", "1 5"];
const PARTS = ["compute", "exposed", "waiting", "io"], BESIDE = ["hidden", "fetching", "storing"];

const most = (numbers) => numbers.reduce((all, number) => Math.max(all, number), 0);
const short = (number, digits = 4) => number == null ? "–" : String(Number(number.toPrecision(digits)));
const milliseconds = (seconds) => seconds ? (1e3 * seconds).toFixed(1) : "–";
const ranksOf = (run) => `${run.ranks} rank${run.ranks === 1 ? "" : "s"}`;
const nameOf = (run) => run.file || `${run.lesson} on ${ranksOf(run)}`;
const part = (title, ...content) => make("section", {}, make("h3", {}, title), ...content);

/** A value of a report in words. */
function shown(value) {
  if (typeof value === "number") return count(value);
  return typeof value === "string" ? value || "–" : JSON.stringify(value);
}

const cell = (content, attributes = {}) => make("td", attributes, content);
const row = (name, cells, attributes = {}) => make("tr", attributes, make("th", {scope: "row"}, name), ...cells);
const table = (head, rows, attributes = {}) => make("table", attributes,
  make("thead", {}, make("tr", {}, ...head.map((name) => make("th", {scope: "col"}, name)))), make("tbody", {}, ...rows));

const COLUMNS = {
  ranks: (run) => run.ranks,
  "last loss": (run) => short(run.loss.at(-1), 6), validation: (run) => short(run.validation.at(-1)?.loss, 6),
  "step, ms": (run) => milliseconds(run.time.step_s),
  "tokens/s": (run) => count(run.time.tokens_per_s && Math.round(run.time.tokens_per_s)),
  "memory, bytes": (run) => count(run.memory_peak),
  "sent in a step": (run) => count(sum(Object.values(run.traffic).map((axis) => axis.bytes))),
  checks: (run) => run.checks.every((check) => check.pass) ? `${run.checks.length} pass` : "FAIL",
  digest: (run) => (run.digest || "–").slice(0, 8)};

function checksPart({checks}) {
  const failed = checks.filter((check) => !check.pass).length;
  const lines = checks.map(({name, pass, measured, expected}) =>
    row(pass ? "PASS" : make("span", {class: "FAIL"}, "FAIL"),
        [cell(name), cell(shown(measured), {class: "whole"}), cell(`expected ${shown(expected)}`)]));
  return make("details", failed ? {open: ""} : {},
    make("summary", {class: failed ? "FAIL" : ""}, `Checks: ${checks.length - failed} of ${checks.length} passed`),
    table([], lines, {class: "list"}));
}

/** A table of names and values; those that are not the same in all runs are marked. */
function listPart(title, run, of) {
  const same = (name, value) => runs.every((other) => shown(of(other)[name]) === shown(value));
  const lines = Object.entries(of(run)).map(([name, value]) =>
    row(name, [cell(shown(value))], {class: same(name, value) ? "" : "differs"}));
  return make("details", {}, make("summary", {}, title), table([], lines, {class: "list"}));
}

/** Bytes of a step by sender and receiver, of all axes. */
function matrixOf(run) {
  const axes = Object.values(run.receivers);
  const ranks = Array.from({length: axes.length ? run.ranks : 0}, (_, rank) => rank);
  return ranks.map((from) => ranks.map((to) => sum(axes.map((rows) => rows[from][to]))));
}

function trafficPart(run) {
  const sent = matrixOf(run), highest = most(sent.flat()) || 1;
  const shade = (bytes) => `background: color-mix(in srgb, var(--orange) ${Math.round(70 * bytes / highest)}%, transparent)`;
  const lines = sent.map((receivers, from) => row(`from ${from}`, [
    cell(count(sum(receivers)), {class: "sum"}),
    ...receivers.map((bytes, to) =>
      cell(bytes ? count(bytes) : "·", {style: shade(bytes), "data-name": `rank ${from} to rank ${to}`}))]));
  const matrix = table(["", "sum", ...sent.map((_, rank) => `to ${rank}`)], lines, {class: "matrix"});
  const used = Object.entries(run.traffic).filter(([, {bytes, formula}]) => bytes || formula);
  return part("Traffic of a step, bytes by sender and receiver", make("div", {class: "scroll"}, matrix),
              ...used.map(([axis, sent]) => noteOf(run, axis, sent)));
}

/** What the ledger and the formula say of an axis. */
function noteOf(run, axis, {bytes, messages, formula}) {
  const drawn = sum(run.receivers[axis]?.[0] ?? []);
  const [does, but] = drawn === bytes ? ["sends", ""] : ["sends or reads", "; what has no single receiver is not in the table"];
  const sent = `${count(bytes)} bytes${messages ? ` in ${count(messages)} messages` : ""}`;
  return make("p", {class: "note"}, `${axis}: rank 0 ${does} ${sent}, by formula ${count(formula)}${but}`);
}

/** [name, {peak, current, formula, most, agrees}] of tiers and categories: the most of all ranks, and whether all agree. */
function memoryOf(run) {
  const found = {};
  for (const tiers of run.memory_ranks)
    for (const [tier, categories] of Object.entries(tiers))
      for (const [category, held] of Object.entries(categories)) {
        const name = tier === "device" ? category : `${category}, ${tier}`;
        const all = found[name] ??= {category, peak: 0, current: 0, agrees: true};
        all.peak = Math.max(all.peak, held.peak);
        all.current = Math.max(all.current, held.current);
        if (held.formula === undefined) continue;
        all.formula = Math.max(all.formula ?? 0, held.formula);
        all.most = Math.max(all.most ?? 0, held.formula_peak);
        all.agrees &&= held.peak === held.formula_peak && held.current === held.formula;
      }
  return Object.entries(found).filter(([, held]) => held.peak > 0);
}

const memoryScale = most(runs.flatMap((run) => memoryOf(run).flatMap(([, held]) => [held.peak, held.most ?? 0])));

function memoryPart(run) {
  const bars = memoryOf(run).map(([name, {category, peak, current, formula, most, agrees}]) => {
    const known = formula !== undefined;
    const ticks = known ? [["kept", formula, "formula, kept"], ["most", most, "formula, the most"]] : [];
    const words = `${name}: peak ${count(peak)}, at the end ${count(current)} bytes`;
    const after = count(peak) + (known ? agrees ? " =" : " ≠" : "");
    return memoryBar(name, [[category, peak, words]], ticks, memoryScale, make("span", {class: agrees ? "" : "FAIL"}, after));
  });
  const signs = [["tick", "formula: kept"], ["tick most", "formula: the most"], ["", "= as the formula, on all ranks"]];
  return part("Memory: peak of the largest rank, bytes", ...bars, make("p", {class: "legend"}, ...legend(signs)));
}

/** Axis of a picture: lines at round numbers between two values. Returns the function from a value to a height. */
function heights(svg, low, high, unit) {
  const bottom = svg.clientHeight - 22, y = (value) => bottom - (value - low) / (high - low || 1) * (bottom - 14);
  for (const value of roundNumbers(low, high, 4))
    svg.append(make("svg:line", {class: "grid", x1: 48, x2: svg.clientWidth, y1: y(value), y2: y(value)}),
               make("svg:text", {x: 44, y: y(value) + 4, "text-anchor": "end"}, short(value)));
  svg.append(make("svg:text", {x: 0, y: 10, class: "soft"}, unit));
  return y;
}

const colourOf = (i) => `var(--${COLOURS[i % 6]})`;
const lineOf = (i) => `stroke: ${colourOf(i)}; stroke-dasharray: ${DASHES[(i + Math.floor(i / 6)) % 6] || "none"}`;

function drawLoss(svg) {
  const known = (points) => points.filter(({loss}) => loss !== null);  // which it is where it was no number
  const curves = runs.map((run) => known(run.loss.map((loss, k) => ({step: run.first_step + k, loss}))));
  const validations = runs.map((run) => known(run.validation));
  const values = [...curves, ...validations].flat().map(({loss}) => loss);
  if (values.length === 0) return;
  const y = heights(svg, values.reduce((a, b) => Math.min(a, b)), most(values), "nats");
  const last = most(runs.map((run) => run.first_step + run.loss.length));
  const x = (step) => 52 + step / (last || 1) * (svg.clientWidth - 60);
  for (const [step, anchor, unit] of [[0, "middle", ""], [Math.round(last / 2), "middle", ""], [last, "end", " steps"]])
    svg.append(make("svg:text", {x: x(step), y: svg.clientHeight - 4, "text-anchor": anchor}, step + unit));
  runs.forEach((run, i) => {
    const line = curves[i].map(({step, loss}) => `${x(step)},${y(loss)}`).join(" ");
    svg.append(make("svg:polyline", {class: "curve", style: lineOf(i), points: line, "data-name": nameOf(run)}));
    for (const {step, loss} of validations[i]) {
      const name = `${nameOf(run)}: validation after ${step} steps: ${short(loss, 6)}`;
      svg.append(make("svg:circle", {cx: x(step), cy: y(loss), r: 4, style: `fill: ${colourOf(i)}`, "data-name": name}));
    }
  });
}

/** Mean seconds of neighbouring steps, so few that each is seen: {name, step, compute, exposed, ..., other, hidden}. */
function binned(run) {
  const steps = run.steps || {step_s: []}, made = steps.step_s.length, size = Math.ceil(made / 80) || 1;
  return Array.from({length: Math.ceil(made / size)}, (_, i) => {
    const first = i * size, last = Math.min(made, first + size) - 1;
    const mean = (kind) => sum((steps[`${kind}_s`] ?? []).slice(first, last + 1)) / (last + 1 - first);
    const bin = {name: first === last ? `step ${first}` : `steps ${first} to ${last}, mean`, step: mean("step")};
    for (const kind of PARTS) bin[kind] = mean(kind);
    bin.other = bin.step - sum(PARTS.map((kind) => bin[kind]));
    bin.hidden = sum(BESIDE.map(mean));
    return bin;
  });
}

// Steps that take far longer than the mean of the slowest run, as first ones do, are cut off.
const longestStep = most(runs.flatMap((run) => binned(run).map((bin) => bin.step)));
const timeScale = Math.min(longestStep, 2 * most(runs.map((run) => run.time.step_s || longestStep)));

function drawSteps(svg, bins) {
  const y = heights(svg, 0, 1e3 * timeScale, "ms"), slot = (svg.clientWidth - 52) / bins.length;
  const at = (seconds) => y(1e3 * Math.min(seconds, timeScale));
  bins.forEach((bin, i) => {
    const left = 52 + i * slot;
    const box = (kind, x, width, from) => bin[kind] > 0 && svg.append(make("svg:rect", {
      class: kind, x, width, y: at(from + bin[kind]), height: at(from) - at(from + bin[kind]),
      "data-name": `${bin.name}: ${kind} ${short(1e3 * bin[kind])} ms`}));
    let from = 0;
    for (const kind of [...PARTS, "other"]) {
      box(kind, left, 0.7 * slot, from);
      from += bin[kind];
    }
    box("hidden", left + 0.7 * slot, 0.15 * slot, 0);
    if (bin.step > timeScale)
      svg.append(make("svg:text", {class: "cut", x: left + 0.35 * slot, y: 11, "text-anchor": "middle",
                                   "data-name": `${bin.name}: ${short(1e3 * bin.step)} ms`}, "▲"));
  });
}

function stepsPart(run) {
  const svg = make("svg:svg", {class: "steps"}), bins = binned(run);
  pictures.set(svg, () => drawSteps(svg, bins));
  const kinds = [...PARTS, "other", "hidden"].filter((kind) => bins.some((bin) => bin[kind] > 0));
  const signs = kinds.map((kind) => [`chip ${kind}`, kind === "hidden" ? "beside the program" : kind]);
  return part("Time of each step", svg, make("p", {class: "legend"}, ...legend(signs)));
}

function runPart(run) {
  const article = make("article", {}, make("h2", {}, nameOf(run)));
  if (run.steps) article.append(stepsPart(run));
  article.append(memoryPart(run));
  if (Object.keys(run.traffic).length && run.ranks > 1) article.append(trafficPart(run));
  article.append(checksPart(run), listPart("Options", run, (r) => r.options),
                 listPart("Environment", run, (r) => ({...r.provenance, ...(r.clocks && {clocks: r.clocks})})));
  return article;
}

const pictures = new Map([[find("#loss"), drawLoss]]);  // what draws each SVG element
find("h1").textContent = `${runs.length} runs side by side`;
if (runs.length === 1) {
  const [{lesson, model, provenance, finished, digest}] = runs;
  const about = [`${count(model.parameters)} parameters`, provenance.date, finished ? "finished" : "not finished",
                 digest && `digest ${digest.slice(0, 12)}`];
  find("h1").textContent = `${lesson}, ${model.name || ""}, ${ranksOf(runs[0])}`;
  find("#about").textContent = about.filter(Boolean).join(", ");
  find("#runs").className = "one";
}
document.title = find("h1").textContent;
find("#summary").append(table(["run", ...Object.keys(COLUMNS)], runs.map((run) =>
  row(nameOf(run), Object.values(COLUMNS).map((column) => cell(column(run)))))));
find("#names").append(...runs.map((run, i) => {
  const line = make("svg:line", {class: "curve", style: lineOf(i), x1: 0, x2: 40, y1: 6, y2: 6});
  return make("span", {}, make("svg:svg", {class: "line"}, line), nameOf(run));
}), make("span", {}, "● validation"));
find("#runs").append(...runs.map(runPart));
new ResizeObserver(() => {
  for (const [svg, draw] of pictures) {
    svg.replaceChildren();
    if (svg.clientWidth > 100) draw(svg);
  }
}).observe(document.body);
