#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs architectures of transformers, timm, torchvision and torch_geometric with random weights through Keirin, a process each, and counts.

    ci/python_tests                                  # once: makes the wheel and installs it into build/python-installed
    bench/sweep/packages                             # once: a venv of its own with the libraries; prints its python
    PYTHONPATH=build/python-installed "$(bench/sweep/packages)" bench/sweep/run.py --keep sweep.json [--only timm/] [--measure]
        [--device cuda] [--tokens 112] [--jobs N]

What is in --keep is not run again (--again NAME forgets a row), so it may be stopped and started at any time, on the machine that it was
begun on and with the libraries of then, which it names. --show prints the tables of a file (docs/figures.md). A process that dies or takes
longer than --bound seconds is a row that says so. With --jobs several run at once, on processors of their own each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from typing import Any

kHere = Path(__file__).resolve().parent
kParts = ("inference", "training", "pt2")


_children: dict[int, None] = {}  # by process, the first of a group of its own


def end(number: int, _: Any) -> None:
    """Ended from outside, it leaves nobody behind who would have the processors of whoever comes next."""
    for child in list(_children):
        with contextlib.suppress(ProcessLookupError):  # just now
            os.killpg(child, signal.SIGKILL)
    os._exit(128 + number)


def answer_of(child: subprocess.Popen[str], bound: float) -> tuple[str, str, str]:
    """What it printed, what it complained of, and how it ended."""
    try:
        out, err = child.communicate(timeout=bound)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return (*child.communicate(), f"not done in {bound:.0f} s")
    name = f" ({signal.Signals(-child.returncode).name})" if child.returncode < 0 else ""
    return out, err, f"the process ended with {child.returncode}{name}"


def run(name: str, parts: list[str], asked: argparse.Namespace, processors: set[int]) -> dict[str, Any]:
    """The rows of one process by part; parts that it did not reach say why."""
    command = ["taskset", "-c", ",".join(map(str, processors)), sys.executable, str(kHere / "one.py"), name, "--parts", ",".join(parts),
               "--device", asked.device]
    command += ["--tokens", str(asked.tokens)] if asked.tokens else []
    command += ["--measure"] if asked.measure else []
    # A cache of its own: what an earlier one found wrong would be left out here unseen.
    with tempfile.TemporaryDirectory(prefix="keirin-sweep-") as cache:
        environment = {**os.environ, "KEIRIN_CACHE": cache}
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
        _children[child.pid] = None
        out, err, ended = answer_of(child, asked.bound)
        del _children[child.pid]
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


def machine(device: str, jobs: int) -> dict[str, Any]:
    """What --keep was begun with. "threads": those of one architecture."""
    names = (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    libraries = ("torch", "keirin", "transformers", "timm", "torchvision", "torch_geometric")
    gpu = {}
    if device == "cuda":
        import torch

        gpu["gpu"] = torch.cuda.get_device_name()
    return {
        "processor": next(names, platform.machine()),
        "threads": len(os.sched_getaffinity(0)) // jobs,
        **gpu,
        **{library: metadata.version(library) for library in libraries},
    }


def refusal(row: dict[str, Any]) -> str:
    """Why the plan that compiles all it can does not answer where another one does; empty: it does."""
    return next((reason for reason in row.get("reasons", []) if reason.split(":")[0] in ("cpu/all", "cuda/all")), "")


def table(kept: dict[str, Any]) -> str:
    measured = any(row.get("gain") for rows in kept.values() for row in rows.values())
    head = ["library", "part", "run", "verified", "nodes compiled", "another plan than that of all"]
    head += ["eager / Keirin, geometric mean", "least"] if measured else []
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    libraries = sorted({name.split("/")[0] for name in kept})
    for library in [*libraries, "all"]:
        for part in kParts:
            rows = [row[part] for name, row in kept.items() if part in row and library in (name.split("/")[0], "all")]
            if not rows:
                continue
            nodes, compiled = (sum(row.get(word, 0) for row in rows) for word in ("nodes", "nodes_compiled"))
            gains = [row["gain"] for row in rows if row.get("gain")]
            cells = [library, part, f"{sum(row['runs'] for row in rows)} of {len(rows)}", str(sum(row["verified"] for row in rows))]
            cells += [f"{compiled} of {nodes}, {compiled / nodes:.1%}" if nodes else "-", str(sum(bool(refusal(row)) for row in rows))]
            if measured:
                cells += [f"{statistics.geometric_mean(gains):.2f}x of {len(gains)}", f"{min(gains):.2f}x"] if gains else ["-", "-"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failures(kept: dict[str, Any]) -> list[str]:
    """Rows of a table: no answer or a wrong one, a plan that was refused, nothing compiled."""
    found = []
    for name, parts in kept.items():
        for part, row in parts.items():
            if not row["runs"] or not row["verified"]:
                what = row.get("error") or "wrong: " + row["wrong"]
            elif refusal(row):
                what = "another plan answers; " + refusal(row)
            elif not row.get("nodes_compiled") and row.get("nodes", 1):
                what = "nothing is compiled: " + "; ".join(row.get("reasons", [])[:2])
            else:
                continue
            found.append(f"| {name} | {part} | {what[:240].replace('|', '/')} |")
    return ["", "| architecture | part | what |", "|---|---|---|", *found] if found else []


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--keep", type=Path, help="the results, as JSON; written after every architecture")
    arguments.add_argument("--show", type=Path, help="prints what was kept and runs nothing")
    arguments.add_argument("--only", default="", help="names that begin so")
    arguments.add_argument("--parts", default=",".join(kParts))
    arguments.add_argument("--bound", type=float, default=300, help="seconds for one architecture")
    arguments.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing new begins")
    arguments.add_argument("--measure", action="store_true", help="races too, and times eager beside what answers")
    arguments.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments.add_argument("--tokens", type=int, help="of a text, if not as many as usual")
    arguments.add_argument("--jobs", type=int, default=1, help="architectures at a time; processors are dealt out among them")
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
    here = machine(asked.device, asked.jobs) | ({"tokens": asked.tokens} if asked.tokens else {})
    if file.setdefault("machine", here) != here:
        print(f"{asked.keep} was begun with {file['machine']}, here is {here}: keep these rows in another file", file=sys.stderr)
        return 2
    kept, begin, parts = file["rows"], time.monotonic(), asked.parts.split(",")
    for name in asked.again:
        kept.pop(name, None)
    todo = [name for name in NAMES if name.startswith(asked.only) and not all(part in kept.get(name, {}) for part in parts)]
    free: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    every_processor = sorted(os.sched_getaffinity(0))
    for job in range(asked.jobs):
        share = len(every_processor) // asked.jobs
        free.put(set(every_processor[job * share:(job + 1) * share]))

    def rows_of(name: str) -> dict[str, Any] | None:
        if time.monotonic() - begin > asked.budget:
            return None
        processors = free.get()
        try:
            return run(name, [part for part in parts if part not in kept.get(name, {})], asked, processors)
        finally:
            free.put(processors)

    with ThreadPoolExecutor(asked.jobs) as pool:
        running: dict[Future[dict[str, Any] | None], str] = {pool.submit(rows_of, name): name for name in todo}
        for i, done in enumerate(as_completed(running)):
            name, rows = running[done], done.result()
            if rows is None:
                continue
            kept.setdefault(name, {}).update(rows)
            written = asked.keep.with_name(asked.keep.name + ".new")
            written.write_text(json.dumps(file, indent=1) + "\n")
            written.replace(asked.keep)  # whole, whenever this is stopped
            words = [
                f"{part} {'ok' if row['verified'] else 'WRONG' if row['runs'] else 'FAILED'} "
                f"{row.get('nodes_compiled', 0)}/{row.get('nodes', 0)}"
                for part, row in rows.items()
            ]
            print(f"{i + 1}/{len(todo)} {name}: " + ", ".join(words), flush=True)
    print(table(kept), *failures(kept), sep="\n")
    every = [row for rows in kept.values() for row in rows.values()]
    failed, wrong = sum(not row["runs"] for row in every), sum(row["runs"] and not row["verified"] for row in every)
    print(f"SWEEP architectures={len(kept)} of {len(NAMES)} parts={len(every)} failed={failed} wrong={wrong}")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
