"use strict";

// Tables sorted by the heading that is pressed: down first for numbers, up for texts, then the other way.
function valueOf(row, at) {
  const cell = row.cells[at];
  const number = cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
  return Number.isNaN(number) ? cell.textContent.trim() : number;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (typeof one !== typeof other) return typeof one === "number" ? 1 : -1;
  return one.localeCompare(other, "en", { numeric: true });
}

function sortBy(table, at) {
  const heading = table.tHead.rows[0].cells[at], body = table.tBodies[0], rows = [...body.rows];
  const numbers = rows.some((row) => typeof valueOf(row, at) === "number");
  const before = heading.getAttribute("aria-sort");
  const down = before ? before === "ascending" : numbers;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  rows.sort((one, other) => (down ? -1 : 1) * compare(valueOf(one, at), valueOf(other, at)));
  body.append(...rows);
}

starters.push(() => {
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, at) =>
      heading.querySelector("button").addEventListener("click", () => sortBy(table, at)));
  }
});
