"use strict";

// The points of a study: the front of two numbers, and a chosen point with its scenario.
const points = {
  points: [], axes: [], keys: [], names: [], problems: [], settings: {}, scales: {}, values: {}, more: [], scenarios: [],
  x: "", y: "", at: 0, hidden: new Set(),

  cost(key, at) { return this.more.includes(key) ? -this.values[key][at] : this.values[key][at]; },

  // Those with both numbers that count, and of these the ones that no other beats, by the first number.
  front() {
    const there = [...this.points.keys()].filter((at) => this.values[this.x][at] !== null && this.values[this.y][at] !== null);
    const counting = there.filter((at) => !this.problems[at]);
    const sorted = [...counting].sort((a, b) => this.cost(this.x, a) - this.cost(this.x, b) || this.cost(this.y, a) - this.cost(this.y, b));
    let least = Infinity, last = null;
    const best = [];
    for (const at of sorted) {
      const cost = this.cost(this.y, at);
      const same = last !== null && cost === least && this.cost(this.x, at) === this.cost(this.x, last);
      if (cost < least || same) { best.push(at); least = cost; last = at; }
    }
    return { there, counting, best };
  },

  title(key) { return `${key} (${this.more.includes(key) ? "more" : "less"} is better)`; },

  draw() {
    const { there, counting, best } = this.front(), figure = figures.all.front;
    const parts = [counting.filter((at) => !best.includes(at)), there.filter((at) => this.problems[at]), best,
      there.includes(this.at) ? [this.at] : []];
    parts.forEach((rows, place) => Object.assign(figure.data[place], {
      x: rows.map((at) => this.values[this.x][at]), y: rows.map((at) => this.values[this.y][at]),
      customdata: rows.map((at) => this.points[at]), text: rows.map((at) => safe(this.names[at] + (this.problems[at] ? `<br>${this.problems[at]}` : ""))),
      opacity: 1 }));
    figure.layout.xaxis.title.text = this.title(this.x);
    figure.layout.yaxis.title.text = this.title(this.y);
    figures.draw("front");
    document.getElementById("front-said").textContent = `${best.length} of ${counting.length} points are on the front.`;
    document.getElementById("front-table").replaceChildren(makeTable("The front", ["point", this.x, this.y, "settings"],
      best.map((at) => [String(this.points[at]), shown(this.values[this.x][at]), shown(this.values[this.y][at]), this.names[at]])));
  },

  choose(at) {
    this.at = at;
    document.getElementById("point").value = String(at);
    const facts = (pairs) => make("dl", { class: "facts" }, ...pairs.map(([title, text]) =>
      make("div", {}, make("dt", {}, ...breakable(title)), make("dd", {}, ...breakable(text)))));
    const numbers = this.keys.filter((key) => this.values[key][at] !== null).map((key) => [key, shown(this.values[key][at])]);
    const told = [make("h3", {}, `Point ${this.points[at]}`), facts(this.axes.map((key) => [key, String(this.settings[key][at])]))];
    if (this.problems[at]) told.push(make("p", { class: "missing" }, `It does not count: ${this.problems[at]}.`));
    told.push(make("details", {}, make("summary", {}, `Its ${numbers.length} numbers`), facts(numbers)));
    document.getElementById("point-told").replaceChildren(...told);
    document.getElementById("point-scenario").textContent = this.scenarios[at] || "It has no scenario: it has not been run.";
    const save = document.querySelector('[data-saves="point-scenario"]');
    save.dataset.name = `point-${this.points[at]}.toml`;
    save.textContent = `Save as ${save.dataset.name}`;
    for (const button of document.querySelectorAll("#points-table button.choose")) {
      button.closest("tr").classList.toggle("chosen", button.dataset.at === String(at));
    }
    this.draw();
    if (typeof parallel !== "undefined" && parallel.keys.length) parallel.draw();
  },
};

// Text that a figure shows letter by letter; a line break stays one.
function safe(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<br>", "\n").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("\n", "<br>");
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", {}, text);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

function saveText(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "application/toml" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function listenToScenarios() {
  const textOf = (id) => document.getElementById(id).textContent;
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", async () => {
      const id = button.dataset.copies, said = document.getElementById(`${id}-said`);
      said.textContent = (await copyText(textOf(id))) ? "copied" : "the browser does not let this page copy";
    });
  }
  for (const button of document.querySelectorAll("[data-saves]")) {
    button.addEventListener("click", () => saveText(button.dataset.name, textOf(button.dataset.saves)));
  }
}

function listenToPoints() {
  const chooser = document.getElementById("point");
  const show = (at) => {
    points.choose(at);
    document.getElementById("chosen-point").scrollIntoView();
    chooser.focus({ preventScroll: true });
  };
  chooser.addEventListener("change", () => points.choose(Number(chooser.value)));
  const move = (by) => points.choose(Math.min(points.points.length - 1, Math.max(0, points.at + by)));
  document.getElementById("point-previous").addEventListener("click", () => move(-1));
  document.getElementById("point-next").addEventListener("click", () => move(1));
  for (const name of ["x", "y"]) {
    const select = document.getElementById(`front-${name}`);
    select.addEventListener("change", () => { points[name] = select.value; points.choose(points.at); });
  }
  for (const button of document.querySelectorAll("#points-table button.choose[data-at]")) {
    button.addEventListener("click", () => show(Number(button.dataset.at)));
  }
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
  const clicked = ({ points: [place] }) => {
    const at = points.points.indexOf(place.customdata ?? place.x);
    if (at >= 0) points.choose(at);
  };
  for (const name of Object.keys(figures.all)) {
    if (name === "front" || name.startsWith("history-")) figures.on(name, "plotly_click", clicked);
  }
}

starters.push((data) => {
  listenToScenarios();
  if (!data.study) return;
  Object.assign(points, data.study);
  listenToPoints();
  points.choose(points.front().best[0] ?? 0);
});
