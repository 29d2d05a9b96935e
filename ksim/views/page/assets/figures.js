"use strict";

// Figures in the colours of the theme.  They are written in light colours, each of which has a twin in the dark.
const figures = {
  all: {}, dark: {}, narrow: 560, printWidth: 670, listeners: {},

  isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },

  place(name) { return document.getElementById(`figure-${name}`); },

  // The figure as it is drawn: its colours, and less room around it where there is little.
  fitted(name, printing) {
    const text = JSON.stringify(this.all[name]), dark = this.isDark() && !printing;
    const figure = JSON.parse(dark ? text.replace(/#[0-9a-f]{6}/g, (colour) => this.dark[colour] || colour) : text);
    if (printing) figure.layout.width = this.printWidth;
    else if (this.place(name).clientWidth < this.narrow) {
      Object.assign(figure.layout.margin, { l: 46, r: 8 });
      figure.layout.font.size = 11.5;
      figure.layout.legend.font.size = 11;
    }
    return figure;
  },

  width(text, size) {
    this.pen ||= document.createElement("canvas").getContext("2d");
    this.pen.font = `${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
    return this.pen.measureText(text).width;
  },

  // What the drawn figure has no room for gets some: a legend, titles of axes, and texts beside marks.
  settle(place, figure) {
    const full = place._fullLayout, before = JSON.stringify(figure);
    const legend = place.querySelector(".legend")?.getBBox().height || 0;
    if (legend > 40) figure.layout.height += legend - 20;
    const axes = Object.keys(full).filter((key) => /^[xy]axis\d*$/.test(key));
    for (const key of axes) this.wrapTitle(figure.layout[key], full, key, axes.filter((other) => other[0] === key[0]).length);
    for (const trace of figure.data) if (trace.mode === "markers+text" && trace.visible !== "legendonly") this.widen(trace, figure, full);
    this.thin(figure, full);
    return before !== JSON.stringify(figure);
  },

  // A title is in lines as long as its axis; an axis on its own may use the whole side of the figure.
  wrapTitle(axis, full, key, among) {
    if (!axis?.title?.text) return;
    const { _offset: start, _length: length } = full[key], whole = key[0] === "x" ? full.width : full.height;
    const centre = start + length / 2, size = full[key].title.font.size;
    const room = key[0] === "x" || among === 1 ? 2 * Math.min(centre, whole - centre) - 8 : length + 12;
    const lines = [""];
    for (const part of axis.title.text.split(/(?<=[ _])/)) {
      if (lines.at(-1) && this.width(lines.at(-1) + part.trimEnd(), size) > room) lines.push("");
      lines[lines.length - 1] += part;
    }
    axis.title.text = lines.map((line) => line.trimEnd()).join("<br>");
  },

  // Where a mark and its text are, in pixels from the lower left of their axes.
  box(trace, at, figure, full) {
    const { xaxis, yaxis } = figure.layout, log = (axis, value) => (axis.type === "log" ? Math.log10(value) : value);
    const part = (axis, value) => (log(axis, value) - axis.range[0]) / (axis.range[1] - axis.range[0]);
    const mark = [].concat(trace.marker.size), size = mark[at] ?? mark[0], high = trace.textfont.size;
    const x = part(xaxis, trace.x[at]) * full._size.w, low = part(yaxis, trace.y[at]) * full._size.h - (trace.textposition.startsWith("bottom") ? high : 0);
    return { size, x, left: x + size / 2, right: x + size / 2 + 8 + this.width(trace.text[at], high), low: low - 0.7 * high, high: low + 0.7 * high };
  },

  // Texts are to the right of their marks, so the axis goes on until all of them end.
  widen(trace, figure, full) {
    const { xaxis, yaxis } = figure.layout, all = full._size.w;
    if (!xaxis.range || !yaxis.range) return;
    const stretch = trace.text.map((text, at) => [text, at]).filter(([text]) => text).map(([, at]) => {
      const { x, right } = this.box(trace, at, figure, full);
      return x / Math.max(all - (right - x), all / 3);
    });
    const [low, high] = xaxis.range;
    xaxis.range = [low, low + (high - low) * Math.max(1, ...stretch)];
  },

  // Of texts that would cover each other, the one of the larger mark stays.
  thin(figure, full) {
    const texts = figure.data.filter((trace) => trace.mode === "markers+text" && figure.layout.xaxis.range && figure.layout.yaxis.range)
      .flatMap((trace) => trace.text.map((text, at) => ({ trace, at, text, ...this.box(trace, at, figure, full) }))).filter(({ text }) => text);
    const kept = [];
    for (const one of texts.sort((a, b) => b.size - a.size)) {
      const covers = kept.some((other) => one.left < other.right && other.left < one.right && one.low < other.high && other.low < one.high);
      if (covers) one.trace.text = one.trace.text.map((text, at) => (at === one.at ? "" : text));  // plotly looks for new lists
      else kept.push(one);
    }
  },

  async draw(name, printing = false) {
    const place = this.place(name), figure = this.fitted(name, printing);
    const config = { responsive: !printing, displaylogo: false, displayModeBar: false, doubleClick: "reset+autosize", doubleClickDelay: 400 };
    await Plotly.react(place, figure.data, figure.layout, config);
    if (this.settle(place, figure)) await Plotly.react(place, figure.data, figure.layout, config);
    place.dataset.drawn = "yes";
    for (const [event, listener] of this.listeners[name] || []) {
      place.removeAllListeners(event);
      place.on(event, listener);
    }
  },

  on(name, event, listener) { (this.listeners[name] ||= []).push([event, listener]); },

  async drawAll(printing = false) { for (const name of Object.keys(this.all)) if (this.place(name)) await this.draw(name, printing); },
};

function startTheme() {
  const button = document.getElementById("theme");
  const say = () => { button.textContent = figures.isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = figures.isDark() ? "light" : "dark";
    say();
    figures.drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); figures.drawAll(); });
  say();
}

starters.push(async (data) => {
  Object.assign(figures, { all: data.figures, dark: data.dark });
  startTheme();
  window.addEventListener("beforeprint", () => figures.drawAll(true));
  window.addEventListener("afterprint", () => figures.drawAll());
  await figures.drawAll();
});
