#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs architectures of transformers, timm, torchvision and torch_geometric with random weights through Keirin, a process each, and counts.

    ci/python_tests                                  # once: makes the wheel and installs it into build/python-installed
    bench/sweep/packages                             # once: a venv of its own with the libraries; prints its python
    PYTHONPATH=build/python-installed "$(bench/sweep/packages)" bench/sweep/run.py --keep sweep.json [--only timm/] [--measure]

What is in --keep is not run again (--again NAME forgets a row), so it may be stopped and started at any time. --show prints the table of a
file. A process that dies or takes longer than --bound seconds is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

kHere = Path(__file__).resolve().parent
kParts = ("inference", "training", "pt2")


def run(name: str, parts: list[str], bound: float, measure: bool) -> dict[str, Any]:
    """The rows of one process by part; parts that it did not reach say why."""
    command = [sys.executable, str(kHere / "one.py"), name, "--parts", ",".join(parts), *(["--measure"] if measure else [])]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = child.communicate(timeout=bound)
        ended = f"the process ended with {child.returncode}" + (
            f" ({signal.Signals(-child.returncode).name})" if child.returncode < 0 else ""
        )
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        ended = f"not done in {bound:.0f} s"
    rows = {}
    for line in out.splitlines():
        if line.startswith('{"part"'):
            row = json.loads(line)
            rows[row.pop("part")] = row
    missing = [part for part in parts if part not in rows]
    for i, part in enumerate(missing):
        last = err.strip().splitlines()[-1][:200] if err.strip() else ""
        rows[part] = {"runs": False, "verified": False, "error": f"{ended}; {last}" if i == 0 else "not reached"}
    return rows


def table(kept: dict[str, Any]) -> str:
    lines = [
        "| library | part | run | verified | nodes compiled | eager / Keirin, geometric mean | least |",
        "|---|---|---|---|---|---|---|",
    ]
    libraries = sorted({name.split("/")[0] for name in kept})
    for library in [*libraries, "all"]:
        for part in kParts:
            rows = [row[part] for name, row in kept.items() if part in row and library in (name.split("/")[0], "all")]
            if not rows:
                continue
            nodes = sum(row.get("nodes", 0) for row in rows)
            gains = [row["gain"] for row in rows if row.get("gain")]
            share = f"{sum(row.get('nodes_compiled', 0) for row in rows) / nodes:.1%}" if nodes else "-"
            mean = f"{statistics.geometric_mean(gains):.2f}x of {len(gains)}" if gains else "-"
            least = f"{min(gains):.2f}x" if gains else "-"
            lines.append(
                f"| {library} | {part} | {sum(row['runs'] for row in rows)} of {len(rows)} | {sum(row['verified'] for row in rows)} | "
                f"{share} | {mean} | {least} |"
            )
    return "\n".join(lines)


def failures(kept: dict[str, Any]) -> list[str]:
    return [
        f"{name} {part}: {row.get('error') or 'wrong: ' + row['wrong']}"
        for name, rows in kept.items()
        for part, row in rows.items()
        if not row["runs"] or not row["verified"]
    ]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--keep", type=Path, help="the results, as JSON; written after every architecture")
    arguments.add_argument("--show", type=Path, help="prints what was kept and runs nothing")
    arguments.add_argument("--only", default="", help="names that begin so")
    arguments.add_argument("--parts", default=",".join(kParts))
    arguments.add_argument("--bound", type=float, default=300, help="seconds for one architecture")
    arguments.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing new begins")
    arguments.add_argument("--measure", action="store_true", help="races too, and times eager beside what answers")
    arguments.add_argument("--again", action="append", default=[], help="runs this one although it was kept")
    asked = arguments.parse_args()
    if asked.show or not asked.keep:
        if not asked.show:
            arguments.error("give --keep or --show")
        kept = json.loads(asked.show.read_text())["rows"]
        print(table(kept), *failures(kept), sep="\n")
        return 0
    from architectures import NAMES

    file: dict[str, Any] = json.loads(asked.keep.read_text()) if asked.keep.exists() else {"schema": "keirin/sweep/1", "rows": {}}
    kept, begin, parts = file["rows"], time.monotonic(), asked.parts.split(",")
    for name in asked.again:
        kept.pop(name, None)
    todo = [name for name in NAMES if name.startswith(asked.only) and not all(part in kept.get(name, {}) for part in parts)]
    for i, name in enumerate(todo):
        if time.monotonic() - begin > asked.budget:
            break
        missing = [part for part in parts if part not in kept.get(name, {})]
        rows = run(name, missing, asked.bound, asked.measure)
        kept.setdefault(name, {}).update(rows)
        asked.keep.write_text(json.dumps(file, indent=1) + "\n")
        words = [
            f"{part} {'ok' if row['verified'] else 'WRONG' if row['runs'] else 'FAILED'} "
            f"{row.get('nodes_compiled', 0)}/{row.get('nodes', 0)}"
            for part, row in rows.items()
        ]
        print(f"{i + 1}/{len(todo)} {name}: " + ", ".join(words), flush=True)
    bad = failures(kept)
    print(table(kept), *bad, sep="\n")
    print(
        f"SWEEP architectures={len(kept)} parts={sum(len(rows) for rows in kept.values())} "
        f"failed={sum(not row['runs'] for rows in kept.values() for row in rows.values())} "
        f"wrong={sum(row['runs'] and not row['verified'] for rows in kept.values() for row in rows.values())}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
