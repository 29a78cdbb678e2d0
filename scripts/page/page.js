"use strict";
// What all pages draw with.

const find = (selector) => document.querySelector(selector);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const clamp = (number, low, high) => Math.min(Math.max(number, low), high);
const count = (number) => number?.toLocaleString("en-GB", {maximumFractionDigits: 6}) ?? "–";

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

/** An element of HTML, or of SVG where its name begins with "svg:", with other elements or texts in it. */
function make(name, attributes = {}, ...content) {
  const [tag, drawing] = name.split(":").reverse();
  const element = drawing ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  set(element, attributes);
  element.append(...content);
  return element;
}

/** The entries of a legend, of the class of each sign and its meaning. */
const legend = (signs) => signs.map(([sign, meaning]) => make("span", {}, make("span", {class: sign}), meaning));

/** Round numbers from low to high, which have at most `parts` distances between them. */
function roundNumbers(low, high, parts) {
  const least = (high - low) / parts || 1, power = 10 ** Math.floor(Math.log10(least));
  const distance = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const first = Math.ceil(low / distance), last = Math.floor(high / distance + 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => (first + i) * distance);
}

/** A bar of memory: a part for each [category, bytes, words], ticks for what formulas say, and what stands after it. */
function memoryBar(name, parts, ticks, scale, after) {
  const percent = (bytes) => `${100 * bytes / scale}%`, track = make("div", {class: "track"});
  let left = 0;
  for (const [category, bytes, words] of parts) {
    track.append(make("i", {class: category, style: `left: ${percent(left)}; width: ${percent(bytes)}`, "data-name": words}));
    left += bytes;
  }
  for (const [tick, bytes, words] of ticks)
    track.append(make("b", {class: tick, style: `left: ${percent(bytes)}`, "data-name": `${words}: ${count(bytes)} bytes`}));
  return make("div", {class: "bar"}, make("span", {}, name), track, make("span", {}, after));
}

/** Shows the name of what is pointed at. */
function point(e) {
  const tip = find("#tip"), named = e.target.closest?.("[data-name]");
  tip.hidden = !named;
  if (!named) return;
  tip.textContent = named.dataset.name;
  const box = named.getBoundingClientRect(), [x, y] = [e.clientX ?? box.left, e.clientY ?? box.bottom];
  const above = y + 16 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.min(x + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${above ? y - tip.offsetHeight - 8 : y + 16}px`;
}
addEventListener("pointermove", point);
addEventListener("focusin", point);
