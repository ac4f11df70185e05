# SPDX-License-Identifier: Apache-2.0
"""Prints what `bench/python/training_step.py --json` kept as a Markdown table of docs/figures.md:

python bench/results/training.py FILE
"""

import json
import math
import sys

rows = json.load(open(sys.argv[1]))["rows"]


def ratio(row: dict, how: str) -> str:
    return f"{row[how]['gain']:.2f}x [{row[how]['low']:.2f}, {row[how]['high']:.2f}]" if how in row else "-"


peers = sorted({how for row in rows for how in row if how.startswith("inductor")}) or ["inductor"]
heads = ["model", "eager ms", "Keirin", *(each.capitalize() for each in peers), "over the better of all", "nodes compiled", "answered by"]
print("| " + " | ".join(heads) + " |")
print("|---" * len(heads) + "|")
def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


leads = [row["keirin"]["gain"] / max([1, *(row[how]["gain"] for how in peers if how in row)]) for row in rows]
for row, lead in zip(rows, leads):
    print(
        f"| {row['model']} | {row['eager_ms']:.3f} | {ratio(row, 'keirin')} | "
        + " | ".join(ratio(row, how) for how in peers)
        + f" | {lead:.2f}x | "
        f"{row['nodes_compiled']}/{row['nodes']} | "
        f"{', '.join(row['answered_by']) or 'eager'} |"
    )
for how in ("keirin", *peers):
    gains = [row[how]["gain"] for row in rows if how in row]
    if gains:
        print(f"\n{how}: geometric mean over {len(gains)} models {mean(gains):.2f}x of eager, least {min(gains):.2f}x")
print(f"\nkeirin over the better of all: {mean(leads):.2f}x, least {min(leads):.2f}x")
