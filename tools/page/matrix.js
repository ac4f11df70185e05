// SPDX-License-Identifier: Apache-2.0
// The page of a store: what was asked, a heat map of all cells, one cell in full, the list, series, and two stacks beside each other.
// Data: docs/matrix.md. It must draw a thousand cells in less than a second.

function kindOf(cell) {
  if (cell.failed || cell.label === "invalid") return "failed";
  if (cell.label === "not_run") return "none";
  if (cell.label === "inconclusive") return "open";
  return shade(cell.ratio);
}
const spoken = (cell) => `${cell.case}, ${cell.variant} on ${cell.report.class}: ${word(cell.label)}${
    finite(cell.ratio) ? `, head over base ${times(cell.ratio)} ${interval(cell.ratio_ci)}` : ""}`;

function matrixPage(data) {
  const reports = list(data.reports), history = list(data.history);
  for (const report of reports)
    for (const cell of report.cells) cell.report = report;
  const purposes = [...new Set(reports.map((report) => report.purpose))];
  const state = {purpose: purposes[0], text: "", hidden: new Set(), order: "worst", cell: null};
  const names = shortNames([...new Set(reports.flatMap((report) => report.cells.map((cell) => cell.case)))]);
  const shown = () => reports.filter((report) => report.purpose === state.purpose);
  const cells = () => {
    const words = state.text.toLowerCase().split(/\s+/).filter((each) => each);
    return shown().flatMap((report) => report.cells).filter((cell) => {
      const text = `${cell.case} ${cell.variant} ${cell.report.class} ${cell.label} ${cell.candidate}`.toLowerCase();
      return !state.hidden.has(cell.label) && words.every((each) => text.includes(each));
    });
  };

  const parts = Object.fromEntries(["summary", "heat", "rows", "series"].map((name) => [name, el("div")]));
  const aside =
      el("aside", {"aria-live": "polite", "aria-label": "The chosen cell"},
         el("p", {class: "quiet"}, "Choose a cell: its blocks, times, reasons and history are shown here."));
  const filter = el("input", {
    type: "search",
    id: "filter",
    placeholder: "bert compiled regressed",
    oninput: () => {
      state.text = filter.value;
      later();
    }
  });
  let waiting = false;
  function later() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function summary() {
    const all = shown().flatMap((report) => report.cells), count = (label) => all.filter((cell) => cell.label === label).length;
    const first = shown()[0];
    return [
      tiles(kWorst.filter((label) => count(label))
                .map(
                    (label) =>
                        [`${kGlyphs[label]} ${count(label)}`, word(label),
                         label === "regressed" || label === "invalid" ? "bad" :
                             label === "improved"                     ? "good" :
                                                                        null])),
      shown().map(
          (report) =>
              el("p", {}, el("b", {}, report.class),
                 `: ${version(report.base)} → ${version(report.head)}, ${report.cells.length} cells, ${dayText(report.time)}; `,
                 report.fitness === "timing" ? "times decide" :
                     report.fitness === "compile" ? "there are no times: compiled for a device that is not here" :
                     report.purpose === "compare" ? "times inform only, counts decide" : "times inform only",
                 report.cells.some((cell) => cell.gated) ? "." : "; no cell decides anything.")),
      shown()
          .filter((report) => report.warnings)
          .map((report) => el("p", {class: "warning"}, el("b", {}, `${report.class}: `), report.warnings)),
      list(first && first.skipped).length ?
          el("details", {class: "warning"}, el("summary", {}, `Parts of the store that were not read: ${first.skipped.length}`),
             bullets(first.skipped.slice(0, 100))) :
          null,
    ];
  }

  function heatMap(visible) {
    const columns = [], index = new Map();
    for (const report of shown())
      for (const variant of [...new Set(report.cells.map((cell) => cell.variant))]) columns.push([report, variant]);
    const used = columns.filter(([report, variant]) => visible.some((cell) => cell.report === report && cell.variant === variant));
    for (const cell of visible)
      index.set(cell, used.findIndex(([report, variant]) => cell.report === report && cell.variant === variant));
    const rows = new Map();
    for (const cell of visible) {
      if (!rows.has(cell.case)) rows.set(cell.case, []);
      rows.get(cell.case)[index.get(cell)] = cell;
    }
    const worst = (row) => Math.min(...row.filter((cell) => cell).map(rank)),
          far = (row) => Math.max(...row.filter((cell) => cell && finite(cell.ratio)).map((cell) => cell.ratio), 0);
    const orders = {
      worst: (a, b) => worst(a[1]) - worst(b[1]) || far(b[1]) - far(a[1]),
      name: (a, b) => a[0].localeCompare(b[0]),
      slowest: (a, b) => far(b[1]) - far(a[1]),
      time: (a, b) =>
          Math.max(...b[1].map((cell) => (cell && cell.head_ms) || 0)) - Math.max(...a[1].map((cell) => (cell && cell.head_ms) || 0))
    };
    const sorted = [...rows].sort((a, b) => orders[state.order](a, b) || a[0].localeCompare(b[0]));
    if (!sorted.length) return el("p", {class: "quiet"}, "No cell matches.");
    let first = true;
    const button = (cell) => {
      const made =
          el("button", {
            type: "button",
            class: `cell ${kindOf(cell)}`,
            "aria-label": spoken(cell),
            "aria-pressed": cell === state.cell ? "true" : "false",
            tabindex: first || cell === state.cell ? 0 : -1,
            title: `${word(cell.label)}${cell.confirmed ? ", measured twice" : ""}`,
            onclick: (event) => choose(cell, event.shiftKey)
          },
             el("b", {"aria-hidden": "true"}, glyph(cell)), times(cell.ratio));
      cell.button = made;
      first = false;
      return made;
    };
    const table =
        el("table", {class: "heat", "aria-label": "Cells: cases by class and variant", onkeydown: walk},
           el("thead", {},
              el("tr", {}, el("th", {scope: "col"}, "case"),
                 used.map(([report, variant]) => el("th", {scope: "col"}, variant, el("small", {}, report.class))))),
           el("tbody", {},
              sorted.map(
                  ([name, row]) =>
                      el("tr", {}, el("th", {scope: "row", title: name}, names.get(name)),
                         used.map((unused, i) => el("td", {}, row[i] ? button(row[i]) : null))))));
    return el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Heat map"}, table);
  }

  // Arrow keys walk through the heat map.
  function walk(event) {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    const at = event.target.closest("td");
    if (!step || !at) return;
    event.preventDefault();
    let row = at.parentElement, column = at.cellIndex;
    for (;;) {
      if (step[0]) row = step[0] < 0 ? row.previousElementSibling : row.nextElementSibling;
      column += step[1];
      if (!row || column < 1 || column >= row.cells.length) return;
      const next = row.cells[column].querySelector("button");
      if (!next) continue;
      event.currentTarget.querySelectorAll('button[tabindex="0"]').forEach((each) => each.setAttribute("tabindex", "-1"));
      next.setAttribute("tabindex", "0");
      next.focus();
      return;
    }
  }

  const seriesOf = (cell) =>
      history.find((each) => each.case === cell.case && each.variant === cell.variant && each.class === cell.report.class);

  function choose(cell, beside) {
    if (beside && state.cell) {
      stacks.show(state.cell.report, "head", cell.report, "head");
      return;
    }
    if (state.cell && state.cell.button) state.cell.button.setAttribute("aria-pressed", "false");
    state.cell = cell;
    if (cell.button) cell.button.setAttribute("aria-pressed", "true");
    aside.replaceChildren(...cellPart(cell, seriesOf(cell), () => stacks.show(cell.report, "base", cell.report, "head")));
  }

  function rowsTable(visible) {
    const far = Math.max(
              ...visible.filter((cell) => finite(cell.ratio) && cell.ratio > 0).map((cell) => Math.abs(Math.log(cell.ratio))), 0.02),
          x = scale(-far * 1.1, far * 1.1, 6, 144);
    const isAgainst = (cell) => finite(cell.ratio) && cell.against && cell.against !== cell.variant;
    const note = (cell) => [...list(cell.reasons), ...(isAgainst(cell) ? [`against ${cell.against}`] : [])].join("; ");
    return sortedTable(
        "All cells",
        [
          {name: "label", kind: "short", value: rank, show: (cell) => `${glyph(cell)} ${word(cell.label)}`},
          {name: "case", head: true, value: (cell) => cell.case, show: (cell) => el("span", {title: cell.case}, names.get(cell.case))},
          {name: "variant", kind: "short", value: (cell) => cell.variant, show: (cell) => cell.variant},
          {name: "class", kind: "short", value: (cell) => cell.report.class, show: (cell) => cell.report.class},
          {name: "base", figure: true, value: (cell) => cell.base_ms, show: (cell) => msText(cell.base_ms)},
          {name: "head", figure: true, value: (cell) => cell.head_ms, show: (cell) => msText(cell.head_ms)},
          {
            name: "head/base [95 %]",
            figure: true,
            value: (cell) => cell.ratio,
            show: (cell) => `${times(cell.ratio)} ${interval(cell.ratio_ci)}`
          },
          {
            name: "compile",
            figure: true,
            value: (cell) => (cell.head_times || {}).cold_ms,
            show: (cell) => msText((cell.head_times || {}).cold_ms)
          },
          {
            name: "interval",
            value: (cell) => cell.ratio,
            show: (cell) => smallInterval(x, cell.ratio, cell.ratio_ci, `${times(cell.ratio)} ${interval(cell.ratio_ci)}`)
          },
          {
            name: "gate",
            figure: true,
            value: (cell) => cell.gate,
            show: (cell) => (finite(cell.gate) ? `${three(cell.gate * 100)} %` : "–")
          },
          {name: "note", kind: "note", value: note, show: note},
        ],
        visible, {row: (cell) => ({onclick: (event) => choose(cell, event.shiftKey)})});
  }

  const stacks = stacksPart(reports);

  function seriesPart() {
    const words = state.text.toLowerCase().split(/\s+/).filter((each) => each);
    const found =
        history.filter((series) => words.every((each) => `${series.case} ${series.variant} ${series.class}`.toLowerCase().includes(each)))
            .sort(
                (a, b) => list(b.steps).length - list(a.steps).length || list(b.points).length - list(a.points).length ||
                    a.case.localeCompare(b.case));
    if (!found.length) return el("p", {class: "quiet"}, "No series: keirin matrix run writes points.");
    const most = 12;
    return [
      el("p", {class: "quiet"}, "Time over eager's in the same sitting, one point a sitting; those with steps come first. ",
         "A step is a suspicion: compare both stacks as a pair. ",
         found.length > most ? `${most} of ${found.length} are drawn; the filter chooses others.` : ""),
      el("div", {class: "plots"},
         found.slice(0, most).map(
             (series) =>
                 el("figure", {class: "card"}, el("figcaption", {}, el("b", {}, series.case), ` ${series.variant}, ${series.class}`),
                    seriesPlot(series))))
    ];
  }

  function draw() {
    const visible = cells();
    parts.summary.replaceChildren(...[summary()].flat(3).filter((each) => each));
    parts.heat.replaceChildren(heatMap(visible));
    parts.rows.replaceChildren(rowsTable(visible));
    parts.series.replaceChildren(...[seriesPart()].flat(2));
  }

  const labels = [...new Set(reports.flatMap((report) => report.cells.map((cell) => cell.label)))].sort(
      (a, b) => kWorst.indexOf(a) - kWorst.indexOf(b));
  const toggles =
      el("fieldset", {}, el("legend", {}, "labels"),
         labels.map(
             (label) =>
                 el("button", {
                   type: "button",
                   "aria-pressed": "true",
                   onclick: (event) => {
                     const hide = !state.hidden.has(label);
                     if (hide)
                       state.hidden.add(label);
                     else
                       state.hidden.delete(label);
                     event.currentTarget.setAttribute("aria-pressed", hide ? "false" : "true");
                     draw();
                   }
                 },
                    `${kGlyphs[label] || "!"} ${word(label)}`)));
  const order =
      el("select", {
        onchange: () => {
          state.order = order.value;
          draw();
        }
      },
         [["worst", "worst first"], ["name", "by name"], ["slowest", "by ratio"], ["time", "by time"]].map(
             ([value, text]) => el("option", {value}, text)));
  const purpose =
      el("select", {
        onchange: () => {
          state.purpose = purpose.value;
          draw();
        }
      },
         purposes.map((each) => el("option", {value: each}, kPurposes[each] || each)));
  const legend = el("ul", {class: "legend", "aria-label": "What the colours mean"}, [
    ["fast3", "^", "faster by 10 % and more"], ["fast2", "^", "3 to 10 %"], ["fast1", "^", "1 to 3 %"], ["", "=", "within 1 %"],
    ["slow1", "v", "1 to 3 % slower"], ["slow2", "v", "3 to 10 %"], ["slow3", "v", "10 % and more"], ["open", "?", "undecided"],
    ["failed", "!", "wrong, crashed or disturbed"], ["none", ".", "not run"]
  ].map(([kind, mark, text]) => el("li", {class: `cell ${kind}`}, el("b", {}, mark), text)));

  document.getElementById("page").append(
      el("header", {},
         el("div", {}, el("h1", {}, "Regression matrix"),
            el("p", {class: "quiet"},
               "Right, never slower, no worse than before? A figure is head's time over base's; its colour says how far, ",
               "its glyph what was shown.")),
         themeButton()),
      el("div", {class: "bar"}, el("label", {}, "compared", purpose),
         el("label", {class: "grow"}, "filter by case, variant, class or label", filter), el("label", {}, "order", order), toggles),
      parts.summary,
      el("section", {}, el("h2", {}, "Heat map"), el("div", {class: "split wide"}, el("div", {}, parts.heat, legend), aside)),
      el("section", {}, el("h2", {}, "All cells"), parts.rows), el("section", {}, el("h2", {}, "Series"), parts.series), stacks.section,
      el("p", {class: "quiet no-print"}, "Keys: ", el("kbd", {}, "/"), " filters, arrow keys walk through the heat map, ",
         el("kbd", {}, "Enter"), " chooses, ", el("kbd", {}, "Esc"), " clears the filter."));
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      filter.focus();
    }
    if (event.key === "Escape") {
      filter.value = state.text = "";
      draw();
    }
  });
  draw();
  const first = cells().sort((a, b) => rank(a) - rank(b))[0];
  if (first) choose(first);
}

{
  const begin = performance.now();
  matrixPage(JSON.parse(document.getElementById("data").textContent));
  document.documentElement.dataset.drawnMs = (performance.now() - begin).toFixed(1);
}
