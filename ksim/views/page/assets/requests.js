"use strict";

// The chooser of requests.  Times are whole microseconds.
const TITLES = { ttft: "TTFT", tpot: "TPOT", e2el: "E2EL", queue: "in the queue" };

const requests = {
  columns: {}, phases: null, targets: {}, total: 0, order: [], row: 0,

  milliseconds(name, row) {
    const micro = this.columns[name][row];
    return micro === null ? null : micro / 1000;
  },

  rowOf(id) { return this.columns.id.indexOf(id); },

  sort(by) {
    const column = this.columns[by], rows = [...column.keys()];
    this.order = by === "arrival" ? rows : rows.sort((a, b) => (column[b] ?? -1) - (column[a] ?? -1) || a - b);
  },

  move(by) {
    const at = this.order.indexOf(this.row) + by;
    if (at >= 0 && at < this.order.length) this.choose(this.order[at]);
  },

  choose(row) {
    this.row = row;
    document.getElementById("request-id").value = this.columns.id[row];
    this.tell();
    this.mark();
    this.drawPhases();
  },

  // The share of other requests of the page that were faster.
  rank(name) {
    const own = this.columns[name][this.row], others = this.columns[name].filter((value) => value !== null);
    if (own === null || others.length < 2) return "";
    const share = others.filter((value) => value < own).length / (others.length - 1);
    if (share === 1) return "the slowest of all";
    return `slower than ${(100 * share).toFixed(share > 0.99 ? 1 : 0)} % of the others`;
  },

  // A latency, its place among all, and whether it missed its target.
  latency(name) {
    const value = this.milliseconds(name, this.row), limit = this.targets[name];
    const card = make("div", { class: "card" }, make("dt", {}, TITLES[name]),
      make("dd", {}, shown(value), make("span", { class: "unit" }, value === null ? "" : " ms")),
      make("dd", { class: "interval" }, this.rank(name)));
    if (limit !== undefined && value !== null) {
      const over = value > limit;
      card.append(make("dd", { class: over ? "over" : "within" },
        over ? `${(value / limit).toFixed(2)} x the target of ${shown(limit)} ms` : `within ${shown(limit)} ms`));
    }
    return card;
  },

  tell() {
    const { columns, row } = this, of = (name) => (columns[name] ? columns[name][row] : null);
    const said = [["status", of("status")], ["arrived at", `${shown(of("arrival") / 1e6)} s`],
      ["prompt", `${shown(of("prompt_tokens"))} tokens`], ["output", `${shown(of("output_tokens"))} tokens`],
      ["from the cache", `${shown(of("cached_tokens"))} tokens`], ["engine", of("engine") ?? "-"],
      ["preemptions", of("preemptions")], ["energy", of("joules") === null ? null : `${shown(of("joules"))} J`],
      ["reason", of("reason")], ["session", of("session")], ["tenant", of("tenant")]];
    const facts = said.filter(([, text]) => text !== null && text !== "").map(([title, text]) =>
      make("div", {}, make("dt", {}, title), make("dd", {}, String(text))));
    document.getElementById("chosen").replaceChildren(make("h3", {}, `Request ${columns.id[row]}`),
      make("dl", { class: "cards" }, ...Object.keys(TITLES).map((name) => this.latency(name))),
      make("dl", { class: "facts" }, ...facts));
  },

  // All requests by their arrival, and a ring around the chosen one.
  mark() {
    const name = document.getElementById("request-metric").value, { data, layout } = figures.all.places;
    const [dots, ring] = data, seconds = (row) => this.columns.arrival[row] / 1e6;
    if (dots.metric !== name) {
      const rows = [...this.columns.id.keys()].filter((row) => this.columns[name][row] !== null);
      Object.assign(dots, { metric: name, x: rows.map(seconds), y: rows.map((row) => this.milliseconds(name, row)),
        customdata: rows.map((row) => this.columns.id[row]) });
      layout.yaxis.title.text = `${TITLES[name]}, milliseconds`;
      const limit = this.targets[name];
      layout.shapes = limit === undefined ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit,
        line: { color: "#c8453c", width: 1.5, dash: "dash" } }];
    }
    Object.assign(ring, { x: [seconds(this.row)], y: [this.milliseconds(name, this.row)] });
    return figures.draw("places");
  },

  drawPhases() {
    if (!this.phases) return;
    const { titles, colours, to_first: first, after } = this.phases, row = this.row;
    const known = this.columns.status[row] === "completed";
    const part = (columns, title, at, axis) => ({ type: "bar", orientation: "h", name: title, legendgroup: title,
      showlegend: axis === "" && first[at][row] + after[at][row] > 0, x: known ? [columns[at][row] / 1000] : [],
      y: [axis ? "after it" : "to first"], xaxis: `x${axis}`, yaxis: `y${axis}`, marker: { color: colours[at] },
      hovertemplate: "%{x:,.4~g} ms of %{fullData.name}<extra></extra>" });
    figures.all.request.data = titles.flatMap((title, at) => [part(first, title, at, ""), part(after, title, at, "2")]);
    figures.draw("request");
    const rows = titles.map((title, at) => [title, first[at][row], after[at][row]]).filter(([, a, b]) => a + b > 0);
    const sum = rows.reduce((total, [, a, b]) => total + a + b, 0);
    const cells = rows.map(([title, a, b]) => [title, shown(a / 1e3), shown(b / 1e3), shown((a + b) / 1e3), `${(100 * (a + b) / sum).toFixed(1)} %`]);
    const place = document.getElementById("chosen-phases");
    place.replaceChildren(known ? makeTable(`Phases of request ${this.columns.id[row]}, in milliseconds`,
      ["phase", "to first token", "after it", "all", "share"], cells)
      : make("p", { class: "missing" }, "Only completed requests have all of their time told."));
  },
};

function listenToChooser() {
  const field = document.getElementById("request-id"), order = document.getElementById("request-order");
  const say = (text) => { document.getElementById("request-help").textContent = text; };
  field.addEventListener("input", () => {
    const row = requests.rowOf(Number(field.value));
    if (field.value === "") return;
    say(row < 0 ? `This page holds no request ${field.value}.` : "Type a number, or use the arrow keys in the field.");
    if (row >= 0) requests.choose(row);
  });
  field.addEventListener("keydown", (event) => {
    if (!["ArrowUp", "ArrowDown", "Enter"].includes(event.key)) return;
    event.preventDefault();
    if (event.key !== "Enter") requests.move(event.key === "ArrowDown" ? 1 : -1);
  });
  document.getElementById("request-previous").addEventListener("click", () => requests.move(-1));
  document.getElementById("request-next").addEventListener("click", () => requests.move(1));
  order.addEventListener("change", () => { requests.sort(order.value); requests.choose(requests.order[0]); });
  document.getElementById("request-metric").addEventListener("change", () => requests.mark());
  document.getElementById("request-form").addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("button.choose")) {
    button.addEventListener("click", () => {
      requests.choose(requests.rowOf(Number(button.dataset.request)));
      document.getElementById("request").scrollIntoView();
      field.focus({ preventScroll: true });
    });
  }
}

starters.push((data) => {
  if (!data.requests) return;
  Object.assign(requests, data.requests);
  figures.on("places", "plotly_click", ({ points }) => {
    if (points[0].customdata !== undefined) requests.choose(requests.rowOf(points[0].customdata));
  });
  listenToChooser();
  document.getElementById("request-order").value = "ttft";
  requests.sort("ttft");
  requests.choose(requests.order[0]);
});
