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
        draw(shown);
        part.replaceWith(shown);
      }
      shown.hidden = !chosen;
      for (const figure of shown.querySelectorAll("figure")) {
        figure.hidden = Boolean(variable && variable.value && figure.dataset.variable !== variable.value);
      }
    }
  });
}
// Charts: SVG of the lines or bars of each figure. Size; edges of the axes; their ticks.
const size = "320 215", [left, right, upper, lower] = [50, 312, 8, 179], numTicks = 5;
const escaped = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
const plain = (value) => String(Number(value.toPrecision(6))).replace("-", "\u2212");
const at = (value) => Number(value.toFixed(1));
// Multiples of 1, 2 or 5 times a power of ten.
const ticksOf = (low, high, least = 0) => {
  const rough = Math.max((high - low) / numTicks, least), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough * (1 - 1e-9)), ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; k++) ticks.push(k * step);
  return ticks;
};
// Powers of ten, at most six; of few 1, 2 and 5 times these, or others.
const logTicksOf = (low, high) => {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const several = [], powers = [], every = Math.ceil((last - first + 1) / 6);
  for (let k = first - 1; k <= last; k++) several.push(...[1, 2, 5].map((n) => n * 10 ** k));
  for (let k = first; k <= last; k += every) powers.push(10 ** k);
  if (last - first > 1) return powers;
  const inside = several.filter((v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9));
  return inside.length > 1 ? inside : ticksOf(low, high);
};
const namesOf = (ticks) => {
  const largest = Math.max(...ticks.map(Math.abs)), step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  const exponent = largest ? Math.floor(Math.log10(largest) + 1e-9) : 0;
  const shift = exponent >= -3 && exponent <= 4 ? 0 : exponent, end = shift ? `e${shift}` : "";
  const decimals = Math.max(0, shift - Math.floor(Math.log10(step) + 1e-9));
  const name = (v) => v ? ((v / 10 ** shift).toFixed(decimals) + end).replaceAll("-", "\u2212") : "0";
  return ticks.map(name);
};
// Plain from 0.01 to 9999, else a power of ten.
const powerOf = (value) => {
  const exponent = Math.round(Math.log10(value)), digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const isPower = Math.abs(value / 10 ** exponent - 1) < 1e-6;
  if (!isPower || (exponent >= -2 && exponent <= 3)) return plain(value);
  return "10" + String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => digits[digit]);
};
// [position of a value, [[position, text] of each tick]] of an axis that holds values.
const axisOf = (values, isLog, start, end, pad, bottom, least) => {
  const scale = isLog ? Math.log10 : (v) => v;
  const scaled = values.map(scale).filter(Number.isFinite);
  let [low, high] = scaled.length ? [Math.min(...scaled), Math.max(...scaled)] : [0, 1];
  const half = isLog ? [0.3, 0.3] : [low, high].map((v) => Math.abs(v) / 2 || 0.5);
  if (low === high) [low, high] = [low - half[0], high + half[1]];
  const margin = pad * (high - low);
  [low, high] = [bottom ?? low - margin, high + margin];
  const place = (v) => at(start + (end - start) * (scale(v) - low) / (high - low));
  const ticks = isLog ? logTicksOf(10 ** low, 10 ** high) : ticksOf(low, high, least);
  const names = isLog ? ticks.map(powerOf) : namesOf(ticks);
  return [place, ticks.map((tick, k) => [place(tick), names[k]])];
};
const svgOf = (chart) => {
  const all = (name) => chart.lines.flatMap((line) => line[name]).filter((v) => v !== null);
  const extra = [chart.y_from, chart.level].filter((v) => v !== null), width = chart.bar_width;
  const across = width ? all("x").flatMap((v) => [v - width, v + width]) : all("x");
  const from = chart.x_is_log || width ? undefined : 0;
  const [x, columns] = axisOf(across, chart.x_is_log, left, right, 0, from, chart.x_is_whole ? 1 : 0);
  const [y, rows] = axisOf(
    [...all("y"), ...extra], chart.y_is_log, lower, upper, 0.05, width ? 0 : chart.y_from ?? undefined,
  );
  const label = (x, y, anchor, text) => `<text x="${x}" y="${y}" text-anchor="${anchor}">${escaped(text)}</text>`;
  const parts = [
    `<path class="grid" d="${rows.map(([v]) => `M${left} ${v}H${right}`).join("")}`,
    `${columns.map(([v]) => `M${v} ${upper}V${lower}`).join("")}"/>`,
    `<path class="axes" d="M${left} ${upper}V${lower}H${right}"/>`,
    ...rows.map(([v, name]) => label(left - 5, at(v + 3.5), "end", name)),
    ...columns.map(([v, name]) => label(v, lower + 14, "middle", name)),
    label((left + right) / 2, lower + 30, "middle", chart.x_label),
  ];
  if (chart.level !== null) parts.push(`<path d="M${left} ${y(chart.level)}H${right}" stroke="#8a8f98"/>`);
  for (const line of chart.lines) {
    const points = line.x.map((v, k) => line.y[k] === null ? null : [v, line.y[k]]);
    const style = `stroke="${line.color}" stroke-width="${line.width}" stroke-dasharray="${line.dash}"`;
    const title = `<title>${escaped(line.name)}</title></path>`;
    if (width) {
      const bar = ([a, b]) => `M${x(a - width / 2)} ${lower}V${y(b)}H${x(a + width / 2)}V${lower}Z`;
      parts.push(`<path class="bars" d="${points.filter(Boolean).map(bar).join("")}" style="fill:${line.color}">${title}`);
      continue;
    }
    // A value that is missing is a gap.
    const path = points.map((p, k) => p ? `${k && points[k - 1] ? "L" : "M"}${x(p[0])} ${y(p[1])}` : "").join("");
    parts.push(`<path class="line" d="${path}" ${style}>${title}`);
    const dots = points.filter(Boolean).map((p) => `M${x(p[0])} ${y(p[1])}h0`).join("");
    if (line.has_markers) parts.push(`<path class="dots" d="${dots}" stroke="${line.color}"/>`);
  }
  return `<svg class="chart" role="img" aria-label="${escaped(chart.title)}" viewBox="0 0 ${size}">${parts.join("")}</svg>`;
};
const draw = (root) => {
  for (const data of root.querySelectorAll("figure > script")) data.outerHTML = svgOf(JSON.parse(data.textContent));
};
draw(document);
