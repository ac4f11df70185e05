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


print("| model | eager ms | Keirin | Inductor | over the better of both | nodes compiled | answered by |")
print("|---|---|---|---|---|---|---|")
for row in rows:
    lead = row["keirin"]["gain"] / max(1, row["inductor"]["gain"]) if "inductor" in row else row["keirin"]["gain"]
    print(
        f"| {row['model']} | {row['eager_ms']:.3f} | {ratio(row, 'keirin')} | {ratio(row, 'inductor')} | {lead:.2f}x | "
        f"{row['nodes_compiled']}/{row['nodes']} | "
        f"{', '.join(row['answered_by']) or 'eager'} |"
    )
for how in ("keirin", "inductor"):
    gains = [row[how]["gain"] for row in rows if how in row]
    if gains:
        print(
            f"\n{how}: geometric mean over {len(gains)} models {math.exp(sum(map(math.log, gains)) / len(gains)):.2f}x of eager, "
            f"least {min(gains):.2f}x"
        )
