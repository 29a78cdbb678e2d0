"use strict";
// The film of a step. The data are those of film.py's data_of(); times are nanoseconds on the wall clock and the virtual clock.

const film = JSON.parse(document.getElementById("film").textContent);
const word = number => film.words[number];
const find = selector => document.querySelector(selector);
const count = number => number.toLocaleString("en-GB");
const KINDS = {forward: "forward pass", backward: "backward pass", other: "other computation",
               exposed: "communication that the program waits for", waiting: "waiting for another rank",
               hidden: "communication beside the program", fetching: "copies from another memory", storing: "copies to another memory",
               io: "input and output"};
const STATES = {whole: "whole", sharded: "sharded: this rank's piece", partial: "partial sums", "on its way": "on its way",
                nothing: "nothing"};
const show = {clock: 0, time: 0, rank: 0, zoom: 1, left: 0, view: null, playing: false, asked: new Set(), file: ""};
const length = () => film.clocks.find(([clock]) => clock === show.clock)[2];
const milliseconds = time => `${(time / 1e6).toFixed(3)} ms`;

// ---- Data -----------------------------------------------------------------------------------------------------------

const spans = film.ranks.map((rank, r) => rank.spans.map(([name, kind, where, lane, w0, v0, w1, v1]) =>
  ({rank: r, name: word(name), kind: word(kind), where: word(where), lane, begin: [w0, v0], end: [w1, v1]})));
const messages = film.messages.map(([collective, purpose, group, where, lane, from, to, bytes, counted, w0, v0, w1, v1]) =>
  ({collective: word(collective), purpose: word(purpose), group: word(group), where: word(where), lane, from, to, bytes, counted,
    begin: [w0, v0], end: [w1, v1]}));
const lanes = [...new Set([0, ...spans.flat().map(span => span.lane)])].sort();

/** Levels of memory of each rank on the chosen clock: [[time, {category: bytes}], ...]. */
function levelsOf(rank) {
  const levels = [[-1, {...rank.held}]];
  for (const [w, v, category, change] of [...rank.changes].sort((a, b) => a[show.clock] - b[show.clock])) {
    const held = {...levels.at(-1)[1]};
    held[word(category)] += change;
    levels.push([[w, v][show.clock], held]);
  }
  return levels;
}

/** The states of each tensor of each rank on the chosen clock: [[time, state], ...] in order. */
function statesOf(tensor) {
  return tensor.ranks.map(states => states.map(([w, v, state]) => [[w, v][show.clock], word(state)]).sort((a, b) => a[0] - b[0]));
}

/** What holds at a time, of entries that begin with theirs. */
function at(entries, time) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] <= time) low = middle + 1; else high = middle;
  }
  return low ? entries[low - 1][1] : null;
}

const during = thing => thing.begin[show.clock] <= show.time && show.time < thing.end[show.clock];

// ---- Elements -------------------------------------------------------------------------------------------------------

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

function make(tag, attributes = {}, text = "") {
  const svg = ["rect", "line", "path", "text"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  set(element, attributes);
  element.textContent = text;
  return element;
}

function legend(place, entries) {
  find(place).replaceChildren(...entries.map(([look, words]) => {
    const entry = make("span");
    entry.append(make("span", {class: look}), words);
    return entry;
  }));
}

const lasts = thing => milliseconds(thing.end[show.clock] - thing.begin[show.clock]);
const purposeOf = message => message.collective + (message.purpose && ` (${message.purpose})`);
const nameOfSpan = span => `rank ${span.rank}: ${span.name}\n${KINDS[span.kind]}, ${lasts(span)}\n${span.where}`;
const nameOfMessage = m => `rank ${m.from} → rank ${m.to}: ${count(m.bytes)} bytes${m.counted ? "" : ", in no formula"}\n` +
  `${purposeOf(m)}, group ${m.group}, ${lasts(m)}\n${m.where}`;

// ---- Time line ------------------------------------------------------------------------------------------------------

/** Where the times in view and the lanes of ranks are in the picture. */
function layout() {
  const em = parseFloat(getComputedStyle(document.documentElement).fontSize), width = find("#timeline").clientWidth - 4;
  const left = 4.2 * em, top = 1.6 * em, lane = Math.max(0.9 * em, 1.35 * em - film.ranks.length);
  const band = lanes.length * (lane + 2) + 1.1 * em, shown = length() / show.zoom;
  return {em, width, left, top, lane, shown, height: top + film.ranks.length * band,
          x: time => left + (width - left) * (time - show.left) / shown,
          y: (rank, place) => top + rank * band + lanes.indexOf(place) * (lane + 2),
          timeAt: pixel => show.left + shown * (pixel - left) / (width - left)};
}

/** Draws the part of the step that is in view. */
function drawTimeline() {
  const view = show.view = layout(), svg = find("#timeline svg");
  svg.setAttribute("viewBox", `0 0 ${view.width + 4} ${view.height}`);
  svg.style.setProperty("--faint", Math.min(0.35, 120 / messages.length));
  set(find("#view rect"), {x: view.left, width: view.width - view.left, height: view.height});
  set(find("#head"), {y1: view.top - 6, y2: view.height});
  find("#lanes").replaceChildren(...axis(view), ...film.ranks.flatMap((_, rank) => lanesOf(view, rank)));
  find("#arrows").replaceChildren(...messages.flatMap(message => arrowOf(view, message)));
}

/** Round times in view, about 10 of them, or 4 in a narrow window. */
function axis(view) {
  const parts = view.width < 600 ? 4 : 10, power = 10 ** Math.floor(Math.log10(view.shown / parts)), drawn = [];
  const apart = [1, 2, 5, 10].map(factor => factor * power).find(step => step * parts >= view.shown);
  for (let time = Math.ceil(show.left / apart) * apart; time <= show.left + view.shown; time += apart) {
    drawn.push(make("line", {class: "grid", x1: view.x(time), x2: view.x(time), y1: view.top - 4, y2: view.height}),
               make("text", {class: "soft", x: view.x(time), y: view.em, "text-anchor": "middle"}, `${+(time / 1e6).toFixed(6)} ms`));
  }
  return drawn;
}

/** A rank's name, its empty lanes, and what it does on them. */
function lanesOf(view, rank) {
  const {left, width, lane, x, y} = view, inside = time => Math.min(Math.max(x(time), left), width);
  const drawn = [make("text", {class: `rank${rank === show.rank ? " chosen" : ""}`, x: 0, y: y(rank, 0) + lane * 0.75, "data-rank": rank,
                               "data-name": `Shows the program and the memory of rank ${rank}`}, `rank ${rank}`),
                 ...lanes.map(place => make("rect", {class: "idle", x: left, y: y(rank, place), width: width - left, height: lane}))];
  for (const span of spans[rank]) {
    const [from, to] = [inside(span.begin[show.clock]), inside(span.end[show.clock])];
    if (to > from) drawn.push(make("rect", {class: span.kind, x: from, y: y(rank, span.lane), width: Math.max(to - from, 1), height: lane,
                                            "data-name": nameOfSpan(span)}));
  }
  return drawn;
}

/** The line of a message and a wide one to point at; nothing if it is not in view. */
function arrowOf(view, message) {
  const [from, to] = [view.x(message.begin[show.clock]), view.x(message.end[show.clock])];
  const place = lanes.includes(message.lane) ? message.lane : 0;
  const [sender, receiver] = [message.from, message.to].map(rank => view.y(rank, place) + view.lane / 2);
  message.drawn = null;
  if (to < view.left || from > view.width) return [];
  const path = `M${from} ${sender}L${to} ${receiver}`;
  message.drawn = make("path", {class: "arrow", d: path});
  message.middle = [Math.min(Math.max((from + to) / 2, view.left + 30), view.width - 40), (sender + receiver) / 2];
  return [message.drawn, make("path", {class: "wide", d: path, "data-name": nameOfMessage(message)})];
}

/** Moves the playhead, and the view if the head has left it; marks the messages that are on their way. */
function updateTimeline() {
  const shown = length() / show.zoom;
  if (show.time < show.left || show.time > show.left + shown) {
    show.left = Math.min(Math.max(show.time - 0.1 * shown, 0), length() - shown);
    drawTimeline();
  }
  set(find("#head"), {x1: show.view.x(show.time), x2: show.view.x(show.time)});
  const flying = messages.filter(during), labels = [];  // those that do not cover each other
  for (const message of messages) message.drawn?.classList.toggle("now", during(message));
  for (const {middle: [x, y], bytes} of flying.filter(message => message.drawn))
    if (!labels.some(label => Math.abs(label.x - x) < 80 && Math.abs(label.y - y) < 16)) labels.push({x, y, bytes});
  find("#labels").replaceChildren(...labels.map(({bytes, ...place}) => make("text", {class: "label", "text-anchor": "middle", ...place}, count(bytes))));
  const words = flying.slice(0, 3).map(m => `${m.from} → ${m.to}: ${count(m.bytes)} bytes, ${purposeOf(m)}`).join("; ");
  const total = flying.reduce((sum, message) => sum + message.bytes, 0);
  const all = flying.length > 3 ? ` … ${flying.length} messages, ${count(total)} bytes` : "";
  find("#flying").textContent = flying.length ? `On their way: ${words}${all}.` : "No message is on its way.";
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

const categories = [...new Set(film.ranks.flatMap(rank => Object.keys(rank.held)))];
const bytesOf = held => categories.map(category => held[category] ?? 0);
const sum = bytes => bytes.reduce((total, more) => total + more, 0);
const formula = (rank, which) => categories.map(category => film.ranks[rank].formula[category]?.[which] ?? 0);

function bar(parent, name, classes) {
  const row = make("div", {class: "bar"}), track = make("div", {class: "track"});
  row.append(make("span", {}, name), track, make("span"));
  const parts = classes.map(category => make("i", {class: category}));
  const kept = make("b"), most = make("b", {class: "most"});
  track.append(...parts, kept, most);
  parent.append(row);
  return {row, parts, kept, most, words: row.lastChild};
}

/** Sets the parts of a bar, as bytes, and its ticks. */
function fill(drawn, bytes, kept, most, scale, names) {
  let left = 0;
  drawn.parts.forEach((part, i) => {
    part.style.left = `${100 * left / scale}%`;
    part.style.width = `${100 * bytes[i] / scale}%`;
    part.dataset.name = `${names[i]}: ${count(bytes[i])} bytes now`;
    left += bytes[i];
  });
  for (const [tick, value, words] of [[drawn.kept, kept, "kept after a step"], [drawn.most, most, "the most during a step"]]) {
    tick.style.left = `calc(${100 * value / scale}% - 1px)`;
    tick.dataset.name = `formula, ${words}: ${count(value)} bytes`;
  }
  drawn.words.textContent = count(left);
}

const rankBars = film.ranks.map((_, rank) => bar(find("#bars"), `rank ${rank}`, categories));
const categoryBars = categories.map(category => bar(find("#categories"), category, [category]));
let levels, widest;

function updateMemory() {
  film.ranks.forEach((_, rank) => {
    fill(rankBars[rank], bytesOf(at(levels[rank], show.time)), sum(formula(rank, "formula")), sum(formula(rank, "formula_peak")), widest,
         categories.map(category => `rank ${rank}, ${category}`));
    rankBars[rank].row.classList.toggle("chosen", rank === show.rank);
  });
  const held = bytesOf(at(levels[show.rank], show.time)), kept = formula(show.rank, "formula"), most = formula(show.rank, "formula_peak");
  const largest = Math.max(...most, ...held);
  find("#memory h3").textContent = `Rank ${show.rank} by category`;
  categories.forEach((category, i) => fill(categoryBars[i], [held[i]], kept[i], most[i], largest, [category]));
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

let states;
const cells = film.tensors.map(() => []);

function makeTensors() {
  const table = find("#tensors table"), head = make("thead"), body = make("tbody");
  head.append(make("th"), ...film.ranks.map((_, rank) => make("th", {}, `${rank}`)));
  film.tensors.forEach((tensor, row) => {
    const line = make("tr");
    line.append(make("th", {}, tensor.name));
    film.ranks.forEach((_, rank) => {
      const cell = make("td");
      cells[row][rank] = make("span", {style: `--r: ${tensor.places[rank][0]}; --n: ${tensor.places[rank][1]}`});
      cell.append(cells[row][rank]);
      line.append(cell);
    });
    body.append(line);
  });
  table.replaceChildren(head, body);
}

function updateTensors() {
  states.forEach((ranks, row) => {
    const there = ranks.some(entries => !["nothing", null].includes(at(entries, show.time)));
    cells[row][0].closest("tr").hidden = film.tensors[row].passing && !there;
  });
  states.forEach((ranks, row) => ranks.forEach((entries, rank) => {
    const state = at(entries, show.time) ?? "", cell = cells[row][rank];
    cell.className = state && `state ${state.split(" ").at(-1)}`;
    cell.dataset.name = state && `${film.tensors[row].name} on rank ${rank}: ${state}`;
  }));
}

// ---- Program --------------------------------------------------------------------------------------------------------

/** The innermost span of a lane whose line is in a lesson, else the innermost one. */
function running(lane) {
  const open = spans[show.rank].filter(span => span.lane === lane && during(span)).reverse();
  const place = open.find(span => /^lessons\/\d/.test(span.where)) ?? open.find(span => span.where.startsWith("lessons/"));
  return {what: open[0], where: (place ?? open[0])?.where ?? ""};
}

function updateProgram() {
  const main = running(0), beside = lanes.slice(1).map(running).find(({what}) => what);
  const words = ({what, where}) => `${where.split("/").at(-1)}: ${what.name}`;
  const kind = main.what?.name.startsWith(main.what.kind) ? "" : ` (${KINDS[main.what?.kind]})`;
  find("#running").textContent = main.what ? `Rank ${show.rank}, ${words(main)}${kind}` : `Rank ${show.rank} is outside of its step.`;
  find("#beside").textContent = beside ? `beside it, ${words(beside)}` : "";
  const [file, line] = main.where.split(":"), pre = find("#program pre");
  if (film.files[file] && file !== show.file) {
    show.file = file;
    pre.replaceChildren(...film.files[file].map((text, i) => {
      const row = make("div"), [code] = text.split("//", 1);
      row.append(`${String(i + 1).padStart(4)}  ${code}`, make("span", {class: "comment"}, text.slice(code.length)));
      return row;
    }));
  }
  for (const old of pre.querySelectorAll(".runs, .sends")) old.className = "";
  const [sender, sends] = (beside?.where ?? "").split(":");
  if (sender === show.file && pre.children[sends - 1]) pre.children[sends - 1].className = "sends";
  const row = file === show.file ? pre.children[line - 1] : null;
  if (!row) return;
  row.className = "runs";
  if (show.line !== row) pre.scrollTop = row.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  show.line = row;
}

// ---- Quiz -----------------------------------------------------------------------------------------------------------

const key = question => show.clock + question.question + question.at;

function ask(question) {
  pause();
  show.asked.add(key(question));
  show.rank = question.rank;
  moveTo(question.at);
  drawTimeline();
  update();
  const quiz = find("#quiz"), reply = make("p"), choices = question.choices.map((choice, i) => make("button", {}, `${i + 1}. ${choice}`));
  choices.forEach((button, i) => button.addEventListener("click", () => {
    button.classList.add(i === question.answer ? "right" : "wrong");
    if (i !== question.answer) return void (reply.textContent = "Not quite. Look once more.");
    for (const choice of choices) choice.disabled = true;
    reply.textContent = `Right. ${question.why} `;
    const on = make("button", {}, "Play on");
    on.addEventListener("click", play);
    reply.append(on);
    on.focus({preventScroll: true});
  }));
  quiz.replaceChildren(make("h2", {}, question.question), ...choices, reply);
  quiz.hidden = false;
}

const open = () => film.quiz[show.clock].filter(question => !show.asked.has(key(question)));

function askNext() {
  if (!open().length) show.asked.clear();
  const question = open().find(({at}) => at >= show.time) ?? open()[0];
  if (question) ask(question);
}

// ---- Time -----------------------------------------------------------------------------------------------------------

function update() {
  find("#time").value = 1000 * show.time / length();
  find("#moment").textContent = `${milliseconds(show.time)} of ${milliseconds(length())}`;
  updateTimeline();
  updateMemory();
  updateTensors();
  updateProgram();
}

function moveTo(time) {
  show.time = Math.min(Math.max(time, 0), length());
  document.body.dataset.ended = show.time >= length();
}

function frame() {
  if (!show.playing) return;
  const before = show.time, now = performance.now();
  moveTo(before + (now - (show.last ?? now)) / 1000 * length() / find("#speed").value);
  show.last = now;
  const question = find("#stops").checked && open().find(({at}) => before <= at && at < show.time);
  if (question) return ask(question);
  update();
  if (show.time >= length()) return pause();
  setTimeout(frame, 30);
}

function play() {
  if (show.time >= length()) moveTo(0);
  find("#quiz").hidden = true;
  show.playing = true;
  show.last = undefined;
  find("#play").textContent = "Pause";
  frame();
}

function pause() {
  show.playing = false;
  find("#play").textContent = "Play";
}

function go(time) {
  moveTo(time);
  update();
}

/** The next or the previous moment at which a span or a message begins or ends. */
function event(forward) {
  const times = [...spans.flat(), ...messages].flatMap(thing => [thing.begin[show.clock], thing.end[show.clock]]);
  return forward ? Math.min(length(), ...times.filter(time => time > show.time)) : Math.max(0, ...times.filter(time => time < show.time));
}

function chooseRank(rank) {
  show.rank = (rank + film.ranks.length) % film.ranks.length;
  drawTimeline();
  update();
}

function zoom(factor) {
  show.zoom = Math.min(Math.max(show.zoom * factor, 1), 256);
  show.left = Math.min(Math.max(show.time - length() / show.zoom / 2, 0), length() - length() / show.zoom);
  drawTimeline();
  update();
}

function chooseClock(clock) {
  const part = show.time / length();
  show.clock = clock;
  for (const button of find("#clocks").children) button.setAttribute("aria-pressed", button.value == clock);
  levels = film.ranks.map(levelsOf);
  const totals = levels.flat().map(([, held]) => sum(bytesOf(held)));
  widest = Math.max(...totals, ...film.ranks.map((_, rank) => sum(formula(rank, "formula_peak"))));
  states = film.tensors.map(statesOf);
  moveTo(part * length());
  zoom(1);
}

// ---- Page -----------------------------------------------------------------------------------------------------------

const KEYS = {" ": () => (show.playing ? pause() : play()), q: askNext, "+": () => zoom(2), "-": () => zoom(0.5),
              ArrowUp: () => chooseRank(show.rank - 1), ArrowDown: () => chooseRank(show.rank + 1),
              Home: () => go(0), End: () => go(length()),
              ArrowLeft: e => go(e.shiftKey ? event(false) : show.time - length() / show.zoom / 200),
              ArrowRight: e => go(e.shiftKey ? event(true) : show.time + length() / show.zoom / 200)};

/** Writes what stays the same: title, clocks, legends, sums. */
function label() {
  document.title = find("h1").textContent = film.title;
  find("#about").textContent = `The film of a step: ${film.about}.`;
  const meaning = ["The time that was measured", "The time that --link and --flops give"];
  find("#clocks").replaceChildren(...film.clocks.map(([clock, name]) => make("button", {value: clock, "data-name": meaning[clock]}, name)));
  const used = new Set(spans.flat().map(span => span.kind));
  legend("#kinds", [...Object.entries(KINDS).filter(([kind]) => used.has(kind)).map(([kind, words]) => [`chip ${kind}`, words]),
                    ["chip message", "message, from the moment it is sent until it is received"], ["chip message now", "on its way now"]]);
  legend("#states", Object.entries(STATES).map(([state, words]) => [`state ${state.split(" ").at(-1)}`, words]));
  for (const sample of document.querySelectorAll("#states .state")) sample.style = "--r: 1; --n: 4";
  const sums = Object.entries(film.traffic).filter(([, bytes]) => bytes > 0).map(([axis, bytes]) => `${count(bytes)} bytes along ${axis}`);
  find("#sums").textContent = `Rank 0 sends, as its report says: ${sums.join(", ")}.`;
}

/** Connects buttons, keys and the pointer. */
function connect() {
  for (const button of find("#clocks").children) button.addEventListener("click", () => chooseClock(+button.value));
  for (const [button, does] of [["#play", KEYS[" "]], ["#in", KEYS["+"]], ["#out", KEYS["-"]], ["#ask", askNext]])
    find(button).addEventListener("click", does);
  find("#time").addEventListener("input", e => go(e.target.value / 1000 * length()));
  find("#timeline svg").addEventListener("click", e => {
    if (e.target.dataset.rank) chooseRank(+e.target.dataset.rank);
    else go(show.view.timeAt(e.clientX - find("#timeline svg").getBoundingClientRect().left));
  });
  addEventListener("keydown", e => {
    const ofElement = e.target.matches("select") || (e.key === " " && e.target.matches("button, [type=checkbox]"));
    const choice = !find("#quiz").hidden && find(`#quiz button:nth-of-type(${+e.key || 99})`);
    if (ofElement || e.ctrlKey || e.metaKey || e.altKey || !(choice || KEYS[e.key])) return;
    e.preventDefault();
    if (choice) choice.click(); else KEYS[e.key](e);
  });
  addEventListener("resize", () => zoom(1));
  addEventListener("pointermove", point);
  addEventListener("focusin", point);
}

/** Shows what the address asks for, as in film.html#at=0.4&clock=1&rank=2&zoom=4 or #play=1&stops=0&seconds=20. */
function begin() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = name => Number(asked.get(name)) || 0;
  find("#stops").checked = asked.get("stops") !== "0";
  if (number("seconds") > 0) find("#speed").add(new Option(`${number("seconds")} s`, number("seconds"), true, true));
  chooseClock((film.clocks.find(([clock]) => asked.has("clock") && clock === number("clock")) ?? film.clocks.at(-1))[0]);
  chooseRank(number("rank"));
  go(number("at") * length());
  zoom(number("zoom") || 1);
  if (asked.has("ask")) askNext();
  if (asked.has("play")) play();
}

/** Shows the name of what is pointed at. */
function point(e) {
  const tip = find("#tip"), named = e.target.closest?.("[data-name]");
  tip.hidden = !named?.dataset.name;
  if (tip.hidden) return;
  tip.textContent = named.dataset.name;
  const box = named.getBoundingClientRect(), [x, y] = [e.clientX ?? box.left, e.clientY ?? box.bottom];
  tip.style.left = `${Math.min(x + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${y + 16 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 8 : y + 16}px`;
}

label();
makeTensors();
connect();
begin();
