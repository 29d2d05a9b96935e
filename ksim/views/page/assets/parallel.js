"use strict";

// Parallel coordinates: an axis for each setting and number, a line for each point, and bounds that keep some of them.
const SVG = "http://www.w3.org/2000/svg";

const parallel = {
  keys: [], bounds: {}, height: 300, top: 58, bottom: 26, gap: 118,

  column(key) { return points.scales[key]?.values || points.settings[key] || points.values[key]; },

  // A setting by its last word and its unit, a number by its key.
  title(key) {
    const unit = points.scales[key]?.unit;
    return (points.settings[key] ? key.split(".").pop() : key) + (unit ? `, ${unit}` : "");
  },

  // Texts have places by their order of appearance, numbers and quantities by their values.
  scale(key) {
    const values = this.column(key).filter((value) => value !== null);
    if (values.some((value) => typeof value === "string")) {
      const names = [...new Set(values.map(String))];
      return { names, low: 0, high: Math.max(names.length - 1, 1), of: (value) => (value === null ? null : names.indexOf(String(value))) };
    }
    let low = Math.min(...values), high = Math.max(...values);
    if (low === high) { low -= 0.5; high += 0.5; }
    return { names: null, low, high, of: (value) => value };
  },

  y(scale, value) { return this.top + this.height * (1 - (value - scale.low) / (scale.high - scale.low)); },

  kept(at) {
    return this.keys.every((key) => {
      const bound = this.bounds[key], value = this.scales[key].of(this.column(key)[at]);
      return !bound || (value !== null && value >= bound[0] && value <= bound[1]);
    });
  },

  shape(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  },

  // From blue over grey to orange with the rank of the objective.
  colour(at) {
    const column = points.values[points.y].filter((value) => value !== null), value = points.values[points.y][at];
    if (value === null) return "var(--faint)";
    const share = column.filter((other) => other < value).length / Math.max(1, column.length - 1);
    return `color-mix(in oklab, #d9822b ${Math.round(100 * share)}%, #2f6db5)`;
  },

  draw() {
    this.scales = Object.fromEntries(this.keys.map((key) => [key, this.scale(key)]));
    const place = document.getElementById("parallel-plot"), room = place.clientWidth;
    const gap = Math.max(this.gap, (room - 120) / Math.max(1, this.keys.length - 1));
    this.x = (column) => 60 + column * gap;
    const width = 120 + gap * (this.keys.length - 1), height = this.top + this.height + this.bottom;
    const svg = this.shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "parallel", "aria-hidden": "true" });
    const rows = [...points.points.keys()].filter((at) => points.scenarios[at] || this.keys.every((key) => this.column(key)[at] !== null));
    const kept = rows.filter((at) => this.kept(at));
    const order = [...rows.filter((at) => !kept.includes(at)), ...kept, ...(rows.includes(points.at) ? [points.at] : [])];
    order.forEach((at, place) => svg.append(...this.line(at, kept.includes(at), place >= rows.length)));
    this.keys.forEach((key, column) => svg.append(this.axis(key, column)));
    place.replaceChildren(svg);
    const some = kept.slice(0, 12).map((at) => points.points[at]).join(", ");
    document.getElementById("parallel-said").textContent = kept.length === rows.length ? `All ${rows.length} points are kept.`
      : `${kept.length} of ${rows.length} points are kept${kept.length ? `: ${some}${kept.length > 12 ? " and others" : ""}` : ""}.`;
  },

  line(at, kept, chosen) {
    const places = this.keys.map((key, column) => {
      const value = this.scales[key].of(this.column(key)[at]);
      return value === null ? null : `${this.x(column).toFixed(1)},${this.y(this.scales[key], value).toFixed(1)}`;
    }).filter(Boolean);
    const drawn = this.shape("polyline", { points: places.join(" "), fill: "none", "stroke-width": chosen ? 3.2 : 1.4,
      stroke: kept ? this.colour(at) : "var(--line)", "stroke-opacity": chosen ? 1 : kept ? 0.75 : 0.6 });
    drawn.append(this.shape("title", {}, `point ${points.points[at]}: ${points.names[at]}`));
    drawn.addEventListener("click", () => points.choose(at));
    return [drawn];
  },

  axis(key, column) {
    const group = this.shape("g", { transform: `translate(${this.x(column)},0)` }), scale = this.scales[key];
    const end = this.top + this.height;
    group.append(this.shape("line", { y1: this.top, y2: end, class: "rule" }));
    const name = this.title(key);
    const lines = name.match(/.{1,17}(_|$)|.{1,17}/g) || [name];
    lines.slice(0, 3).forEach((text, at) => group.append(this.shape("text", { y: this.top - 12 - 14 * (Math.min(lines.length, 3) - 1 - at), class: "name" }, text)));
    const few = [...new Set(this.column(key))].filter((value) => value !== null);
    const ticks = scale.names ? scale.names.map((text, at) => [text.length > 16 ? `${text.slice(0, 15)}…` : text, at])
      : few.length <= 6 ? few.map((value) => [Number.isInteger(value) ? String(value) : shown(value), value]) : [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const value = scale.low + share * (scale.high - scale.low);
      return [shown(value), value];
    });
    for (const [text, value] of ticks) group.append(this.shape("text", { x: 7, y: this.y(scale, value) + 4, class: "tick" }, text));
    const bound = this.bounds[key];
    if (bound) {
      const [low, high] = bound.map((value) => this.y(scale, Math.min(scale.high, Math.max(scale.low, value))));
      group.append(this.shape("rect", { x: -8, width: 16, y: high - 2, height: Math.max(4, low - high + 4), class: "bound" }));
    }
    group.append(this.handle(key, scale));
    return group;
  },

  // What takes the pointer on an axis: a drag keeps what lies between its ends, a click forgets.
  handle(key, scale) {
    const area = this.shape("rect", { x: -14, width: 28, y: this.top - 6, height: this.height + 12, class: "handle" });
    const value = (event) => {
      const box = document.querySelector("#parallel-plot svg").getBoundingClientRect();  // drawn anew at each move
      const share = 1 - (event.clientY - box.top - this.top) / this.height;
      return scale.low + Math.min(1.02, Math.max(-0.02, share)) * (scale.high - scale.low);
    };
    area.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const from = value(event), moved = (last) => this.bound(key, [Math.min(from, last), Math.max(from, last)]);
      const move = (next) => { if (Math.abs(value(next) - from) > 0.01 * (scale.high - scale.low)) moved(value(next)); };
      const up = (last) => {
        window.removeEventListener("pointermove", move);
        window.removeEventListener("pointerup", up);
        if (Math.abs(value(last) - from) <= 0.01 * (scale.high - scale.low)) this.bound(key, null);
      };
      window.addEventListener("pointermove", move);
      window.addEventListener("pointerup", up);
    });
    return area;
  },

  bound(key, ends) {
    if (ends) this.bounds[key] = ends; else delete this.bounds[key];
    this.fields();
    this.draw();
  },

  // The same bounds as fields: two numbers, or a name.
  fields() {
    const form = document.getElementById("parallel-bounds"), held = document.activeElement && document.activeElement.id;
    form.replaceChildren(...this.keys.map((key) => {
      const scale = this.scale(key), bound = this.bounds[key];
      const set = make("fieldset", {}, make("legend", {}, this.title(key)));
      set.append(...(scale.names ? [this.choice(key, scale, bound)] : [this.field(key, 0, "from", scale, bound), this.field(key, 1, "to", scale, bound)]));
      return set;
    }));
    if (held && document.getElementById(held)) document.getElementById(held).focus();
  },

  field(key, end, word, scale, bound) {
    const field = make("input", { type: "number", step: "any", id: `bound-${key}-${word}`, "aria-label": `${key} ${word}`, placeholder: word });
    if (bound) field.value = Number(bound[end].toPrecision(4));
    field.addEventListener("change", () => {
      const ends = [...(this.bounds[key] || [scale.low, scale.high])];
      ends[end] = field.value === "" ? [scale.low, scale.high][end] : Number(field.value);
      this.bound(key, ends);
    });
    return field;
  },

  choice(key, scale, bound) {
    const options = ["any", ...scale.names].map((text, at) => make("option", { value: at - 1 }, text));
    const select = make("select", { id: `bound-${key}-is`, "aria-label": `${key} is` }, ...options);
    const place = bound ? scale.names.findIndex((_, at) => at >= bound[0] && at <= bound[1]) : -1;
    select.value = String(place);
    select.addEventListener("change", () => {
      const at = Number(select.value);
      this.bound(key, at < 0 ? null : [at - 0.25, at + 0.25]);
    });
    return select;
  },
};

starters.push((data) => {
  if (!data.study || !document.getElementById("parallel-plot")) return;
  const boxes = [...document.querySelectorAll("#parallel-keys input")];
  const choose = () => {
    const wanted = boxes.filter((box) => box.checked).map((box) => box.value);
    parallel.keys = [...points.axes, ...wanted];
    for (const key of Object.keys(parallel.bounds)) if (!parallel.keys.includes(key)) delete parallel.bounds[key];
    parallel.fields();
    parallel.draw();
  };
  for (const box of boxes) box.addEventListener("change", choose);
  document.getElementById("parallel-reset").addEventListener("click", () => { parallel.bounds = {}; choose(); });
  window.addEventListener("resize", () => parallel.draw());
  choose();
});
