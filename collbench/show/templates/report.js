"use strict";
const {figures, themes, filters} = JSON.parse(document.getElementById("content").textContent);
const chosen = Object.fromEntries(filters.map((name) => [name, new Set()]));
const passes = (meta) => filters.every((name) => !chosen[name].size || !(name in meta) || chosen[name].has(meta[name]));
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Colours: the system's choice until the button is pressed; paper is light.
const system = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
let theme = "";
let printing = false;
const dark = () => !printing && (theme ? theme === "dark" : system.matches);

function paint() {
  button.setAttribute("aria-pressed", dark());
  redraw();
}
button.onclick = () => {
  theme = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  paint();
};
system.onchange = paint;

// Figures are drawn when they come near the screen, and again when filters or colours change.
const PRINTED = 680; // pixels that fit on paper
const places = all(".figure");
const drawn = new Set();
const nothing = {text: "Nothing here matches the filters", showarrow: false, xref: "paper", yref: "paper", x: .5, y: .5};

function legend(traces, width) { // height in pixels, by estimate
  const names = traces.filter((trace) => trace.showlegend !== false && trace.name).map((trace) => trace.name.length);
  return 19 * Math.ceil(names.length / Math.max(1, Math.floor(width / (60 + 6.5 * Math.max(...names)))));
}
function draw(place) {
  drawn.add(place);
  const {data, layout, height: least} = figures[places.indexOf(place)];
  const shown = data.filter((trace) => passes(trace.meta ?? {}));
  const height = least + legend(shown, printing ? PRINTED : place.clientWidth);
  const bare = {annotations: [nothing], xaxis: {visible: false}, yaxis: {visible: false}};
  const own = shown.length || !data.length ? structuredClone(layout) : bare;
  const size = {height, autosize: !printing, width: printing ? PRINTED : undefined};
  const template = themes[dark() ? "dark" : "light"];
  const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
  Plotly.react(place, shown, {uirevision: "kept", ...own, template, ...size}, config);
}
function redraw() {
  for (const place of drawn) draw(place);
}
const near = new IntersectionObserver((seen) => {
  for (const {isIntersecting, target} of seen) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    draw(target);
  }
}, {rootMargin: "300px"});

// On paper everything is there: figures not yet seen, and what is folded.
const folded = all("main details");
let opened = [];
function print(on) {
  if (on === printing) return;
  printing = on;
  if (on) {
    opened = folded.filter((one) => !one.open);
    places.forEach((place) => drawn.add(place));
  }
  for (const one of opened) one.open = on;
  redraw();
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
matchMedia("print").onchange = (media) => print(media.matches);

// Filters: nothing chosen of a kind shows all of it. The choice is part of the address, so that it can be sent on.
const form = document.getElementById("filters");
const boxes = form ? all("input", form) : [];
const tables = all("main table").map((table) => ({table, body: table.tBodies[0], lines: [...table.tBodies[0].rows]}));
let at = "";

function address() {
  const words = new URLSearchParams(boxes.filter((box) => box.checked).map((box) => [box.name, box.value]));
  if (at) words.set("at", at);
  history.replaceState(null, "", location.pathname + location.search + (words.size ? `#${words}` : ""));
}
function narrow() {
  for (const name of filters) chosen[name].clear();
  for (const box of boxes) if (box.checked) chosen[box.name].add(box.value);
  let shown = 0;
  let lines = 0;
  for (const {table, lines: own} of tables) {
    for (const line of own) line.hidden = !passes(line.dataset);
    const left = own.filter((line) => !line.hidden).length;
    table.nextElementSibling.hidden = left > 0 || !own.length;
    if (table.parentElement.clientWidth) told(table.parentElement);
    shown += left;
    lines += own.length;
  }
  const traces = figures.flatMap((figure) => figure.data);
  const curves = traces.filter((trace) => passes(trace.meta ?? {})).length;
  const count = `${shown} of ${lines} table lines, ${curves} of ${traces.length} curves`;
  document.getElementById("count").textContent = count;
  const on = filters.filter((name) => chosen[name].size);
  const any = on.length > 0;
  document.getElementById("some").hidden = !any;
  const words = on.map((name) => `${name} ${[...chosen[name]].join(" or ")}`).join(", ");
  note(document.querySelector("header .unmoved"), any && `Only ${words}: ${count}. The sentence above is about all of it.`);
  for (const section of all("main section")) note(section.querySelector(".unmoved"), any && unmoved(section, on));
  form.querySelector("[type=reset]").disabled = !any;
  redraw();
}
function note(place, words) {
  place.textContent = words || "";
  place.hidden = !words;
}
// What filters leave as it is: sentences, and tables with lines about all of a kind that is narrowed down.
function unmoved(section, on) {
  const own = tables.filter(({table}) => section.contains(table));
  const narrowed = own.some(({lines}) => lines.some((line) => filters.some((name) => name in line.dataset)));
  if (!narrowed && !section.querySelector(".figure") && section.id !== "summary") return "";
  const kept = {};
  for (const {table, lines} of own) {
    const names = on.filter((name) => lines.some((line) => !line.hidden && !(name in line.dataset)));
    if (names.length) (kept[names.join(" and ")] ??= []).push(`\u201c${table.caption.textContent}\u201d`);
  }
  const words = section.querySelector(".words, figcaption") ? ["the sentences here"] : [];
  if (section.querySelector(".tiles")) words.push("the figures on top");
  for (const [names, titles] of Object.entries(kept)) words.push(`${titles.join(", ")} (by ${names})`);
  return words.length ? `Not narrowed by filters: ${words.join("; ")}.` : "";
}
function follow() {
  const hash = location.hash.slice(1);
  if (hash.includes("=")) {
    const words = new URLSearchParams(hash);
    for (const box of boxes) box.checked = words.getAll(box.name).includes(box.value);
    at = words.get("at") ?? "";
    if (form) narrow();
  } else {
    at = hash;
    address();
  }
  const place = document.getElementById(at);
  for (const one of place ? all("details", place) : []) if (one.parentElement === place) one.open = true;
  for (let one = place?.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  place?.scrollIntoView();
}
if (form) {
  form.onchange = () => { narrow(); address(); };
  form.onreset = () => setTimeout(form.onchange);
  form.onsubmit = () => false;
  narrow();
}
onhashchange = follow;

// A box that holds more than it shows says so, below it.
function told(box) {
  const [head, ...rows] = all("tr", box).filter((row) => !row.hidden);
  const top = box.getBoundingClientRect().top + head.offsetHeight;
  const bottom = box.getBoundingClientRect().top + box.clientHeight + 1;
  const seen = rows.filter((row) => row.getBoundingClientRect().top >= top - 4 && row.getBoundingClientRect().bottom <= bottom);
  const words = [];
  if (seen.length && seen.length < rows.length) {
    const first = rows.indexOf(seen[0]) + 1;
    words.push(`lines ${first} to ${first + seen.length - 1} of ${rows.length}: scroll for the others`);
  }
  if (box.scrollWidth > box.clientWidth + 1) {
    words.push(box.scrollLeft + box.clientWidth < box.scrollWidth - 1 ? "more columns to the right \u2192" : "\u2190 more columns to the left");
  }
  const place = box.nextElementSibling;
  place.textContent = words.join("; ");
  place.hidden = !words.length;
}
const sized = new ResizeObserver((seen) => seen.forEach(({target}) => target.clientWidth && told(target)));
for (const box of all(".table")) {
  sized.observe(box);
  box.onscroll = () => told(box);
}

// Sorting: up, down, and back as it was. Figures by their value in one unit, what is no figure at the end.
const UNITS = {K: 1e3, M: 1e6, "µs": 1e3, ms: 1e6, s: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40};
function value(cell) {
  const [, number, unit] = /^(?:p\d+ |max |[±×]|[≤≥<] ?)?([-−+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)\s*([a-zµ]*)/i.exec(cell) ?? [];
  return number ? Number(number.replaceAll(",", "").replace("−", "-")) * (UNITS[unit] ?? 1) : Infinity;
}
function sort({table, body, lines}, head) {
  const next = {none: "ascending", ascending: "descending", descending: "none"}[head.ariaSort ?? "none"];
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", next);
  const sign = next === "descending" ? -1 : 1;
  const keyed = lines.map((line) => {
    const parts = [...line.cells[head.cellIndex].childNodes].filter((part) => !part.classList?.contains("mark"));
    const text = parts.map((part) => part.textContent).join("").trim();
    return {line, text, number: value(text)};
  });
  const order = (a, b) => a.number === b.number
    ? sign * a.text.localeCompare(b.text, undefined, {numeric: true})
    : Number.isFinite(a.number) && Number.isFinite(b.number) ? sign * (a.number - b.number) : a.number - b.number;
  body.append(...(next === "none" ? lines : keyed.sort(order).map(({line}) => line)));
}
for (const one of tables) {
  for (const head of one.table.tHead.rows[0].cells) head.querySelector("button")?.addEventListener("click", () => sort(one, head));
}

// Raw data: columns, compressed. A spreadsheet must not take text of a record for a formula.
async function raw() {
  const bytes = Uint8Array.from(atob(document.getElementById("raw").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return Object.entries(await new Response(stream).json());
}
function field(value) {
  if (value === null) return "";
  const text = typeof value === "string" ? value.replace(/(^|[;\t\r\n])(?=[=+\-@\t\r])/g, "$1'") : String(value);
  return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const line = (values) => `${values.map(field).join(",")}\r\n`;
const formats = {
  csv: (columns) => line(columns.map(([name]) => name)) +
    columns[0][1].map((_, row) => line(columns.map(([, values]) => values[row]))).join(""),
  json: (columns) => JSON.stringify(
    columns[0][1].map((_, row) => Object.fromEntries(columns.map(([name, values]) => [name, values[row]])))),
};
for (const button of all("[data-save]")) {
  button.onclick = async () => {
    const kind = button.dataset.save;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([formats[kind](await raw())], {type: `text/${kind}`}));
    link.download = `collbench.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
}

// On narrow screens contents and filters begin folded.
if (matchMedia("(max-width: 60rem)").matches) for (const one of all("aside details")) one.open = false;
paint();
for (const place of places) near.observe(place);
if (location.hash) follow();
