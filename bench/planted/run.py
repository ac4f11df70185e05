# SPDX-License-Identifier: Apache-2.0
"""Does `keirin matrix compare` find a loss that was planted, and nothing else? Compares a build with planted bugs with itself, once with a
spin in its compiled regions (on a GPU: in its generated kernels), once without, again and again, alone and beside a load of
bench/disturbed:

    cmake --preset planted && cmake --build --preset planted --target keirin_command keirin-worker keirin_cpu
    python bench/planted/run.py --keirin build-planted/keirin --repeats 5 --json planted.json

A build with `-DKEIRIN_CUDA=ON` and the target keirin_cuda does the same with `--device cuda --plugin cuda`, where `--sizes full` of a
model is a case whose kernels are long enough.

A spin is found if its cell is called `regressed` and the cell of eager, which has no regions, is not. The same binary twice may be called
`unchanged` or `inconclusive`; `invalid` where others had the processor says nothing either way and is counted by itself, as is a spin
that is left `undecided`. Ends with 1 if a spin was missed or undecided, or something was called that is not there. With the machine to
itself, but for the load.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

kRoot = Path(__file__).resolve().parents[2]


def load_of(kind: str, processes: int):
    if kind == "none":
        return contextlib.nullcontext()
    spec = importlib.util.spec_from_file_location("disturbed", kRoot / "bench/disturbed/run.py")
    disturbed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(disturbed)
    return disturbed.Load(kind, processes)


def compared(options, folder: str, percent: int) -> dict[str, dict]:
    """The cells of a sitting by variant: a build without the spin against one with it. 0: without as well."""
    plain, head = Path(folder) / "plain", Path(folder) / "head"
    program = Path(options.keirin).resolve()
    without = "-u KEIRIN_PLANTED"
    spins = f"KEIRIN_PLANTED=slow_region KEIRIN_PLANTED_PERCENT={percent}" if percent else without
    for path, environment in ((plain, without), (head, spins)):
        path.write_text(f'#!/bin/sh\nexec env {environment} "{program}" "$@"\n')
        path.chmod(0o755)
    case = Path(folder) / "case"
    case.write_text(f"{options.model}/{options.sizes}/{options.dtype}/infer/single/default\n")
    compiled = f"compiled:{options.plugin}"
    report = Path(folder) / "report.json"
    report.unlink(missing_ok=True)
    subprocess.run([program, "matrix", "compare", "--base", plain, "--head", head, "--set", case, "--device", options.device,
                    "--variants", f"eager,{compiled}" if percent and options.eager else compiled, "--threads", str(options.threads),
                    "--gate", str(options.gate), "--store", Path(folder) / "store", "--json", report, "--quiet"],
                   stdout=subprocess.DEVNULL, check=False)
    return {cell["variant"].split(":")[0]: cell for cell in json.loads(report.read_text())["cells"]}


def verdict(cells: dict[str, dict], percent: int) -> str:
    labels = {variant: cell["label"] for variant, cell in cells.items()}
    if any(label in ("regressed", "improved") for variant, label in labels.items() if not percent or variant == "eager"):
        return "false"
    if not percent:
        return labels["compiled"]
    return {"regressed": "found", "invalid": "disturbed", "inconclusive": "undecided"}.get(labels["compiled"], "missed")


kHead = "| load | head | verdicts | ratios | seconds |\n|---|---|---|---|---|"


def line_of(row: dict) -> str:
    ratios = ", ".join(f"{ratio:.3f}" if ratio else "-" for ratio in row["ratios"])
    head = f"spins {row['percent']} %" if row["percent"] else "the same"
    return f"| {row['load']} | {head} | {', '.join(row['verdicts'])} | {ratios} | {sum(row['seconds']):.0f} |"


def ended(result: dict) -> int:
    said = [v for row in result["rows"] for v in row["verdicts"]]
    words = ("found", "missed", "undecided", "disturbed", "false", "unchanged", "inconclusive", "invalid")
    print("\n" + "; ".join(f"{word}: {said.count(word)}" for word in words))
    return 1 if {"missed", "undecided", "false"} & set(said) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keirin", help="the keirin command of a build with planted bugs")
    parser.add_argument("--show", metavar="FILE", help="print the table of a file of --json again")
    parser.add_argument("--model", default="gcn", help="of bench/zoo")
    parser.add_argument("--sizes", default="small")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plugin", default="cpu")
    parser.add_argument("--percent", type=int, default=10, help="of a region's time that it spins")
    parser.add_argument("--gate", type=float, default=3, help="per cent")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loads", default="none,stop-and-go")
    parser.add_argument("--processes", type=int, default=2, help="of a load")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-eager", dest="eager", action="store_false",
                        help="without the cell that a spin has to leave alone: half the time")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.show:
        result = json.loads(Path(options.show).read_text())
        print(kHead, *map(line_of, result["rows"]), sep="\n")
        return ended(result)
    if not options.keirin:
        parser.error("--keirin or --show is needed")
    result = {"schema": "keirin/planted/1", "cores": os.cpu_count(), "rows": []}
    names = ("model", "sizes", "dtype", "device", "plugin", "percent", "gate", "threads", "processes")
    result |= {name: getattr(options, name) for name in names}
    print(kHead)
    for load in options.loads.split(","):
        for percent in (options.percent, 0):
            row = {"load": load, "percent": percent, "verdicts": [], "ratios": [], "intervals": [], "seconds": []}
            for _ in range(options.repeats):
                begin = time.monotonic()
                with tempfile.TemporaryDirectory() as folder, load_of(load, options.processes):
                    cells = compared(options, folder, percent)
                row["verdicts"].append(verdict(cells, percent))
                row["ratios"].append(cells["compiled"]["ratio"])
                row["intervals"].append(cells["compiled"]["ratio_ci"])
                row["seconds"].append(round(time.monotonic() - begin, 1))
                print(*(f"{name[:-1]} {row[name][-1]}" for name in row if name.endswith("s")), file=sys.stderr, flush=True)
            result["rows"].append(row)
            print(line_of(row), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return ended(result)


if __name__ == "__main__":
    sys.exit(main())
