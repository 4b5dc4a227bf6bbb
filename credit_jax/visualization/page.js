"use strict";
const valueOf = (row, place) => {
  const cell = row.cells[place], number = cell.dataset.value;
  if (number === undefined) return cell.textContent;
  return number === "" ? NaN : Number(number);
};
const compare = (a, b) => {
  if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a - b;
};
for (const head of document.querySelectorAll("table.sortable thead th")) {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const table = head.closest("table"), body = table.tBodies[0];
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [valueOf(row, head.cellIndex), row]);
    rows.sort((a, b) => {
      const missing = Number.isNaN(a[0]) - Number.isNaN(b[0]);
      return missing || (down ? -1 : 1) * compare(a[0], b[0]);
    });
    body.append(...rows.map((pair) => pair[1]));
  });
}
for (const filters of document.querySelectorAll(".filters[data-table]")) {
  filters.hidden = false;
  const body = document.getElementById(filters.dataset.table).tBodies[0];
  const selects = [...filters.querySelectorAll("select")];
  const update = () => {
    for (const row of body.rows) {
      row.hidden = selects.some((s) => s.value && row.dataset[s.name] !== s.value);
    }
  };
  for (const select of selects) select.addEventListener("change", update);
  update();
}
for (const box of document.querySelectorAll(".choices")) {
  const menu = box.querySelector(":scope > .filters");
  if (!menu) continue;
  menu.hidden = false;
  const [choice, variable] = ["choice", "variable"].map((name) => menu.querySelector(`select[name=${name}]`));
  menu.addEventListener("change", () => {
    for (const part of [...box.children]) {
      if (part === menu) continue;
      let shown = part;
      const chosen = !choice || part.dataset.choice === choice.value;
      if (part.tagName === "TEMPLATE" && chosen) {
        shown = document.createElement("div");
        shown.dataset.choice = part.dataset.choice;
        shown.append(part.content);
        part.replaceWith(shown);
      }
      shown.hidden = !chosen;
      for (const figure of shown.querySelectorAll("figure")) {
        figure.hidden = Boolean(variable && variable.value && figure.dataset.variable !== variable.value);
      }
    }
  });
}
