// SPDX-License-Identifier: Apache-2.0
// The page of `keirin plugins --sheet`: what a plugin computes, operators by dtypes, and how fast each is beside eager and other plugins.
// Data: docs/certify.md.

const kDTypes = ["f32", "bf16", "f16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"];

// The same words as in the Markdown.
function coverage(counts) {
  if (!counts) return "";
  if (counts.passed + counts.failed + counts.skipped === 0) return counts.unclaimed ? "eager" : "";
  const parts = [counts.failed ? counts.passed + " of " + (counts.passed + counts.failed) : String(counts.passed)];
  if (counts.unclaimed) parts.push(counts.unclaimed + " eager");
  if (counts.skipped) parts.push(counts.skipped + " known");
  return parts.join(", ");
}

function coveragePart(operators) {
  const computed = operators.filter((each) => each.passed + each.failed > 0);
  const eagers = operators.filter((each) => each.passed + each.failed === 0).map((each) => each.name);
  const column = (dtype) => {
    const of = (each) => (each.dtypes || {})[dtype];
    return {
      name: dtype,
      figure: true,
      value: (each) => (of(each) ? of(each).passed : -1),
      show: (each) => (of(each) && of(each).failed ? el("strong", {}, coverage(of(each))) : coverage(of(each)))
    };
  };
  return el(
      "section", {class: "card"}, el("h2", {}, "What it computes"),
      el("p", {class: "quiet"},
         "A cell is how many cases were compiled, run and found right; eager: not claimed, eager computes it; known: known to fail."),
      sortedTable(
          "Operators by dtypes",
          [{name: "operator", head: true, value: (each) => each.name, show: (each) => each.name}, ...kDTypes.map(column)], computed),
      eagers.length ? el("p", {}, "Eager's: " + eagers.join(", ") + ".") : "");
}

function speedPart(speed, name) {
  if (!speed) return el("p", {class: "warning"}, "Nothing was timed.");
  const plugin = (each, which) => (each.plugins || {})[which] || {};
  const own = (each) => plugin(each, name);
  const note = (each) => own(each).note || each.note || "";
  const time = (title, ns) =>
      ({name: title, figure: true, value: ns, show: (each) => (finite(ns(each)) ? msText(ns(each) / 1e6) : "–")});
  const ratios = list(speed.cases).map((each) => own(each).ratio).filter((ratio) => finite(ratio) && ratio > 0).map(Math.log);
  const x = scale(Math.min(-0.1, ...ratios), Math.max(0.1, ...ratios), 4, 146);
  const range = (each) => (finite(own(each).low) ? [own(each).low, own(each).high] : []);
  return el(
      "section", {class: "card"}, el("h2", {}, "How fast"),
      el("p", {class: "quiet"},
         "On " + speed.arch + ", " + speed.threads + " threads. One case of each operator and dtype, in turns with eager; a ratio " +
             "above 1 is faster than eager, with its 95 % interval where it was raced."),
      speed.left_out ? el("p", {class: "warning"}, "There was no time for " + speed.left_out + " more cases.") : "",
      sortedTable(
          "Speed",
          [
            {name: "operator", head: true, value: (each) => each.operator, show: (each) => each.operator},
            {name: "dtype", value: (each) => each.dtype, show: (each) => each.dtype},
            {name: "operands", kind: "note", value: (each) => each.sizes, show: (each) => each.sizes},
            time("eager", (each) => each.eager_ns),
            time(name, (each) => own(each).ns),
            {
              name: "eager / " + name,
              figure: true,
              value: (each) => own(each).ratio,
              show: (each) => (finite(own(each).ratio) ? times(own(each).ratio, 2) + " " + interval(range(each), 2) :
                                   note(each).startsWith("disturbed") ? "disturbed" : note(each) || "–")
            },
            {
              name: "interval",
              value: (each) => own(each).ratio,
              show: (each) => smallInterval(
                  x, own(each).ratio, range(each), each.operator + " of " + each.dtype + ": eager's time over " + name + "'s")
            },
            ...list(speed.others).map((other) => time(other, (each) => plugin(each, other).ns)),
          ],
          list(speed.cases)));
}

function sheetPage(data) {
  const operators = list(data.operators), machine = data.machine || {};
  const sum = (name) => operators.reduce((all, each) => all + (each[name] || 0), 0);
  const computed = operators.filter((each) => each.passed + each.failed > 0).length;
  const where = [machine.cpu || "unknown processor", (machine.cores || "?") + " cores", machine.kernel || ""].filter((each) => each);
  const ratios = data.speed ? list(data.speed.cases).map((each) => ((each.plugins || {})[data.plugin] || {}).ratio).filter(finite) : [];
  document.getElementById("page").append(
      el("header", {}, el("div", {}, el("h1", {}, data.plugin + " " + data.version + ": what it computes"),
                          el("p", {class: "quiet"}, where.join(", "))), themeButton()),
      tiles([
        [computed + " of " + operators.length, "operators computed"],
        [String(sum("passed")), "cases right", "good"],
        [String(sum("failed")), "cases wrong", sum("failed") ? "bad" : null],
        ...(ratios.length ? [[ratios.filter((each) => each > 1).length + " of " + ratios.length, "timed cases faster than eager"]] : []),
      ]),
      pairs([
        ["library", data.library],
        ["SHA-256", el("code", {}, data.sha256)],
        ["Keirin", data.keirin + ", " + data.os_arch],
        ["day", data.day],
      ]),
      coveragePart(operators), speedPart(data.speed, data.plugin));
}

{
  const begin = performance.now();
  sheetPage(JSON.parse(document.getElementById("data").textContent));
  document.documentElement.dataset.drawnMs = (performance.now() - begin).toFixed(1);
}
