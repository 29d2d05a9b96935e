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

  async draw(name, printing = false) {
    const place = this.place(name), { data, layout } = this.fitted(name, printing);
    const config = { responsive: !printing, displaylogo: false, displayModeBar: false, doubleClick: "reset+autosize", doubleClickDelay: 400 };
    await Plotly.react(place, data, layout, config);
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
