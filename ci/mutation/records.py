# SPDX-License-Identifier: Apache-2.0
"""What is known of mutants: one JSON line each, the verdicts of tests/mutants/judged.txt, and the table that both give."""
import collections
import json
from pathlib import Path

kRoot = Path(__file__).resolve().parent.parent.parent
kKept = kRoot / "tests/mutants/results.jsonl"
kJudged = kRoot / "tests/mutants/judged.txt"


def read_records(paths: list[Path]) -> dict[str, dict]:
    records: dict[str, dict] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            records[record["id"]] = record
    return records


def read_judged() -> dict[str, tuple[str, str]]:
    judged = {}
    for line in kJudged.read_text().splitlines() if kJudged.exists() else []:
        if line and not line.startswith("#"):
            mark, verdict, reason = line.split(maxsplit=2)
            assert verdict in ("equal", "tested"), line
            judged[mark] = (verdict, reason)
    return judged


def table(records: dict[str, dict]) -> str:
    """By folder. Who survives and was judged counts as judged; who was reached by no test is among the survivors and counted again."""
    judged = read_judged()
    rows: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for mark, r in records.items():
        ended = judged[mark][0] if r["ended"] == "survived" and mark in judged else r["ended"]
        for row in (str(Path(r["file"]).parent), "all"):
            rows[row][ended] += 1
            rows[row]["not reached"] += ended == "survived" and r.get("reached") == 0
    out = ["| folder | drawn | killed | survived | of these not reached | equal | tested elsewhere | not compiled "
           "| killed of those that differ |",
           "|---|---|---|---|---|---|---|---|---|"]
    for folder in sorted(rows, key=lambda f: (f == "all", f)):
        c = rows[folder]
        drawn = c["killed"] + c["survived"] + c["equal"] + c["tested"]
        differ = drawn - c["equal"]
        share = f"{100 * (c['killed'] + c['tested']) / differ:.0f} %" if differ else "-"
        out.append(f"| {folder} | {drawn} | {c['killed']} | {c['survived']} | {c['not reached']} | {c['equal']} | {c['tested']} | "
                   f"{c['not compiled']} | {share} |")
    return "\n".join(out)
