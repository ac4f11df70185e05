#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a stage of the decision takes in two builds, side by side:

    bench/stages/run.py --before OTHER/build/keirin --after build/keirin [--stage verify] [--rounds 3] [--models bert,gcn] [--json F]

The builds take turns, each in a process and with a decision of its own (--no-cache); of each model's rounds the least counts, because
everything else on the machine only adds. Both builds need their plugins and keirin-worker beside them, and the same models
(bench/zoo, size small). The last line has the ratio after / before of all models: of the sums, and the geometric mean.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

kModels = Path(__file__).resolve().parent.parent / "zoo" / "models" / "small"
kMostSeconds = 300  # of one decision


def seconds_of(binary: str, model: Path, stage: str, report: Path) -> tuple[float, int]:
    """Of the stage, and how many candidates were there: builds are compared where they tried the same."""
    command = [binary, "explain", model, "--no-cache", "--race-limit", "0.05", "--json", report]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=kMostSeconds, check=True)
    row = json.loads(report.read_text())
    if stage not in row["stages"]:
        sys.exit(f"{model.stem}: {binary} had no stage {stage}, only {', '.join(row['stages'])}")
    return row["stages"][stage], len(row["candidates"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--stage", default="verify")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="", help="names, comma between; all of the size small without it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.models.split(",") if options.models else sorted(p.stem for p in kModels.glob("*.pt2"))
    rows = []
    print("| model | before, s | after, s | after / before |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="keirin-stages-") as folder:
        for name in names:
            best = [math.inf, math.inf]
            tried = [0, 0]
            for _ in range(options.rounds):
                for k, binary in enumerate((options.before, options.after)):
                    seconds, tried[k] = seconds_of(binary, kModels / f"{name}.pt2", options.stage, Path(folder) / "report.json")
                    best[k] = min(best[k], seconds)
            if tried[0] != tried[1]:
                print(f"{name}: {tried[0]} and {tried[1]} candidates, so that the builds did not do the same", file=sys.stderr)
                return 1
            rows.append({"model": name, "before_s": best[0], "after_s": best[1], "candidates": tried[0]})
            print(f"| {name} | {best[0]:.4f} | {best[1]:.4f} | {best[1] / best[0]:.2f}x |", flush=True)
    before, after = (sum(r[k] for r in rows) for k in ("before_s", "after_s"))
    mean = math.exp(sum(math.log(r["after_s"] / r["before_s"]) for r in rows) / len(rows))
    print(f"all {len(rows)}: {before:.2f} s before, {after:.2f} s after, {after / before:.2f}x; geometric mean {mean:.2f}x")
    if options.json:
        options.json.write_text(json.dumps({"schema": "keirin/stages/1", "stage": options.stage, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
