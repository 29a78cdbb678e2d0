// The search, the choice between dark and light, the menu of narrow windows, the marks of changed lines, and formulas.
(() => {
  "use strict";
  const root = document.currentScript.dataset.root;
  const page = document.documentElement;

  // ---- Dark or light: the choice of the system until the reader makes one, which is remembered ----
  function remembered() {
    try { return localStorage.getItem("theme"); } catch { return null; }
  }
  function isDark() {
    return (page.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  }
  if (remembered()) page.dataset.theme = remembered();

  function prepareTheme() {
    document.getElementById("theme").addEventListener("click", () => {
      page.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("theme", page.dataset.theme); } catch { /* it is not remembered */ }
    });
  }

  // ---- Menu of narrow windows ----
  function prepareMenu() {
    const button = document.getElementById("open-menu");
    if (!document.querySelector("nav.menu")) { button.hidden = true; return; }
    button.addEventListener("click", () => {
      button.setAttribute("aria-expanded", String(document.body.classList.toggle("menu-open")));
    });
  }

  // ---- What is new since the parent lesson ----
  function prepareChanges() {
    const form = document.getElementById("changes");
    if (!form) return;
    const fresh = document.getElementById("show-new"), gone = document.getElementById("show-gone");
    function show() {
      document.body.classList.toggle("show-new", fresh.checked);
      for (const line of document.querySelectorAll(".gone")) line.hidden = !gone.checked;
    }
    for (const box of [fresh, gone]) box.addEventListener("change", show);
    function follow() {
      if (location.hash === "#changes") fresh.checked = true;
      show();
    }
    addEventListener("hashchange", follow);
    follow();
  }

  // ---- Search ----
  const most = 40;

  function withIndex(use) {
    if (window.rankwiseIndex) { use(window.rankwiseIndex); return; }
    const script = document.createElement("script");
    script.src = root + "site/search_index.js";
    script.onload = () => use(window.rankwiseIndex);
    document.head.append(script);
  }

  // "all-reduce" also finds all_reduce and "all reduce"; "allreduce" finds each of them.
  function pattern(word) {
    const letters = [...word].filter((c) => c !== "-" && c !== "_");
    return new RegExp(letters.map((c) => c.replace(/[^\w]/gu, "\\$&")).join("[-_ ]?"), "i");
  }

  function score(entry, words, whole) {
    const [, title, heading, text, kind] = entry;
    let sum = 0;
    for (const word of words) {
      if (word.test(heading)) sum += 20;
      else if (word.test(title)) sum += 8;
      else if (word.test(text)) sum += 2;
      else return 0;
    }
    if (whole.test(heading)) sum += kind === "g" ? 200 : 100;
    return sum + { g: 6, t: 4, d: 2, c: 1 }[kind];
  }

  function find(index, query) {
    const words = query.split(/\s+/).filter((w) => /[\p{L}\p{N}]/u.test(w)).map(pattern);
    if (!words.length) return [];
    const whole = new RegExp(`^(?:${pattern(query.replace(/\s+/g, "-")).source})(?:\\(\\))?$`, "i");
    return index.map((entry) => [score(entry, words, whole), entry]).filter(([points]) => points > 0)
      .sort(([a], [b]) => b - a).slice(0, most).map(([, entry]) => ({ entry, words }));
  }

  // A line of the text around the first word that it has, with that word marked.
  function context(text, words) {
    const found = words.map((w) => w.exec(text)).find(Boolean);
    const line = document.createElement("span");
    line.className = "context";
    if (!found) { line.textContent = text.slice(0, 120); return line; }
    const first = Math.max(0, found.index - 45), end = found.index + found[0].length;
    const mark = document.createElement("mark");
    mark.textContent = found[0];
    line.append((first ? "\u2026" : "") + text.slice(first, found.index), mark, text.slice(end, end + 75));
    return line;
  }

  function result({ entry, words }) {
    const [url, title, heading, text] = entry;
    const item = document.createElement("li"), link = document.createElement("a"), name = document.createElement("strong");
    name.textContent = heading && heading !== title ? `${title}: ${heading}` : title;
    link.href = root + url;
    link.append(name, context(text, words));
    item.append(link);
    return item;
  }

  function prepareSearch() {
    const input = document.getElementById("search"), list = document.getElementById("results");
    let chosen = -1;
    function show(index) {
      const query = input.value.trim();
      const results = find(index, query).map(result);
      if (query && !results.length) {
        results.push(document.createElement("li"));
        results[0].textContent = "Nothing found.";
      }
      list.replaceChildren(...results);
      list.hidden = !query;
      chosen = -1;
    }
    function close() { list.hidden = true; }
    function choose(step) {
      const links = list.querySelectorAll("a");
      if (!links.length) return;
      chosen = (chosen + step + links.length) % links.length;
      links.forEach((link, i) => link.classList.toggle("chosen", i === chosen));
      links[chosen].scrollIntoView({ block: "nearest" });
    }
    input.addEventListener("input", () => withIndex(show));
    input.addEventListener("focus", () => { if (input.value) withIndex(show); });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") { choose(1); event.preventDefault(); }
      if (event.key === "ArrowUp") { choose(-1); event.preventDefault(); }
      if (event.key === "Enter") list.querySelectorAll("a")[Math.max(chosen, 0)]?.click();
      if (event.key === "Escape") close();
    });
    list.addEventListener("click", (event) => { if (event.target.closest("a")) close(); });
    document.addEventListener("click", (event) => { if (!event.target.closest(".search")) close(); });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.matches("input, textarea")) return;
      input.focus();
      event.preventDefault();
    });
  }

  // ---- Formulas ----
  function renderFormulas() {
    if (!window.katex) return;
    for (const formula of document.querySelectorAll(".math"))
      katex.render(formula.textContent, formula, { displayMode: formula.classList.contains("display"), throwOnError: false });
  }

  document.addEventListener("DOMContentLoaded", () => {
    prepareTheme();
    prepareMenu();
    prepareChanges();
    prepareSearch();
    renderFormulas();
  });
})();
