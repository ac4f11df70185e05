#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTML pages in headless Chromium: drawn at two widths, light and dark, within a second for a thousand cells; without a word on the
console and without a request; filtered, sorted and walked by keyboard; with names for those who do not see them, contrast that can be
read, and colours that stay apart with deficient colour vision; with names of cells that would like to be markup.

    tests/page/page_test.py KEIRIN [FOLDER]      leaves its pictures in FOLDER. 77: there is no Chromium here.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import chromium
import store

kSkipped = 77
kWidths = {1280: 900, 390: 844}
kLeastContrast = 4.5
kLeastApart = 15  # of a pair that means opposite things, in CIELAB, seen with deficient colour vision

# Texts whose colour stands too near to their ground, with the ratio. A gradient counts as the colour beneath it.
kContrast = r"""(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1), canvas.fillStyle = text, canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const c = rgba(getComputedStyle(node).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255];
  };
  const seen = new Map(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement, style = getComputedStyle(node);
    const skipped = ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "title", "OPTION"].includes(node.tagName);
    if (skipped || !text.data.trim() || !node.getClientRects().length) continue;
    const ink = rgba(node instanceof SVGElement ? style.fill : style.color), under = ground(node);
    const [high, low] = [light(ink), light(under)].sort((a, b) => b - a), ratio = (high + 0.05) / (low + 0.05);
    if (ratio < LEAST) seen.set(`${node.tagName}.${node.getAttribute("class")}`, `${ratio.toFixed(2)} "${text.data.slice(0, 30)}"`);
  }
  return [...seen].map((each) => each.join(": "));
})()""".replace("LEAST", str(kLeastContrast))

# Full deficiency, on linear light (Machado, Oliveira and Fernandes 2009).
kDeficiencies = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}

failed = []


def expect(holds: bool, what: str) -> None:
    if not holds:
        failed.append(what)
        print(f"FAILED: {what}")


def lab(rgb, matrix) -> tuple:
    linear = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
    r, g, b = (min(max(sum(m * v for m, v in zip(row, linear)), 0), 1) for row in matrix)
    x, y, z = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def colours_stay_apart(page: chromium.Page, theme: str) -> None:
    names = ["slow2", "slow3", "fast2", "fast3"]
    found = {
        name: [
            int(v)
            for v in page.value(f"getComputedStyle(document.querySelector('.legend .{name}')).backgroundColor")
            .split("(")[1]
            .strip(")")
            .split(",")[:3]
        ]
        for name in names
    }
    for deficiency, matrix in kDeficiencies.items():
        for size in "23":
            one, two = lab(found["slow" + size], matrix), lab(found["fast" + size], matrix)
            apart = sum((a - b) ** 2 for a, b in zip(one, two)) ** 0.5
            expect(apart >= kLeastApart, f"{theme}: slower and faster {size} are {apart:.0f} apart with {deficiency}")


def names_are_there(page: chromium.Page, which: str) -> None:
    nodes = page.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "searchbox", "textbox", "combobox", "image", "img", "table", "region", "link", "cell", "columnheader", "rowheader"}
    kinds = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in roles:
            continue
        kinds[role] = kinds.get(role, 0) + 1
        if role not in ("cell",):
            expect(bool(node.get("name", {}).get("value")), f"{which}: a {role} has no name")
    expect(kinds.get("button", 0) >= 3 and kinds.get("table", 0) >= 1, f"{which}: the accessibility tree has {kinds}")


def looks_right(page: chromium.Page, path: Path, name: str, pictures: Path) -> None:
    for width, height in kWidths.items():
        for dark in (False, True):
            which = f"{name} at {width}, {'dark' if dark else 'light'}"
            page.open(path, width, height, dark)
            page.picture(pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png")
            expect(not page.faults, f"{which}: {page.faults[:3]}")
            expect(len(page.requests) == 1, f"{which}: asked for {page.requests[1:4]}")
            expect(
                page.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"),
                f"{which}: wider than the window",
            )
            poor = page.value(kContrast)
            expect(not poor, f"{which}: contrast {poor[:5]}")
        page.picture(pictures / f"{name}-{width}-whole.png", whole=True)
    names_are_there(page, name)
    page.open(path, 1280, 900, media="print")
    expect(
        page.value("[...document.querySelectorAll('.bar, .no-print')].every((each) => !each.getClientRects().length)"),
        f"{name}: controls are printed",
    )
    expect(
        page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)",
        f"{name}: printed on another ground than white",
    )


def cells_answer(page: chromium.Page, path: Path) -> None:
    page.open(path, 1280, 900)
    count = "document.querySelectorAll('.heat td button').length"
    all_cells = page.value(count)
    settle = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.press("/", "/")
    expect(page.value("document.activeElement.id") == "filter", "the key / does not lead to the filter")
    page.ask("Input.insertText", text="gcn auto")
    page.value(settle)
    some = page.value(count)
    expect(0 < some < all_cells, f"the filter leaves {some} of {all_cells}")
    expect(
        page.value("[...document.querySelectorAll('.heat tbody th')].every((each) => each.textContent.includes('gcn'))"),
        "the filter leaves other cases",
    )
    page.press("Escape")
    page.value(settle)
    expect(page.value(count) == all_cells, "Escape does not clear the filter")
    page.value("document.querySelector('.heat td button').focus()")
    page.press("ArrowRight"), page.press("ArrowDown")
    expect(
        page.value("document.activeElement.closest('td').cellIndex + ' ' + document.activeElement.closest('tr').rowIndex") == "2 2",
        "arrow keys do not walk",
    )
    page.press("Enter", "\r")
    expect(
        page.value(
            "document.activeElement.getAttribute('aria-pressed') === 'true' && document.querySelectorAll('aside svg circle').length >= 12"
        ),
        "Enter does not show the cell's blocks",
    )
    page.value("[...document.querySelectorAll('aside button')].find((each) => each.textContent.includes('stacks')).click()")
    expect(not page.faults, f"the button to a cell's stacks: {page.faults[:2]}")
    chosen = page.value("[...document.querySelectorAll('select')].slice(-2).map((each) => each.selectedOptions[0].textContent).join()")
    expect("base" in chosen and "head" in chosen, f"a cell's stacks are not shown: {chosen}")
    column = "[...document.querySelectorAll('table[aria-label=\"All cells\"] tbody tr')].map((each) => each.cells[1].textContent)"
    page.value(
        "[...document.querySelectorAll('table[aria-label=\"All cells\"] thead button')].find((each) => each.textContent === 'case').click()"
    )
    rows = page.value(column)
    expect(rows == page.value(f"({column}).sort((a, b) => a.localeCompare(b))") and len(set(rows)) > 5, "the table does not sort by case")
    expect(page.value("window.harmed === undefined && !document.querySelector('#page img, #page script')"), "a name became markup")
    expect(page.value("document.body.textContent.includes('</script><script>window.harmed')"), "the hostile name is not shown as it is")
    expect(page.value("[...document.querySelectorAll('figure svg .change')].length") == 1, "the series' step is not drawn")
    # Of calls, compiling and first calls of one run.
    expect(page.value("[...document.querySelectorAll('figure svg .mark')].length") == 3, "the person's mark is not drawn")


def is_quick(page: chromium.Page, path: Path) -> None:
    busy = []
    for _ in range(3):  # others may have the processor
        page.open(path, 1280, 900)
        busy.append(page.busy_seconds())
        if busy[-1] < 1:
            break
    cells = page.value("document.querySelectorAll('.heat td button').length")
    expect(cells >= 900, f"only {cells} cells are drawn")
    expect(min(busy) < 1, f"{cells} cells took {min(busy):.2f} s")
    print(f"PAGE cells={cells} busy_s={min(busy):.2f} bytes={path.stat().st_size}")


def main() -> int:
    keirin, pictures = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    program = chromium.find()
    if not program:
        print("SKIPPED: there is no Chromium here (Debian's chromium or chromium-headless-shell)")
        return kSkipped
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, cells in (("matrix", 48), ("thousand", 1000)):
            store.write(Path(folder) / name, cells)
            paths[name] = pictures / f"{name}.html"
            pictures.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [keirin, "matrix", "report", "--store", f"{folder}/{name}", "--html", paths[name], "--text", f"{folder}/text"],
                check=False,
            )
        paths["model"] = pictures / "model.html"
        subprocess.run([keirin, "bench", "mlp", "gcn", "--html", paths["model"], "--quiet"], check=True, stdout=subprocess.DEVNULL)
        paths["certificate"] = pictures / "certificate.html"
        bad = Path(keirin).parent / "known_bad" / "leaks_runs"
        subprocess.run([keirin, "certify", bad, "--case", "G", "--html", paths["certificate"]], check=False, stdout=subprocess.DEVNULL)
        paths["sheet"] = pictures / "sheet.html"
        good = Path(keirin).parent / "known_bad" / "good"
        words = ["plugins", "--sheet", "good", "--plugin", good, "--html", paths["sheet"]]
        subprocess.run([keirin, *words], check=True, stdout=subprocess.DEVNULL)
    page = chromium.Page(program)
    try:
        for name in ("matrix", "model", "certificate", "sheet"):
            looks_right(page, paths[name], name, pictures)
        for dark in (False, True):
            page.open(paths["matrix"], 1280, 900, dark)
            colours_stay_apart(page, "dark" if dark else "light")
        cells_answer(page, paths["matrix"])
        is_quick(page, paths["thousand"])
    finally:
        page.close()
    print(f"PAGE pictures={pictures} failed={len(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
