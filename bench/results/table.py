# SPDX-License-Identifier: Apache-2.0
"""Prints a results file of `keirin bench --json`, or Keirin's rows of one of `bench/peers/run.py`, as a Markdown table of docs/figures.md:

    python bench/results/table.py FILE
    python bench/results/table.py --limits FILE    how far each is from what the machine allows, the most lost milliseconds first
    python bench/results/table.py --twice FIRST SECOND    two sittings of the same models beside each other
    python bench/results/table.py --sizes FILE    traffic of changing sizes, of keirin_sizes and bench/dynamic/peers.py
"""
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from place import same_place


def rows_of(path: str) -> list[dict]:
    rows = [r.get("keirin", r) for r in json.load(open(path))["rows"]]
    for r in rows:
        if r.get("disturbed"):
            print(f"{r['model']} has no figures, its race was disturbed: {r['disturbed']}", file=sys.stderr)
    return [r for r in rows if not r.get("disturbed")]


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def twice(first: list[dict], second: list[dict]) -> None:
    """The model whose two speedups differ most comes first. One that was disturbed in one sitting is in the other's mean alone."""
    again = {r["model"]: r for r in second}
    both = [(r, again[r["model"]]) for r in first if r["model"] in again]
    away = lambda pair: abs(math.log(pair[1]["speedup"] / pair[0]["speedup"]))
    print("| model | over the baseline | again | chosen ms | again | processors apart ns | again | chosen | again |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r, s in sorted(both, key=away, reverse=True):
        apart = [str(row.get("processors_apart_ns") or "-") for row in (r, s)]
        print(f"| {r['model']} | {r['speedup']:.2f}x | {s['speedup']:.2f}x | {r['chosen_ms']:.3f} | {s['chosen_ms']:.3f} | {apart[0]} | "
              f"{apart[1]} | {r['chosen']} | {s['chosen'] if s['chosen'] != r['chosen'] else 'the same'} |")
    means = [f"{mean([r['speedup'] for r in rows]):.2f}x over {len(rows)} models, {min(r['speedup'] for r in rows):.2f}x at least, "
             f"{sum(r['nodes_compiled'] for r in rows) / sum(r['nodes'] for r in rows):.1%} of the operators compiled, "
             f"{sum(r['verified'] for r in rows)} verified".replace("%", " %") for rows in (first, second)]
    here = [pair for pair in both if same_place(*pair)]
    near = lambda pairs: f"{sum(away(pair) <= math.log(1.05) for pair in pairs)} of {len(pairs)}"
    print(f"\nGeometric means: {means[0]}; again {means[1]}. Within 5 %: {near(both)}; of those whose processors were in one place, {near(here)}.")


def sizes(path: str) -> None:
    print("| model | side | calls | s | eager s | over eager | p99 of a call over eager's | answers not eager's | by a plan |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in json.load(open(path))["rows"]:
        k = row["keirin"]
        ours = {"peer": "keirin", "s": k["ms"] / 1e3, "eager_s": k["eager_ms"] / 1e3, "ratio": k["eager_ms"] / k["ms"], **k}
        for side in [ours, *row["peers"]]:
            print(f"| {row['model']} | {side['peer']} | {side['calls']} | {side['s']:.2f} | {side['eager_s']:.2f} | {side['ratio']:.3f}x | "
                  f"{side['p99_over_eager']:.2f} | {side['wrong']} | {side.get('by_plan', '-')} |")


if sys.argv[1] == "--sizes":
    sizes(sys.argv[2])
    sys.exit()
if sys.argv[1] == "--twice":
    twice(rows_of(sys.argv[2]), rows_of(sys.argv[3]))
    sys.exit()
rows = rows_of(sys.argv[-1])
if sys.argv[1] == "--limits":
    print("| model | limit ms | eager ms | of the limit | chosen ms | of the limit | lost ms |\n|---|---|---|---|---|---|---|")
    for r in sorted(rows, key=lambda r: r["limit_ms"] - r["chosen_ms"]):
        print(f"| {r['model']} | {r['limit_ms']:.3f} | {r['eager_ms']:.3f} | {r['limit_ms'] / r['eager_ms']:.0%} | {r['chosen_ms']:.3f} | "
              f"{r['share_of_limit']:.0%} | {r['chosen_ms'] - r['limit_ms']:.3f} |".replace("%", " %"))
    print(f"\nGeometric means over {len(rows)} models: eager reaches {mean([r['limit_ms'] / r['eager_ms'] for r in rows]):.0%} of the limit, "
          f"what was chosen {mean([r['share_of_limit'] for r in rows]):.0%}.".replace("%", " %"))
    sys.exit()
print("| model | eager ms | eager + replay ms | chosen ms | over eager | over the baseline [95 %] | chosen | error (eager's) |")
print("|---|---|---|---|---|---|---|---|")
for r in rows:
    replay = f"{r['eager_replay_ms']:.3f}" if r["eager_replay_ms"] else "-"
    print(f"| {r['model']} | {r['eager_ms']:.3f} | {replay} | {r['chosen_ms']:.3f} | {r['eager_ms'] / r['chosen_ms']:.2f}x | "
          f"{r['speedup']:.2f}x [{r['speedup_ci'][0]:.2f}, {r['speedup_ci'][1]:.2f}] | {r['chosen']} | "
          f"{r['max_error']:.1e} ({r['eager_error']:.1e}) |")
print(f"\nGeometric means over {len(rows)} models: {mean([r['eager_ms'] / r['chosen_ms'] for r in rows]):.2f}x over eager, "
      f"{mean([r['speedup'] for r in rows]):.2f}x over the baseline; verified: {sum(r['verified'] for r in rows)} of {len(rows)}.")
