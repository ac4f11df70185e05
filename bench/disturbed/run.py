# SPDX-License-Identifier: Apache-2.0
"""Are figures true on a machine that is not quiet? Runs `keirin bench` alone and beside loads, in turns, and compares:

    python bench/disturbed/run.py --keirin build/keirin --runs 20 --json disturbed.json

Loads, of two processes unless --processes says otherwise: `busy` never rests; `stop-and-go` runs for 100 ms, then rests
for 100 ms. A published speedup is wrong that is more than --allowed above the greater or below the lesser of two that were published
alone, the last one before it and the first one after it where the machine's processors were as far apart (`processors_apart_ns`: a
hypervisor moves them). A row that says `disturbed` is not wrong. Ends with 1 if any is wrong. With the machine to itself.
"""
import argparse
import collections
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from place import same_place

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


Figure = tuple[float, int | None]  # a speedup, and how far apart the processors were


def figure(row: dict) -> Figure | None:
    return None if row["disturbed"] else (row["speedup"], row["processors_apart_ns"])


def judged(before: list[dict], after: list[dict], row: dict, allowed: float) -> str:
    """`before`, `after`: the runs alone, in time."""
    if row["disturbed"]:
        return "disturbed"
    sides = [[each["speedup"] for each in side if not each["disturbed"] and same_place(each, row)] for side in (before[::-1], after)]
    quiet = [told[0] for told in sides if told]
    if not quiet:
        return "no figure alone"
    return "published" if min(quiet) / (1 + allowed) <= row["speedup"] <= max(quiet) * (1 + allowed) else "wrong"


def row_of(model: str, load: str, alone: list[dict], rows: list[dict], before: list[int], allowed: float) -> dict:
    """`before`: of each row, how many runs alone came before it."""
    verdicts = [judged(alone[:count], alone[count:], row, allowed) for count, row in zip(before, rows)]
    return {"model": model, "load": load, "alone": [figure(row) for row in alone], "figures": [figure(row) for row in rows],
            "verdicts": verdicts, "reasons": sorted({row["disturbed"] for row in rows if row["disturbed"]})}


def ends(figures: list[Figure | None]) -> str:
    told = [told[0] for told in figures if told]
    return f"{min(told):.2f}x to {max(told):.2f}x" if told else "-"


def show(rows: list[dict]) -> int:
    """Their table; whether any is wrong, or has nothing to be compared with."""
    print("| model | load | alone | beside it | published | said disturbed | no figure alone | wrong |\n|---|---|---|---|---|---|---|---|")
    verdicts: collections.Counter[str] = collections.Counter()
    for row in rows:
        of = collections.Counter(row["verdicts"])
        verdicts += of
        print(f"| {row['model']} | {row['load']} | {ends(row['alone'])} | {ends(row['figures'])} | {of['published']} | "
              f"{of['disturbed']} | {of['no figure alone']} | {of['wrong']} |")
    print(f"\nWrong figures: {verdicts['wrong']} of {verdicts.total()} rows; none alone to compare with: {verdicts['no figure alone']}.")
    return 1 if verdicts["wrong"] or verdicts["no figure alone"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=SMALL, help="zoo models or .pt2 files")
    parser.add_argument("--keirin", help="the keirin command")
    parser.add_argument("--show", help="prints the table of such a file and runs nothing")
    parser.add_argument("--keirin-option", action="append", default=[], help="passed on to keirin bench")
    parser.add_argument("--runs", type=int, default=20, help="runs beside each load")
    parser.add_argument("--loads", default="busy,stop-and-go")
    parser.add_argument("--processes", type=int, default=2, help="of a load")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--race-limit", type=float, default=30)
    parser.add_argument("--allowed", type=float, default=0.15)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.show:
        return show(json.load(open(options.show))["rows"])
    if not options.keirin:
        parser.error("--keirin is missing")
    models = options.models
    result = {"schema": "keirin/disturbed/2", "cores": os.cpu_count(), "threads": options.threads, "allowed": options.allowed, "rows": []}
    with tempfile.TemporaryDirectory() as cache:
        bench(options, models, cache)  # decided once, what follows times what was compiled then
        alone = [bench(options, models, cache)]
        runs = {(model, load): [] for load in options.loads.split(",") for model in models}
        before: list[int] = []
        for _ in range(options.runs):
            before.append(len(alone))
            published = False
            for load in options.loads.split(","):
                with Load(load, options.processes):
                    run = bench(options, models, cache)
                for model in models:
                    runs[model, load].append(run[model])
                    published |= not run[model]["disturbed"]
            if published:  # else there is nothing to compare
                alone.append(bench(options, models, cache))
            result["rows"] = [row_of(model, load, [run[model] for run in alone], rows, before, options.allowed)
                              for (model, load), rows in runs.items()]
            result["machine"] = options.machine
            if options.json:  # after every turn: a run that is cut short loses nothing
                Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return show(result["rows"])


if __name__ == "__main__":
    sys.exit(main())
