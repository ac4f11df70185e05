// SPDX-License-Identifier: Apache-2.0
// The page of `keirin certify`: what was certified, where, and of each group what passed, failed, is not claimed, could
// not be run and is known to fail.
// Data: docs/certify.md.

const kOutcomes = ["passed", "failed", "known", "unclaimed", "not_run", "not_tried"];  // and the classes of their colours
const outcomeWords = (name) => name.replace("_", " ");

function groupRow(group) {
  const counts = kOutcomes.map((name) => group[name] || 0);
  const total = counts.reduce((sum, each) => sum + each, 0);
  let at = 0;
  const bar = picture(
      group.title + ": " + kOutcomes.map((name, i) => counts[i] + " " + outcomeWords(name)).join(", "), 240, 16,
      kOutcomes.map((kind, i) => {
        const wide = total > 0 ? (counts[i] / total) * 240 : 0, x = at;
        at += wide;
        return wide > 0 ? svg("rect", {class: kind, x, y: 3, width: Math.max(wide, 1), height: 10}) : null;
      }));
  return el(
      "tr", {}, el("th", {scope: "row"}, group.title), ...counts.map((count) => el("td", {class: "figure"}, count ? String(count) : "–")),
      el("td", {}, bar), el("td", {class: "note"}, group.ended || group.not_run_because || ""));
}

function failuresPart(group) {
  const all = [...list(group.failures).map((each) => [each, "failed"]), ...list(group.known_failures).map((each) => [each, "known"])];
  if (!all.length) return [];
  return [
    el("h3", {}, "What failed"),
    sortedTable(
        "Failures of " + group.title,
        [
          {name: "case", head: true, value: ([each]) => each.case, show: ([each]) => each.case},
          {name: "outcome", value: ([, how]) => how, show: ([, how]) => how},
          {name: "reason", kind: "note", value: ([each]) => each.reason, show: ([each]) => each.reason},
          {name: "repeat", kind: "note", value: ([each]) => each.repeat, show: ([each]) => el("code", {}, each.repeat)},
        ],
        all),
  ];
}

function checksPart(group) {
  if (!list(group.checks).length) return [];
  return [el("h3", {}, "Checks"), sortedTable(
      "Checks of " + group.title,
      [
        {name: "check", head: true, value: (each) => each.name, show: (each) => each.name},
        {name: "a plugin", kind: "note", value: (each) => each.asks, show: (each) => each.asks},
        {name: "outcome", value: (each) => each.outcome, show: (each) => each.outcome},
        {name: "time", figure: true, value: (each) => each.seconds, show: (each) => msText(each.seconds * 1000)},
        {name: "note", kind: "note", value: (each) => each.reason, show: (each) => each.reason},
      ],
      group.checks)];
}

function operatorsPart(group) {
  const claimed = list(group.operators).filter((each) => each.passed + each.failed > 0);
  if (!claimed.length) return [];
  return [el("h3", {}, "Operators"), sortedTable(
      "Operators of " + group.title,
      [
        {name: "operator", head: true, value: (each) => each.name, show: (each) => each.name},
        ...["passed", "failed", "unclaimed", "skipped"].map(
            (name) => ({name, figure: true, value: (each) => each[name], show: (each) => (each[name] ? String(each[name]) : "–")})),
      ],
      claimed)];
}

function certificatePage(data) {
  const groups = list(data.groups), machine = data.machine || {};
  const sum = (name) => groups.reduce((all, group) => all + (group[name] || 0), 0);
  const where = [machine.cpu || "unknown processor", (machine.cores || "?") + " cores", machine.kernel || ""].filter((each) => each);
  document.getElementById("page").append(
      el("header", {}, el("div", {}, el("h1", {}, data.plugin + " " + data.version + ": " + data.verdict),
                          el("p", {class: "quiet"}, where.join(", "))), themeButton()),
      tiles([
        [String(sum("passed")), "passed", data.passed ? "good" : null],
        [String(sum("failed")), "failed", sum("failed") ? "bad" : null],
        [String(sum("known")), "known to fail"],
        [String(sum("unclaimed")), "not claimed"],
        [String(sum("not_run")), "not run here", sum("not_run") ? "bad" : null],
      ]),
      data.quick ? el("p", {class: "warning"}, "Quick: a part of the cases was tried.") : "",
      data.only ? el("p", {class: "warning"}, "Only " + data.only + " was tried.") : "",
      ...list(data.list_faults).map((fault) => el("p", {class: "warning"}, "Known failures, " + fault)),
      pairs([
        ["library", data.library],
        ["SHA-256", el("code", {}, data.sha256)],
        data.device ? ["device", [data.device.uid, data.device.description, data.device.driver].filter((each) => each).join(", ")] : null,
        ["guid", data.guid],
        ["publisher", data.publisher || "–"],
        ["Keirin", data.keirin + ", ABI " + data.abi + ", " + data.os_arch],
        ["day", data.day + ", " + three(data.seconds) + " s"],
        data.known ? ["known failures", data.known] : null,
      ]),
      plainTable(
          "Groups", ["group", ...kOutcomes.map(outcomeWords), "share", "note"], groups.map(groupRow)),
      key(kOutcomes.map((name) => [name, outcomeWords(name)])),
      ...groups.map((group) => el("section", {class: "card"}, el("h2", {}, group.title), ...failuresPart(group), ...checksPart(group),
                                  ...operatorsPart(group))));
}

{
  const begin = performance.now();
  certificatePage(JSON.parse(document.getElementById("data").textContent));
  document.documentElement.dataset.drawnMs = (performance.now() - begin).toFixed(1);
}
