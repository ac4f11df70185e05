# SPDX-License-Identifier: Apache-2.0
"""Prints a results file of `keirin bench --json`, or Keirin's rows of one of `bench/peers/run.py`, as a Markdown table of docs/figures.md:

    python bench/results/table.py FILE
    python bench/results/table.py --limits FILE    how far each is from what the machine allows, the most lost milliseconds first
"""
import json
import math
import sys

rows = [r.get("keirin", r) for r in json.load(open(sys.argv[-1]))["rows"]]
for r in rows:
    if r.get("disturbed"):
        print(f"{r['model']} has no figures, its race was disturbed: {r['disturbed']}", file=sys.stderr)
rows = [r for r in rows if not r.get("disturbed")]
mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
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
