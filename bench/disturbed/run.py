# SPDX-License-Identifier: Apache-2.0
"""Are figures true on a machine that is not quiet? Runs `keirin bench` alone, then again and again beside loads, and compares:

    python bench/disturbed/run.py --keirin build/keirin --runs 20 --json disturbed.json

Loads, of two processes unless --processes says otherwise: `busy` never rests; `stop-and-go` runs for 100 ms, then rests
for 100 ms. A published speedup that is more than --allowed away from the quiet one is wrong; a row that says `disturbed` is not.
Ends with 1 if any is wrong. With the machine to itself.
"""
import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = ["mlp", "gcn", "gat", "lstm", "dlrm", "decoder_decode", "ppo_vit"]
LOADS = {"busy": (1.0, 0.0), "stop-and-go": (0.1, 0.1)}


def spin(on: float, off: float) -> None:
    while True:
        end = time.perf_counter() + on
        while time.perf_counter() < end:
            pass
        if off:
            time.sleep(off)


class Load:
    """So many processes, in step, for as long as the block lasts."""

    def __init__(self, kind: str, count: int):
        on, off = LOADS[kind]
        self.processes = [multiprocessing.Process(target=spin, args=(on, off), daemon=True) for _ in range(count)]

    def __enter__(self):
        for process in self.processes:
            process.start()

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()


def bench(options, models: list[str], cache: str) -> dict[str, dict]:
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.keirin, "bench", *models, "--threads", str(options.threads), "--race-limit", str(options.race_limit), "--quiet",
                   "--cache", cache, "--json", out.name] + options.keirin_option
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.load(open(out.name))
        options.machine = report["machine"]
        return {row["model"]: row for row in report["rows"]}


def judged(quiet: float, row: dict, allowed: float) -> str:
    if row["disturbed"]:
        return "disturbed"
    return "wrong" if abs(math.log(row["speedup"] / quiet)) > math.log1p(allowed) else "published"


def row_of(model: str, load: str, quiet: float, rows: list[dict], allowed: float) -> dict:
    verdicts = [judged(quiet, row, allowed) for row in rows]
    return {"model": model, "load": load, "quiet": quiet, "figures": [row["speedup"] for row in rows if not row["disturbed"]],
            "runs": len(rows), "disturbed": verdicts.count("disturbed"), "wrong": verdicts.count("wrong"),
            "reasons": sorted({row["disturbed"] for row in rows if row["disturbed"]})}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=SMALL, help="zoo models or .pt2 files")
    parser.add_argument("--keirin", required=True, help="the keirin command")
    parser.add_argument("--keirin-option", action="append", default=[], help="passed on to keirin bench")
    parser.add_argument("--runs", type=int, default=20, help="runs beside each load")
    parser.add_argument("--quiet-runs", type=int, default=3, help="runs alone, whose median is the truth")
    parser.add_argument("--loads", default="busy,stop-and-go")
    parser.add_argument("--processes", type=int, default=2, help="of a load")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--race-limit", type=float, default=30)
    parser.add_argument("--allowed", type=float, default=0.15)
    parser.add_argument("--json")
    options = parser.parse_args()
    models = options.models
    result = {"schema": "keirin/disturbed/1", "cores": os.cpu_count(), "threads": options.threads, "allowed": options.allowed, "rows": []}
    with tempfile.TemporaryDirectory() as cache:
        alone = [bench(options, models, cache) for _ in range(options.quiet_runs)]
        quiet = {}
        for model in models:
            told = [run[model]["speedup"] for run in alone if not run[model]["disturbed"]]
            if told:
                quiet[model] = statistics.median(told)
            else:
                print(f"{model}: the machine is not quiet: {alone[0][model]['disturbed']}", file=sys.stderr)
        runs = {(model, load): [] for load in options.loads.split(",") for model in quiet}
        for _ in range(options.runs):  # in turns: what the machine itself does meanwhile meets every load
            for load in options.loads.split(","):
                with Load(load, options.processes):
                    run = bench(options, list(quiet), cache)
                for model in quiet:
                    runs[model, load].append(run[model])
            result["rows"] = [row_of(model, load, quiet[model], rows, options.allowed) for (model, load), rows in runs.items()]
            result["machine"] = options.machine
            if options.json:  # after every turn: a run that is cut short loses nothing
                Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    print("| model | load | quiet | published | lowest | highest | said disturbed | wrong |\n|---|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        ends = [f"{end(row['figures']):.2f}x" for end in (min, max)] if row["figures"] else ["-", "-"]
        print(f"| {row['model']} | {row['load']} | {row['quiet']:.2f}x | {len(row['figures'])} of {row['runs']} | {ends[0]} | {ends[1]} | "
              f"{row['disturbed']} | {row['wrong']} |")
    wrong = sum(row["wrong"] for row in result["rows"])
    print(f"wrong figures: {wrong} of {sum(row['runs'] for row in result['rows'])} rows; "
          f"models that were not quiet alone: {len(models) - len(quiet)}")
    return 1 if wrong or len(quiet) < len(models) else 0


if __name__ == "__main__":
    sys.exit(main())
