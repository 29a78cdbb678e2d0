// The film of a step. The data are those of film.py's data_of(); times are nanoseconds: [wall clock, virtual clock].

const film = JSON.parse(find("#data").textContent);
const word = (number) => film.words[number];
const KINDS = {forward: "forward pass", backward: "backward pass", other: "other computation",
               exposed: "communication that the program waits for", waiting: "waiting for another rank",
               hidden: "communication beside the program", fetching: "copies from another memory",
               storing: "copies to another memory", io: "input and output"};
const STATES = {whole: "whole", sharded: "sharded: this rank's piece", partial: "partial sums", "on its way": "on its way",
                nothing: "nothing"};
const show = {clock: 0, time: 0, rank: 0, zoom: 1, left: 0, playing: false, asked: new Set()};
const length = () => film.clocks.find(([clock]) => clock === show.clock)[2];
const milliseconds = (time) => `${(time / 1e6).toFixed(3)} ms`;

// ---- Data -----------------------------------------------------------------------------------------------------------

const spans = film.ranks.map(({spans}, rank) => spans.map(([name, kind, where, lane, begin, end]) =>
  ({rank, name: word(name), kind: word(kind), where: word(where), lane, begin, end})));
const messages = film.messages.map(([collective, purpose, group, where, lane, from, to, bytes, counted, begin, end]) =>
  ({collective: word(collective), purpose: word(purpose), group: word(group), where: word(where), lane, from, to, bytes,
    counted, begin, end}));
const lanes = [...new Set([0, ...spans.flat().map((span) => span.lane)])].sort();
const categories = [...new Set(film.ranks.flatMap((rank) => Object.keys(rank.held)))];

const beginOf = (thing) => thing.begin[show.clock];
const endOf = (thing) => thing.end[show.clock];
const during = (thing) => beginOf(thing) <= show.time && show.time < endOf(thing);
const begun = (times) => times[show.clock] <= show.time;

const lasts = (thing) => milliseconds(endOf(thing) - beginOf(thing));
const purposeOf = (message) => message.collective + (message.purpose && ` (${message.purpose})`);
const nameOfSpan = (span) => `rank ${span.rank}: ${span.name}\n${KINDS[span.kind]}, ${lasts(span)}\n${span.where}`;
const nameOfMessage = (m) => `rank ${m.from} → rank ${m.to}: ${count(m.bytes)} bytes${m.counted ? "" : ", in no formula"}\n` +
  `${purposeOf(m)}, group ${m.group}, ${lasts(m)}\n${m.where}`;

// ---- Time line ------------------------------------------------------------------------------------------------------

/** Where the times in view and the lanes of ranks are in the picture. */
function layout() {
  const em = parseFloat(getComputedStyle(document.documentElement).fontSize), width = find("#timeline").clientWidth - 4;
  const left = 4.2 * em, top = 1.6 * em, lane = Math.max(0.9 * em, 1.35 * em - film.ranks.length);
  const band = lanes.length * (lane + 2) + 1.1 * em, shown = length() / show.zoom;
  return {em, width, left, top, lane, shown, height: top + film.ranks.length * band,
          x: (time) => left + (width - left) * (time - show.left) / shown,
          y: (rank, place) => top + rank * band + lanes.indexOf(place) * (lane + 2),
          timeAt: (pixel) => show.left + shown * (pixel - left) / (width - left)};
}

/** Draws the part of the step that is in view. */
function drawTimeline() {
  const view = show.view = layout(), svg = find("#timeline svg");
  svg.setAttribute("viewBox", `0 0 ${view.width + 4} ${view.height}`);
  svg.style.setProperty("--faint", Math.min(0.35, 120 / messages.length));
  set(find("#view rect"), {x: view.left, width: view.width - view.left, height: view.height});
  set(find("#head"), {y1: view.top - 6, y2: view.height});
  find("#lanes").replaceChildren(...axis(view), ...film.ranks.flatMap((_, rank) => lanesOf(view, rank)));
  find("#arrows").replaceChildren(...messages.flatMap((message) => arrowOf(view, message)));
}

function axis({width, height, top, em, shown, x}) {
  return roundNumbers(show.left, show.left + shown, width < 600 ? 4 : 10).flatMap((time) => [
    make("svg:line", {class: "grid", x1: x(time), x2: x(time), y1: top - 4, y2: height}),
    make("svg:text", {class: "soft", x: x(time), y: em, "text-anchor": "middle"}, `${+(time / 1e6).toFixed(6)} ms`)]);
}

/** A rank's name, its empty lanes, and what it does on them. */
function lanesOf({left, width, lane, x, y}, rank) {
  const words = `Shows the program and the memory of rank ${rank}`, chosen = rank === show.rank ? "chosen" : "";
  const name = make("svg:text", {class: `rank ${chosen}`, y: y(rank, 0) + lane * 0.75, "data-rank": rank, "data-name": words},
                    `rank ${rank}`);
  const box = (kind, place, from, to) =>
    make("svg:rect", {class: kind, x: from, y: y(rank, place), width: Math.max(to - from, 1), height: lane});
  const drawn = [name, ...lanes.map((place) => box("idle", place, left, width))];
  for (const span of spans[rank]) {
    const [from, to] = [beginOf(span), endOf(span)].map((time) => clamp(x(time), left, width));
    if (to <= from) continue;
    drawn.push(box(span.kind, span.lane, from, to));
    drawn.at(-1).dataset.name = nameOfSpan(span);
  }
  return drawn;
}

/** The line of a message and a wide one to point at; nothing if it is not in view. */
function arrowOf(view, message) {
  const [from, to] = [view.x(beginOf(message)), view.x(endOf(message))];
  const place = lanes.includes(message.lane) ? message.lane : 0;
  const [sender, receiver] = [message.from, message.to].map((rank) => view.y(rank, place) + view.lane / 2);
  message.drawn = null;
  if (to < view.left || from > view.width) return [];
  const path = `M${from} ${sender}L${to} ${receiver}`;
  message.drawn = make("svg:path", {class: "arrow", d: path});
  message.middle = {x: clamp((from + to) / 2, view.left + 30, view.width - 40), y: (sender + receiver) / 2};
  return [message.drawn, make("svg:path", {class: "wide", d: path, "data-name": nameOfMessage(message)})];
}

/** Moves the playhead, and the view if the head has left it; marks the messages that are on their way. */
function updateTimeline() {
  const shown = length() / show.zoom;
  if (show.time < show.left || show.time > show.left + shown) {
    show.left = clamp(show.time - 0.1 * shown, 0, length() - shown);
    drawTimeline();
  }
  set(find("#head"), {x1: show.view.x(show.time), x2: show.view.x(show.time)});
  for (const message of messages) message.drawn?.classList.toggle("now", during(message));
  const flying = messages.filter(during);
  find("#labels").replaceChildren(...labelsOf(flying.filter((message) => message.drawn)));
  const words = flying.slice(0, 3).map((m) => `${m.from} → ${m.to}: ${count(m.bytes)} bytes, ${purposeOf(m)}`).join("; ");
  const total = count(sum(flying.map((message) => message.bytes)));
  const all = flying.length > 3 ? ` … ${flying.length} messages, ${total} bytes` : "";
  find("#flying").textContent = flying.length ? `On their way: ${words}${all}.` : "No message is on its way.";
}

/** The bytes of messages, of those whose labels do not cover each other. */
function labelsOf(flying) {
  const apart = [];
  for (const {middle: {x, y}, bytes} of flying)
    if (!apart.some((label) => Math.abs(label.x - x) < 80 && Math.abs(label.y - y) < 16)) apart.push({x, y, bytes});
  return apart.map(({x, y, bytes}) => make("svg:text", {class: "label", "text-anchor": "middle", x, y}, count(bytes)));
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

/** Bytes of each category that a rank holds now. */
function heldBy({held, changes}) {
  const now = {...held};
  for (const [wall, virtual, category, change] of changes) if (begun([wall, virtual])) now[word(category)] += change;
  return now;
}

/** What the report says of categories of a rank's memory, as a sum: which is "peak", "formula" or "formula_peak". */
const reported = (rank, some, which) => sum(some.map((category) => rank.formula[category]?.[which] ?? 0));
const mostOf = (rank, some) => Math.max(reported(rank, some, "peak"), reported(rank, some, "formula_peak"));
const widest = Math.max(...film.ranks.map((rank) => mostOf(rank, categories)));

/** The bar of some categories of a rank's memory. */
function barOf(name, number, some, scale) {
  const rank = film.ranks[number], held = heldBy(rank), bytes = some.map((category) => held[category] ?? 0);
  const parts = some.map((category, i) => [category, bytes[i], `rank ${number}, ${category}: ${count(bytes[i])} bytes now`]);
  const ticks = [["kept", reported(rank, some, "formula"), "formula, kept after a step"],
                 ["most", reported(rank, some, "formula_peak"), "formula, the most during a step"]];
  return memoryBar(name, parts, ticks, scale, count(sum(bytes)));
}

function updateMemory() {
  find("#bars").replaceChildren(...film.ranks.map((_, rank) => barOf(`rank ${rank}`, rank, categories, widest)));
  find("#bars").children[show.rank].classList.add("chosen");
  find("#memory h3").textContent = `Rank ${show.rank} by category`;
  const largest = Math.max(...categories.map((category) => mostOf(film.ranks[show.rank], [category])));
  find("#categories").replaceChildren(...categories.map((category) => barOf(category, show.rank, [category], largest)));
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

/** The state of a tensor that began last, of [wall, virtual, state]; none before the first one. */
function stateNow(states) {
  const last = states.filter(begun).sort((a, b) => a[show.clock] - b[show.clock]).at(-1);
  return last && word(last[2]);
}

/** The sign of a state, for a rank's place among those that share the tensor. */
const stateSign = (state, [index, of]) =>
  make("span", {class: `state ${state.split(" ").at(-1)}`, style: `--r: ${index}; --n: ${of}`});

/** The row of a tensor: what each rank has of it. */
function rowOf({name, places}, states) {
  const cells = states.map((state, rank) =>
    state ? make("td", {"data-name": `${name} on rank ${rank}: ${state}`}, stateSign(state, places[rank])) : make("td"));
  return make("tr", {}, make("th", {}, name), ...cells);
}

/** A tensor that passes has a row only while it is there. Tables take long to lay out, so this one is drawn at changes only. */
function updateTensors() {
  const states = film.tensors.map((tensor) => tensor.ranks.map(stateNow));
  if (String(states) === show.states) return;
  show.states = String(states);
  const gone = (row) => states[row].every((state) => !state || state === "nothing");
  const rows = film.tensors.flatMap((tensor, row) => (tensor.passing && gone(row) ? [] : [rowOf(tensor, states[row])]));
  find("#tensors tbody").replaceChildren(...rows);
}

// ---- Program --------------------------------------------------------------------------------------------------------

/** The innermost span of a lane, at the line of the innermost one in a lesson, if there is one. */
function running(lane) {
  const open = spans[show.rank].filter((span) => span.lane === lane && during(span)).reverse();
  const place = open.find((span) => /^lessons\/\d/.test(span.where)) ?? open.find((span) => span.where.startsWith("lessons/"));
  return open[0] && {...open[0], where: (place ?? open[0]).where};
}

function updateProgram() {
  const main = running(0), beside = lanes.slice(1).map(running).find(Boolean);
  const words = ({name, where}) => `${where.split("/").at(-1)}: ${name}`;
  const kind = main && !main.name.startsWith(main.kind) ? ` (${KINDS[main.kind]})` : "";
  find("#running").textContent = `Rank ${show.rank}${main ? `, ${words(main)}${kind}` : " is outside of its step."}`;
  find("#beside").textContent = beside ? `beside it, ${words(beside)}` : "";
  const file = main?.where.split(":")[0], pre = find("#program pre");
  if (film.files[file] && file !== show.file) {
    show.file = file;
    pre.replaceChildren(...film.files[file].map((text, i) => lineOf(text, i + 1)));
  }
  for (const [mark, span] of [["sends", beside], ["runs", main]]) {
    pre.querySelector(`.${mark}`)?.classList.remove(mark);
    pre.querySelector(`[data-where="${span?.where}"]`)?.classList.add(mark);
  }
  const row = pre.querySelector(".runs");
  if (row && row !== show.line) pre.scrollTop = row.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  show.line = row ?? show.line;
}

function lineOf(text, number) {
  const [code] = text.split("//", 1);
  return make("div", {"data-where": `${show.file}:${number}`}, `${String(number).padStart(4)}  ${code}`,
              make("span", {class: "comment"}, text.slice(code.length)));
}

// ---- Quiz -----------------------------------------------------------------------------------------------------------

const key = (question) => show.clock + question.question + question.at;
const open = () => film.quiz[show.clock].filter((question) => !show.asked.has(key(question)));

function ask(question) {
  pause();
  show.asked.add(key(question));
  go(question.at);
  chooseRank(question.rank);
  const buttons = question.choices.map((choice, i) => make("button", {}, `${i + 1}. ${choice}`)), reply = make("p");
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    const right = i === question.answer;
    button.classList.add(right ? "right" : "wrong");
    reply.textContent = right ? `Right. ${question.why} ` : "Not quite. Look once more.";
    if (right) playOn(buttons, reply);
  }));
  find("#quiz").replaceChildren(make("h2", {}, question.question), ...buttons, reply);
  find("#quiz").hidden = false;
}

/** Ends a question that has been answered. */
function playOn(buttons, reply) {
  for (const button of buttons) button.disabled = true;
  const on = make("button", {}, "Play on");
  on.addEventListener("click", play);
  reply.append(on);
  on.focus({preventScroll: true});
}

function askNext() {
  if (!open().length) show.asked.clear();
  const question = open().find(({at}) => at >= show.time) ?? open()[0];
  if (question) ask(question);
}

// ---- Time -----------------------------------------------------------------------------------------------------------

function update() {
  document.body.dataset.ended = show.time >= length();
  find("#time").value = 1000 * show.time / length();
  find("#moment").textContent = `${milliseconds(show.time)} of ${milliseconds(length())}`;
  updateTimeline();
  updateMemory();
  updateTensors();
  updateProgram();
}

function go(time) {
  show.time = clamp(time, 0, length());
  update();
}

function frame() {
  if (!show.playing) return;
  const before = show.time, now = performance.now();
  go(before + (now - (show.last ?? now)) / 1000 * length() / find("#speed").value);
  show.last = now;
  const question = find("#stops").checked && open().find(({at}) => before <= at && at < show.time);
  if (question) ask(question);
  else if (show.time >= length()) pause();
  else setTimeout(frame, 30);
}

function play() {
  if (show.time >= length()) go(0);
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

/** The next or the previous moment at which a span or a message begins or ends. */
function event(forward) {
  const times = [...spans.flat(), ...messages].flatMap((thing) => [beginOf(thing), endOf(thing)]);
  return forward ? Math.min(length(), ...times.filter((time) => time > show.time))
                 : Math.max(0, ...times.filter((time) => time < show.time));
}

function chooseRank(rank) {
  show.rank = (rank + film.ranks.length) % film.ranks.length;
  drawTimeline();
  update();
}

function zoom(factor) {
  show.zoom = clamp(show.zoom * factor, 1, 256);
  show.left = clamp(show.time - length() / show.zoom / 2, 0, length() - length() / show.zoom);
  drawTimeline();
  update();
}

function chooseClock(clock) {
  const part = show.time / length();
  show.clock = clock;
  show.time = part * length();
  for (const button of find("#clocks").children) button.setAttribute("aria-pressed", button.value == clock);
  zoom(1);
}

// ---- Page -----------------------------------------------------------------------------------------------------------

const stride = () => length() / show.zoom / 200;
const KEYS = {" ": () => (show.playing ? pause() : play()), q: askNext, "+": () => zoom(2), "-": () => zoom(0.5),
              ArrowUp: () => chooseRank(show.rank - 1), ArrowDown: () => chooseRank(show.rank + 1),
              Home: () => go(0), End: () => go(length()),
              ArrowLeft: (e) => go(e.shiftKey ? event(false) : show.time - stride()),
              ArrowRight: (e) => go(e.shiftKey ? event(true) : show.time + stride())};

/** Writes what stays the same: title, clocks, legends, sums. */
function label() {
  document.title = find("h1").textContent = film.title;
  find("#about").textContent = `The film of a step: ${film.about}.`;
  const meaning = ["The time that was measured", "The time that --link and --flops give"];
  for (const [clock, name] of film.clocks)
    find("#clocks").append(make("button", {value: clock, "data-name": meaning[clock]}, name));
  const used = new Set(spans.flat().map((span) => span.kind));
  const kinds = Object.entries(KINDS).filter(([kind]) => used.has(kind)).map(([kind, words]) => [`chip ${kind}`, words]);
  find("#kinds").append(...legend([...kinds, ["chip message", "message, from the moment it is sent until it is received"],
                                   ["chip message now", "on its way now"]]));
  for (const [state, words] of Object.entries(STATES))
    find("#states").append(make("span", {}, stateSign(state, [1, 4]), words));
  find("#tensors thead").append(make("th"), ...film.ranks.map((_, rank) => make("th", {}, rank)));
  const sums = Object.entries(film.traffic).filter(([, bytes]) => bytes > 0);
  const words = sums.map(([axis, bytes]) => `${count(bytes)} bytes along ${axis}`).join(", ");
  find("#sums").textContent = `Rank 0 sends, as its report says: ${words}.`;
}

/** Connects buttons, keys and the pointer. */
function connect() {
  for (const button of find("#clocks").children) button.addEventListener("click", () => chooseClock(+button.value));
  for (const [button, does] of [["#play", KEYS[" "]], ["#in", KEYS["+"]], ["#out", KEYS["-"]], ["#ask", askNext]])
    find(button).addEventListener("click", does);
  find("#time").addEventListener("input", (e) => go(e.target.value / 1000 * length()));
  find("#timeline svg").addEventListener("click", (e) => {
    if (e.target.dataset.rank) chooseRank(+e.target.dataset.rank);
    else go(show.view.timeAt(e.clientX - find("#timeline svg").getBoundingClientRect().left));
  });
  addEventListener("keydown", (e) => {
    const ofElement = e.target.matches("select") || (e.key === " " && e.target.matches("button, [type=checkbox]"));
    const choice = !find("#quiz").hidden && find(`#quiz button:nth-of-type(${+e.key || 99})`);
    if (ofElement || e.ctrlKey || e.metaKey || e.altKey || !(choice || KEYS[e.key])) return;
    e.preventDefault();
    if (choice) choice.click(); else KEYS[e.key](e);
  });
  addEventListener("resize", () => zoom(1));
}

/** Shows what the address asks for, as in film.html#at=0.4&clock=1&rank=2&zoom=4 or #play=1&stops=0&seconds=20. */
function begin() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = (name) => Number(asked.get(name)) || 0;
  find("#stops").checked = asked.get("stops") !== "0";
  if (number("seconds") > 0) find("#speed").add(new Option(`${number("seconds")} s`, number("seconds"), true, true));
  chooseClock((film.clocks.find(([clock]) => asked.has("clock") && clock === number("clock")) ?? film.clocks.at(-1))[0]);
  chooseRank(number("rank"));
  go(number("at") * length());
  zoom(number("zoom") || 1);
  if (asked.has("ask")) askNext();
  if (asked.has("play")) play();
}

label();
connect();
begin();
