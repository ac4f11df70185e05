// SPDX-License-Identifier: Apache-2.0
// One cell of the matrix in full, and two stacks beside each other. Words and signs of labels are here too. Data: docs/matrix.md.

const kGlyphs = {
  regressed: "v",
  improved: "^",
  unchanged: "=",
  inconclusive: "?",
  invalid: "!",
  not_run: "."
};
const kWorst = ["regressed", "invalid", "inconclusive", "improved", "unchanged", "not_run"];
const kMeaning = {
  regressed: "head is slower, beyond the gate, in fresh processes too",
  improved: "head is faster, beyond the gate, in fresh processes too",
  unchanged: "shown to be within the gate",
  inconclusive: "neither was shown",
  invalid: "wrong numbers, a crash, a time-out, or other programs used the machine",
  not_run: "nothing was measured; that is no pass",
};
const kPurposes = {
  compare: "two builds",
  run: "each way of running against eager",
  selfcheck: "the same build twice"
};
const word = (label) => label.replace("_", " ");
// What tells cases apart: their parts that are not the same in all of them.
function shortNames(cases) {
  const parts = cases.map((name) => name.split("/")), whole = parts.filter((each) => each.length === 6);
  const kept = [0, 1, 2, 3, 4, 5].filter((i) => i === 0 || whole.some((each) => each[i] !== whole[0][i]));
  return new Map(cases.map((name, i) => [name, parts[i].length === 6 ? kept.map((part) => parts[i][part]).join("/") : name]));
}
const rank = (cell) => (cell.failed ? -1 : kWorst.indexOf(cell.label));
const glyph = (cell) => (cell.failed ? "!" : kGlyphs[cell.label] || "!");
const version = (parts) => `${parts.keirin || "?"} (${String(parts["keirin build"] || "?").slice(0, 8)})`;

const phases = (side) => [[side.cold_ms, "phase1", `compiled and verified on an empty cache: ${msText(side.cold_ms)}`],
                          [side.start_ms, "phase2", `opened in a later process: ${msText(side.start_ms)}`],
                          [side.first_ms, "phase3", `first call: ${msText(side.first_ms)}`],
                          [side.settle_ms, "phase4", `calls until steady: ${msText(side.settle_ms)}`]]
                             .filter((part) => finite(part[0]) && part[0] > 0);
function timeLines(cell) {
  const base = cell.base_times || {}, head = cell.head_times || {};
  if (!phases(base).length && !phases(head).length) return null;
  const kinds = new Set([...phases(base), ...phases(head)].map((part) => part[1]));
  return [
    el("h3", {}, "Before it is steady"),
    stackedBars(
        `Time before calls are steady, base ${msText(base.first_ms)} and head ${msText(head.first_ms)} for the first call`,
        [["base", phases(base)], ["head", phases(head)]], msText),
    key([["phase1", "compile and verify"], ["phase2", "open again"], ["phase3", "first call"], ["phase4", "until steady"]].filter(
        (each) => kinds.has(each[0]))),
    pairs([
      ["base", `first call ${msText(base.first_ms)}, steady after ${base.settle_calls || "–"} calls at ${msText(cell.base_ms)}`],
      ["head", `first call ${msText(head.first_ms)}, steady after ${head.settle_calls || "–"} calls at ${msText(cell.head_ms)}`]
    ])
  ];
}
function counts(cell) {
  const base = cell.base_counts || {}, head = cell.head_counts || {},
        names = [...new Set([...Object.keys(base), ...Object.keys(head)])].sort();
  if (!names.length) return null;
  const text = (name, value) => (name.endsWith("_bytes") ? bytesText(value) : finite(value) ? String(value) : "–");
  return [
    el("h3", {}, "Counted"),
    plainTable(
        "Counts of base and head", ["count", "base", "head"],
        names.map(
            (name) => el(
                "tr", {class: base[name] !== undefined && base[name] !== head[name] ? "changed" : null}, el("th", {scope: "row"}, name),
                el("td", {class: "figure"}, text(name, base[name])), el("td", {class: "figure"}, text(name, head[name])))))
  ];
}

// `series`: its history, or nothing; `onstacks` is called when somebody wants to see what ran.
function cellPart(cell, series, onstacks) {
  return [
    el("h2", {}, `${cell.case} · ${cell.variant}`),
    el("p", {}, el("span", {class: "label"}, `${glyph(cell)} ${word(cell.label)}`), ` – ${kMeaning[cell.label] || ""}.`,
       cell.gated ? "" : " It informs only."),
    pairs([
      ["head / base", `${times(cell.ratio)} ${interval(cell.ratio_ci)}${finite(cell.ratio) ? `, ${cell.size}` : ""}`],
      ["base", `${msText(cell.base_ms)}, ${cell.against || cell.variant}`],
      ["head", `${msText(cell.head_ms)}, answered by ${cell.candidate || "–"}`],
      ["gate", finite(cell.gate) ? `${three(cell.gate * 100)} %` : "not known"],
      ["blocks", `${cell.blocks}, ${cell.dropped} dropped${cell.confirmed ? ", measured twice" : ""}`], ["class", cell.report.class]
    ]),
    stripPlot(cell),
    ...[timeLines(cell)].flat(2).filter((each) => each),
    ...(list(cell.reasons).length ? [el("h3", {}, "What was said"), bullets(cell.reasons)] : []),
    ...(list(cell.fallbacks).length ? [el("h3", {}, "Why parts are eager"), bullets(cell.fallbacks)] : []),
    ...[counts(cell)].flat(2).filter((each) => each),
    ...(series ? [el("h3", {}, "History, of eager's time"), seriesPlot(series)] : []),
    ...(list(cell.report.changed).length ? [el("h3", {}, "What changed between base and head"), bullets(cell.report.changed)] : []),
    el("h3", {}, "Once more"),
    el("pre", {}, cell.again || ""),
    el("button",
       {type: "button", class: "no-print", onclick: onstacks},
       "Base and head's stacks"),
  ];
}

// A section whose `show` puts the stack of one report's side beside that of another's.
function stacksPart(reports) {
  const sides = reports.flatMap((report) => ["base", "head"].map((side) => ({report, side, parts: report[side] || {}})));
  const name = (each) => each.report.class + ", " + each.report.purpose + ", " + each.side + ": " + version(each.parts);
  const select = (label) =>
      el("select", {"aria-label": label, onchange: draw}, sides.map((each, i) => el("option", {value: i}, name(each))));
  const out = el("div"), left = select("first stack"), right = select("second stack");
  function draw() {
    const one = sides[left.value].parts, two = sides[right.value].parts, differs = (part) => one[part] !== two[part];
    const names = [...new Set([...Object.keys(one), ...Object.keys(two)])];
    names.sort((x, y) => differs(y) - differs(x) || x.localeCompare(y));
    const changed = names.filter(differs).length;
    const row = (part) =>
        el("tr", {class: differs(part) ? "changed" : null}, el("td", {}, differs(part) ? "≠" : ""), el("th", {scope: "row"}, part),
           el("td", {class: "path"}, one[part] || "none"), el("td", {class: "path"}, two[part] || "none"));
    out.replaceChildren(
        el("p", {}, changed ? changed + " of " + names.length + " parts differ; they stand first." : "Both are the same."),
        plainTable("Two stacks, part by part", ["differs", "part", "first", "second"], names.map(row)));
  }
  const section =
      el("section", {}, el("h2", {}, "Stacks"),
         el("p", {class: "quiet"}, "What ran, part by part. Shift and a click on a second cell bring both cells' stacks here."),
         el("div", {class: "bar"}, el("label", {}, "first", left), el("label", {}, "second", right)), out);
  if (sides.length > 1) right.value = 1, draw();
  const index = (report, side) => sides.findIndex((each) => each.report === report && each.side === side);
  function show(report, side, other, otherSide) {
    left.value = index(report, side), right.value = index(other, otherSide);
    draw();
    section.scrollIntoView({block: "start"});
  }
  return {section, show};
}
