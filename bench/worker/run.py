#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What worker mode costs: calls of one plan in this process and in a worker, in turns, each by a process of its own.

    cmake --build build --target keirin_worker_cost
    bench/worker/run.py build/keirin_worker_cost [--device cuda] [--callers 4] [--rounds 5] [MODEL.pt2 ...]

A row: the bytes that are copied in a call, the median time of a call by one caller here and there, what is left of the difference after
the copies (at the rate at which this machine copies so many bytes), and calls per second by several callers at once.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path


def measure(program: str, where: str, model: str, callers: int, device: str) -> dict:
    run = subprocess.run([program, where, model, str(callers), device], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{program} {where} {model}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def main() -> None:
    small = Path(__file__).resolve().parent.parent / "zoo/models/small"
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("program")
    words.add_argument("models", nargs="*", default=[str(small / f"{name}.pt2") for name in ("mlp", "decoder_decode", "dlrm", "unet")])
    words.add_argument("--device", default="cpu")
    words.add_argument("--callers", type=int, default=4)
    words.add_argument("--rounds", type=int, default=5)
    args = words.parse_intermixed_args()
    print("| model | KiB | here us | worker us | more us | beyond copies us | calls/s here | calls/s worker |")
    print("|---|---|---|---|---|---|---|---|")
    for model in args.models:
        found = {"process": [], "worker": []}
        for turn in range(args.rounds):
            for where in ("process", "worker") if turn % 2 == 0 else ("worker", "process"):
                found[where].append(measure(args.program, where, model, args.callers, args.device))
        middle = {where: {key: statistics.median(row[key] for row in rows) for key in ("call_us", "copy_us", "calls_per_s")}
                  for where, rows in found.items()}
        one, here, there = found["worker"][0], middle["process"], middle["worker"]
        more = there["call_us"] - here["call_us"]
        print(f"| {Path(model).stem} | {one['bytes'] / 1024:.1f} | {here['call_us']:.1f} | {there['call_us']:.1f} | "
              f"{more:.1f} | {more - there['copy_us']:.1f} | {here['calls_per_s']:.0f} | {there['calls_per_s']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
