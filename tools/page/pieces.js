// SPDX-License-Identifier: Apache-2.0
// What every page is made of: elements, figures as text, tables, plots. Texts come from records of anybody: they are put in as text
// and as attributes, never as markup, so nothing here sets innerHTML.

"use strict";
const kSvg = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on"))
      node.addEventListener(name.slice(2), value);
    else
      node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(kSvg, tag), attributes, children);

// ---- figures ----
const finite = (x) => typeof x === "number" && Number.isFinite(x);
const list = (x) => (Array.isArray(x) ? x : []);
const three = (x) => String(Number(x.toPrecision(3)));
function msText(ms) {
  if (!finite(ms) || ms <= 0) return "–";
  return ms >= 1000 ? `${three(ms / 1000)} s` : ms >= 1 ? `${three(ms)} ms` : `${three(ms * 1000)} µs`;
}
const times = (x, digits = 3) => (finite(x) ? x.toFixed(digits) : "–");
const interval = (pair, digits = 3) =>
    (list(pair).length === 2 && pair.every(finite) ? `[${times(pair[0], digits)}, ${times(pair[1], digits)}]` : "");
const percent = (ratio) => (finite(ratio) ? `${ratio < 1 ? "−" : "+"}${three(Math.abs(ratio - 1) * 100)} %` : "–");
function bytesText(bytes) {
  if (!finite(bytes) || bytes <= 0) return "–";
  const steps = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < steps.length) bytes /= 1024, ++unit;
  return `${three(bytes)} ${steps[unit]}`;
}
const dayText = (seconds) =>
    (finite(seconds) && Math.abs(seconds) < 8e12 ? new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") : "–");
// The class of a ratio that is better the smaller it is; one per cent either way is none.
function shade(ratio) {
  if (!finite(ratio) || ratio <= 0) return "";
  const apart = Math.abs(Math.log(ratio));
  if (apart < Math.log(1.01)) return "";
  return (ratio > 1 ? "slow" : "fast") + (apart < Math.log(1.03) ? 1 : apart < Math.log(1.1) ? 2 : 3);
}

// ---- parts of a page ----
const pairs = (rows) => el("dl", {}, rows.filter((row) => row).map(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]));
const bullets = (texts) => el("ul", {class: "plain"}, texts.map((text) => el("li", {}, text)));
const tiles = (items) =>
    el("ul", {class: "tiles"}, items.map(([value, text, kind]) => el("li", {class: kind}, el("b", {}, value), el("span", {}, text))));
const swatch = (name) =>
    svg("svg", {viewBox: "0 0 12 12", "aria-hidden": "true"}, svg("rect", {width: 12, height: 12, rx: 2, class: name}));
const key = (items) => el("ul", {class: "key"}, items.map(([name, text]) => el("li", {}, swatch(name), text)));

function themeButton() {
  const button = el("button", {type: "button", class: "no-print"}, "Colours: as the system");
  const words = {"": "as the system", light: "light", dark: "dark"};
  button.addEventListener("click", () => {
    const root = document.documentElement, names = Object.keys(words);
    const next = names[(names.indexOf(root.dataset.theme || "") + 1) % names.length];
    if (next)
      root.dataset.theme = next;
    else
      delete root.dataset.theme;
    button.textContent = `Colours: ${words[next]}`;
  });
  return button;
}

// Rows that are made already, under heads.
function plainTable(caption, heads, rows) {
  const table =
      el("table", {"aria-label": caption}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {scope: "col"}, head)))),
         el("tbody", {}, rows));
  return el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption}, table);
}

const kRows = 200;  // of a table that are drawn at first
// A table whose columns sort. columns: {name, figure, value(row) -> what sorts, show(row) -> content, head}; onrow(row) for a click.
function sortedTable(caption, columns, rows, {sort = 0, down = false, row: attributes = () => ({})} = {}) {
  const body = el("tbody"), rest = el("button", {type: "button", hidden: true});
  const heads = columns.map(
      (column, i) =>
          el("th", {scope: "col", class: column.figure ? "figure" : null},
             el("button", {
               type: "button",
               onclick: () => {
                 down = sort === i ? !down : Boolean(column.figure);
                 sort = i;
                 draw();
               }
             },
                column.name)));
  function draw() {
    const value = columns[sort].value;
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (typeof x === "string" || typeof y === "string") return String(x).localeCompare(String(y));
      return (finite(x) ? x : Infinity) - (finite(y) ? y : Infinity);
    };
    heads.forEach(
        (head, i) =>
            (i === sort ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const sorted = [...rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
    const cell = (row, column) =>
        (column.head ? el("th", {scope: "row"}, column.show(row)) :
                       el("td", {class: column.kind || (column.figure ? "figure" : null)}, column.show(row)));
    const line = (row) => el("tr", attributes(row), columns.map((column) => cell(row, column)));
    body.replaceChildren(...sorted.slice(0, kRows).map(line));
    rest.hidden = sorted.length <= kRows;
    rest.onclick = () => {
      rest.hidden = true;
      body.append(...sorted.slice(kRows).map(line));
    };
  }
  rest.textContent = "Show the other " + (rows.length - kRows) + " rows";
  draw();
  const table = el("table", {"aria-label": caption}, el("thead", {}, el("tr", {}, heads)), body);
  return el("div", {}, el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption}, table), rest);
}

// ---- plots ----
// A picture with a name for those who do not see it.
const picture = (name, width, height, ...children) =>
    svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name}, svg("title", {}, name), ...children);

// Steps of 1, 2 or 5 that divide a stretch into a handful.
function ticks(low, high, most = 6) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const out = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) out.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return out;
}
// From values to places; a stretch of nothing gets some room.
function scale(low, high, from, to) {
  if (!(high > low)) low -= 0.01, high += 0.01;
  const at = (x) => from + ((x - low) / (high - low)) * (to - from);
  return Object.assign(at, {low, high});
}

// Every block of a pair, by launch: hollow ones of the first look, full ones of the fresh processes that decide.
function stripPlot(cell) {
  const blocks = list(cell.shifts).filter((block) => list(block).length === 3 && block.every(finite));
  const [low, high] = list(cell.ratio_ci), gate = finite(cell.gate) ? Math.log1p(cell.gate) : null;
  if (!blocks.length || !finite(low) || !finite(high)) return el("p", {class: "quiet"}, "No block was measured.");
  const values =
      [...blocks.map((block) => block[1]), Math.log(low), Math.log(high), 0, ...(gate === null ? [] : [-1.5 * gate, 1.5 * gate])];
  const width = 460, left = 70, right = 18, lane = 11;
  const x = scale(Math.min(...values), Math.max(...values), left, width - right);
  const lanes = [...new Set(blocks.map((block) => `${block[2]}/${block[0]}`))];
  const top = 10, bottom = top + lanes.length * lane + 34;
  const place = (ratio) => x(Math.log(ratio));
  const fresh = blocks.some((block) => block[2] === 1);
  const axis = ticks(Math.expm1(x.low) * 100, Math.expm1(x.high) * 100, 7);
  const name = `${blocks.length} blocks of ${cell.case} ${cell.variant}: head over base ${times(cell.ratio)} ${interval(cell.ratio_ci)}`;
  return el(
      "div", {},
      picture(
          name, width, bottom + 26,
          gate === null ? null :
                          svg("rect", {class: "gate", x: x(-gate), y: top - 4, width: x(gate) - x(-gate), height: bottom - top + 4}),
          axis.map(
              (each) =>
                  [svg("line", {class: "axis", x1: x(Math.log1p(each / 100)), x2: x(Math.log1p(each / 100)), y1: top - 4, y2: bottom}),
                   svg("text", {class: "soft", x: x(Math.log1p(each / 100)), y: bottom + 15, "text-anchor": "middle"},
                       `${each > 0 ? "+" : ""}${three(each)} %`)]),
          svg("line", {class: "zero", x1: x(0), x2: x(0), y1: top - 4, y2: bottom}),
          blocks.map((block) => svg("circle", {
                       class: `dot ${fresh && block[2] === 0 ? "screen" : ""}`,
                       r: 3.4,
                       cx: x(block[1]),
                       cy: top + lane * (lanes.indexOf(`${block[2]}/${block[0]}`) + 0.5)
                     })),
          svg("text", {class: "soft", x: 0, y: top + 10}, `${lanes.length} launches`),
          svg("text", {class: "soft", x: 0, y: bottom - 9}, "interval"),
          svg("line", {class: "span", x1: place(low), x2: place(high), y1: bottom - 13, y2: bottom - 13}),
          svg("path", {class: "middle", d: `M${place(cell.ratio)} ${bottom - 21}l6 8l-6 8l-6 -8z`})),
      el("p", {class: "quiet"}, "A row is a pair of fresh processes; to the right of 0 head is slower. ",
         gate === null ? "No gate is known here." : `The band is the gate, ${three(cell.gate * 100)} %.`,
         fresh ? " Hollow dots raised the suspicion, full ones were measured afterwards and decide alone." : ""));
}

// An interval of gains or ratios as a small picture on a scale that all rows of a table share; 1 is a line.
function smallInterval(x, ratio, pair, name) {
  if (!finite(ratio)) return el("span", {class: "quiet"}, "–");
  const clamp = (value) => Math.min(Math.max(value, x.low), x.high);
  const [low, high] = list(pair).length === 2 && pair.every(finite) ? pair : [ratio, ratio];
  const at = (value) => x(clamp(Math.log(value)));
  return el(
      "div", {class: "small"},
      picture(
          name, 150, 16, svg("line", {class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 16}),
          svg("line", {class: "span", x1: at(low), x2: Math.max(at(high), at(low) + 2), y1: 8, y2: 8}),
          svg("circle", {class: "middle", r: 4, cx: at(ratio), cy: 8})));
}

// Rows of stretches that follow each other, all on one scale. rows: [name, [[value, class, text], ...]].
function stackedBars(name, rows, total) {
  const width = 460, left = 70, height = 26;
  const most = Math.max(...rows.map(([, parts]) => parts.reduce((sum, part) => sum + part[0], 0)), 1e-12);
  return picture(name, width, rows.length * height + 4, rows.map(([label, parts], row) => {
    let at = left;
    const out = [svg("text", {x: 0, y: row * height + 17}, label)];
    for (const [value, kind, text] of parts) {
      const wide = (value / most) * (width - left - 90);
      if (!(wide > 0)) continue;
      out.push(
          svg("rect", {class: kind, x: at, y: row * height + 4, width: Math.max(wide, 1), height: height - 8}, svg("title", {}, text)));
      at += wide;
    }
    out.push(svg("text", {class: "soft", x: at + 6, y: row * height + 17}, total(parts.reduce((sum, part) => sum + part[0], 0))));
    return out;
  }));
}

// One series over sittings: its points, the level of each stretch between two steps, and what persons said of them.
function seriesPlot(series, height = 170) {
  const points = list(series.points).filter((point) => finite(point.ratio) && point.ratio > 0);
  if (!points.length) return el("p", {class: "quiet"}, "No sitting of this series.");
  const width = 460, left = 48, right = 14, top = 18, bottom = height - 24;
  const logs = points.map((point) => Math.log(point.ratio)), room = Math.max((Math.max(...logs) - Math.min(...logs)) * 0.15, 0.01);
  const x = scale(0, Math.max(points.length - 1, 1), left, width - right),
        y = scale(Math.min(...logs) - room, Math.max(...logs) + room, bottom, top);
  const steps = list(series.steps), edges = [0, ...steps.map((step) => step.at), points.length];
  const name = `${series.case} ${series.variant} on ${series.class}: ${points.length} sittings, ${steps.length} steps, last ${
      times(points[points.length - 1].ratio)} of eager`;
  return picture(
      name, width, height,
      ticks(Math.exp(y.low), Math.exp(y.high), 4)
          .map(
              (each) =>
                  [svg("line", {class: "axis", x1: left, x2: width - right, y1: y(Math.log(each)), y2: y(Math.log(each))}),
                   svg("text", {class: "soft", x: left - 6, y: y(Math.log(each)) + 4, "text-anchor": "end"}, three(each))]),
      edges.slice(0, -1).map((begin, i) => {
        const part = logs.slice(begin, edges[i + 1]), mean = part.reduce((sum, each) => sum + each, 0) / Math.max(part.length, 1);
        return part.length < 2 ? null : svg("line", {class: "level", x1: x(begin), x2: x(edges[i + 1] - 1), y1: y(mean), y2: y(mean)});
      }),
      points.length > 1 ?
          svg("polyline", {class: "run", points: points.map((point, i) => `${x(i).toFixed(1)},${y(logs[i]).toFixed(1)}`).join(" ")}) :
          null,
      points.map(
          (point, i) =>
              svg("circle", {class: "dot", r: 2.6, cx: x(i), cy: y(logs[i])},
                  svg("title", {}, `${dayText(point.time)}: ${times(point.ratio)} of eager`))),
      steps.map(
          (step) =>
              [svg("line", {class: "change", x1: x(step.at - 0.5), x2: x(step.at - 0.5), y1: top - 8, y2: bottom}),
               svg("text", {x: Math.min(x(step.at - 0.5) + 4, width - 120), y: top - 6},
                   `${percent(Math.exp(step.step))}${step.accepted ? ", accepted" : ""}`)]),
      points.map(
          (point, i) =>
              (list(point.marks).length ?
                   svg("path", {class: "mark", d: `M${x(i)} ${y(logs[i]) - 5}l5 -9h-10z`}, svg("title", {}, point.marks.join("; "))) :
                   null)),
      svg("text", {class: "soft", x: left, y: height - 6}, dayText(points[0].time)),
      points.length > 1 ?
          svg("text", {class: "soft", x: width - right, y: height - 6, "text-anchor": "end"}, dayText(points[points.length - 1].time)) :
          null);
}
