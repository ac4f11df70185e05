// SPDX-License-Identifier: Apache-2.0
// The page of `keirin bench` and `keirin explain`: models beside each other, and of each a picture of its steps with their times, the
// candidates that raced, why not more, and what deciding took. Data: docs/report.md.

const kKinds = ["phase1", "phase2", "phase3", "phase4"];
const shareText = (part, total) => (total > 0 ? three((100 * part) / total) + " %" : "–");
const errorText = (error) => (finite(error) ? error.toExponential(1) : "–");
const gainText = (row) => (finite(row.speedup) ? times(row.speedup, 2) + "x " + interval(row.speedup_ci, 2) : "disturbed");
const said = (reason, note) => [reason, note].filter((each) => each).join(": ");
const named = (row) =>
    row.model + (list(row.sizes).length ? " at " + row.sizes.map((size) => size.name + " " + size.value).join(", ") : "");
// What a step costs, in what this report counts by.
const cost = (row, step) => (row.fitness === "counts" ? step.instructions : step.us) || 0;
const costText = (row, value) => (row.fitness === "counts" ? three(value) + " instructions" : msText(value / 1000));
const costOf = (row) => list(row.steps).reduce((sum, step) => sum + cost(row, step), 0);

// One bar over a call: each step as wide as its time; a click shows its row.
function stepsPicture(row, onstep) {
  const steps = list(row.steps), total = costOf(row), width = 1000;
  if (!steps.length) return el("p", {class: "quiet"}, "No compiled plan was made, so there are no steps.");
  const plugins = [...new Set(steps.map((step) => step.choice).filter((choice) => choice !== "eager"))];
  const kindOf = (choice) => (choice === "eager" ? "phase0" : kKinds[plugins.indexOf(choice) % kKinds.length]);
  let at = 0;
  const parts = steps.map((step, i) => {
    const wide = total > 0 ? (cost(row, step) / total) * width : width / steps.length, x = at, room = Math.floor((wide - 16) / 7);
    at += wide;
    const text = step.name + ", " + step.choice + ", " + step.ops + " operators: " + costText(row, cost(row, step)) + ", " +
        shareText(cost(row, step), total);
    const bar =
        svg("rect", {class: "step " + kindOf(step.choice), x, y: 4, width: Math.max(wide, 0.5), height: 40, onclick: () => onstep(i)},
            svg("title", {}, text));
    if (wide <= 60) return [bar];
    return [
      bar,
      svg("text", {x: x + 4, y: 62, class: "soft"}, step.name.length > room ? step.name.slice(0, Math.max(room, 1)) + "…" : step.name)
    ];
  });
  const eager = steps.filter((step) => step.choice === "eager").reduce((sum, step) => sum + cost(row, step), 0);
  const name = "One call of " + named(row) + ": " + steps.length + " steps in order, " + costText(row, total) + ", " +
      shareText(eager, total) + " of it eager";
  return [
    fill(picture(name, width, 74, parts), {class: "wide"}, []),
    key([...plugins.map((plugin) => [kindOf(plugin), "compiled by " + plugin]), ["phase0", "eager"]]),
  ];
}

function stepsTable(row) {
  const steps = list(row.steps), total = costOf(row);
  return sortedTable(
      "Steps of " + named(row),
      [
        {name: "nr", figure: true, value: (step) => steps.indexOf(step), show: (step) => String(steps.indexOf(step) + 1)},
        {name: "step", head: true, value: (step) => step.name, show: (step) => step.name},
        {name: "who", value: (step) => step.choice, show: (step) => step.choice},
        {name: "operators", figure: true, value: (step) => step.ops, show: (step) => String(step.ops)},
        {name: "time", figure: true, value: (step) => cost(row, step), show: (step) => costText(row, cost(row, step))},
        {name: "share", figure: true, value: (step) => cost(row, step), show: (step) => shareText(cost(row, step), total)},
        {name: "why eager", kind: "note", value: (step) => said(step.reason, step.note), show: (step) => said(step.reason, step.note)},
      ],
      steps, {row: (step) => ({"data-step": steps.indexOf(step)})});
}

function stepsPart(row) {
  if (!list(row.steps).length) return [el("h3", {}, "One call"), stepsPicture(row)];
  const table = stepsTable(row);
  const show = (i) => {
    for (const each of table.querySelectorAll("tr[data-step]")) {
      const chosen = each.dataset.step === String(i);
      each.setAttribute("aria-selected", chosen ? "true" : "false");
      if (chosen) each.scrollIntoView({block: "nearest"});
    }
  };
  return [el("h3", {}, "One call, step by step (" + row.steps_of + ")"), stepsPicture(row, show), table];
}

function candidatesPart(row) {
  const tried = list(row.candidates);
  if (!tried.length) return [];
  const raced = (each) => finite(each.gain) && each.gain > 0;
  const far = Math.max(...tried.filter(raced).map((each) => Math.abs(Math.log(each.gain))), 0.05),
        x = scale(-far * 1.15, far * 1.15, 6, 144);
  const gain = (each) => (raced(each) ? times(each.gain, 2) + " " + interval(each.gain_ci, 2) : "–");
  return [
    el("h3", {}, "Candidates"),
    sortedTable(
        "Candidates of " + named(row),
        [
          {name: "candidate", head: true, value: (each) => each.name, show: (each) => each.name},
          {name: "time", figure: true, value: (each) => each.ms, show: (each) => msText(each.ms)},
          {name: "gain [95 %]", figure: true, value: (each) => each.gain, show: gain},
          {
            name: "interval",
            value: (each) => each.gain,
            show: (each) => smallInterval(x, raced(each) ? each.gain : null, each.gain_ci, each.name + ": gain " + gain(each))
          },
          {name: "compile", figure: true, value: (each) => each.compile_s, show: (each) => msText(each.compile_s * 1000)},
          {name: "ended", kind: "note", value: (each) => each.reason, show: (each) => said(each.reason, each.note)},
        ],
        tried),
  ];
}

function segmentsPart(row) {
  if (!list(row.segments).length) return [];
  return [
    el("h3", {}, "Segments"),
    sortedTable(
        "Segments of " + named(row),
        [
          {name: "segment", head: true, value: (each) => each.name, show: (each) => each.name},
          {name: "sizes", value: (each) => each.sizes, show: (each) => each.sizes || "–"},
          {name: "runs", figure: true, value: (each) => each.runs, show: (each) => String(each.runs)},
          {name: "share", figure: true, value: (each) => each.share, show: (each) => shareText(each.share, 1)},
          {name: "speedup", figure: true, value: (each) => each.speedup, show: (each) => times(each.speedup, 2)},
          {name: "choice", value: (each) => each.choice, show: (each) => each.choice},
          {name: "note", value: (each) => each.note, show: (each) => each.note || ""},
        ],
        row.segments),
  ];
}

function stagesPart(row) {
  const longest = Object.entries(row.stages || {}).filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]).slice(0, 8);
  if (!longest.length) return [];
  return [
    el("h3", {}, "What deciding took"),
    stackedBars(
        "Time by stage of " + named(row),
        longest.map(([stage, seconds]) => [stage.slice(0, 12), [[seconds * 1000, "phase1", stage + ": " + msText(seconds * 1000)]]]),
        msText),
  ];
}

function modelPart(row) {
  const latency = row.latency || {};
  const parts = [
    el("h2", {}, named(row)),
    row.disturbed ? el("p", {class: "warning"}, "The race told nothing: " + row.disturbed + ".") : null,
    pairs([
      ["answers", row.chosen + (row.verified ? ", verified" : ", NOT VERIFIED")],
      ["speedup", gainText(row)],
      ["eager", msText(row.eager_ms) + (row.eager_replay_ms ? ", with replay " + msText(row.eager_replay_ms) : "")],
      ["chosen", msText(row.chosen_ms)],
      ["compiled", row.nodes_compiled + " of " + row.nodes + " operators, " + row.nodes_opaque + " unknown"],
      ["compile time", row.compile_s ? msText(row.compile_s * 1000) : msText(row.warm_start_s * 1000) + ", from the cache"],
      ["memory", bytesText(row.peak_bytes) + ", eager " + bytesText(row.eager_peak_bytes)],
      ["error", errorText(row.max_error) + ", eager " + errorText(row.eager_error)],
      latency.calls ?
          ["calls one by one", "p50 " + msText(latency.p50_ms) + ", p90 " + msText(latency.p90_ms) + ", p99 " + msText(latency.p99_ms)] :
          null,
    ]),
    ...stepsPart(row).flat(),
    ...(list(row.reasons).length ? [el("h3", {}, "Why not more"), bullets(row.reasons)] : []),
    ...candidatesPart(row),
    ...segmentsPart(row),
    ...stagesPart(row),
  ];
  return el("section", {class: "card"}, parts);
}

function modelsTable(rows, show) {
  const far =
      Math.max(...rows.filter((row) => finite(row.speedup) && row.speedup > 0).map((row) => Math.abs(Math.log(row.speedup))), 0.1);
  const x = scale(-far * 1.1, far * 1.1, 6, 144), note = (row) => row.disturbed || list(row.reasons)[0] || "";
  return sortedTable(
      "Models",
      [
        {name: "model", head: true, value: named, show: (row) => el("button", {type: "button", onclick: () => show(row)}, named(row))},
        {name: "device", value: (row) => row.device, show: (row) => row.device},
        {name: "eager", figure: true, value: (row) => row.eager_ms, show: (row) => msText(row.eager_ms)},
        {name: "chosen", figure: true, value: (row) => row.chosen_ms, show: (row) => msText(row.chosen_ms)},
        {name: "speedup [95 %]", figure: true, value: (row) => row.speedup, show: gainText},
        {name: "interval", value: (row) => row.speedup, show: (row) => smallInterval(x, row.speedup, row.speedup_ci, gainText(row))},
        {name: "compile", figure: true, value: (row) => row.compile_s, show: (row) => msText(row.compile_s * 1000)},
        {name: "answers", value: (row) => row.chosen, show: (row) => row.chosen},
        {name: "note", kind: "note", value: note, show: note},
      ],
      rows);
}

function modelPage(data) {
  const rows = list(data.rows), machine = data.machine || {}, measured = rows.filter((row) => finite(row.speedup) && row.speedup > 0);
  const mean = measured.length ? Math.exp(measured.reduce((sum, row) => sum + Math.log(row.speedup), 0) / measured.length) : null;
  const disturbed = rows.filter((row) => row.disturbed).length;
  const parts = new Map(rows.map((row) => [row, modelPart(row)]));
  const where =
      [machine.cpu || "unknown processor", (machine.cores || "?") + " cores", machine.kernel || ""].filter((each) => each).join(", ");
  document.getElementById("page").append(
      el("header", {},
         el("div", {}, el("h1", {}, rows.length === 1 ? named(rows[0]) : "Models beside eager"), el("p", {class: "quiet"}, where)),
         themeButton()),
      tiles([
        [String(rows.length), rows.length === 1 ? "model" : "models"],
        [
          mean === null ? "–" : times(mean, 2) + "x", (rows.length > 1 ? "geometric mean " : "") + "over eager's better form",
          mean > 1 ? "good" : null
        ],
        [String(rows.filter((row) => row.verified).length), "verified"],
        ...(disturbed ? [[String(disturbed), "disturbed", "bad"]] : []),
      ]),
      ...(rows.length > 1 ? [modelsTable(rows, (row) => parts.get(row).scrollIntoView({block: "start"}))] : []), ...parts.values());
}

{
  const begin = performance.now();
  modelPage(JSON.parse(document.getElementById("data").textContent));
  document.documentElement.dataset.drawnMs = (performance.now() - begin).toFixed(1);
}
