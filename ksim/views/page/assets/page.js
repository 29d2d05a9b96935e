"use strict";

// What the page holds as text: gzipped, in base64.
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// An element with texts and elements in it.  Texts stay texts, whatever they say.
function make(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A name, which a line may break after underscores and dots.
function breakable(name) { return name.split(/(?<=_|[a-z]\.(?=[a-z]))/i).flatMap((part) => [part, make("wbr")]); }

// A table with a heading for each row; columns of numbers are to the right.
function makeTable(caption, columns, rows) {
  const style = columns.map((_, at) => (rows.every((row) => /^[-\d.,]+( %)?$/.test(row[at])) ? (at ? "number" : "") : at ? "long" : ""));
  const head = make("tr", {}, ...columns.map((text, at) =>
    make("th", { scope: "col", class: style[at] }, ...breakable(text))));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, at) =>
    at ? make("td", { class: style[at] }, cell) : make("th", { scope: "row" }, cell))));
  const table = make("table", {}, make("caption", {}, make("span", {}, caption)), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
}

// About three significant digits, with separators of thousands.
function shown(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 4);
}

// Parts of the page that need its data register here, and are started once it is there.
const starters = [];

window.addEventListener("DOMContentLoaded", async () => {
  const data = JSON.parse(await unpack("data"));
  if (document.getElementById("library")) {
    const library = document.createElement("script");
    library.textContent = await unpack("library");
    document.head.append(library);
  }
  for (const start of starters) await start(data);
  document.documentElement.dataset.ready = "yes";
});
