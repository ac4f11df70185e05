#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `keirin bench` with a plugin whose compile dies or hangs beside the good ones: it ends right, names the plugin, and the next start
# does not try it again. One whose run dies takes the process along, once. Usage: bench_survives.sh KEIRIN FAULTS_DIR
set -euo pipefail

keirin=$1
faults=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "bench_survives: $*" >&2; exit 1; }

for fault in crash_compile hang_compile; do
  for start in first next; do
    "$keirin" bench mlp --quiet --plugin "$faults/$fault" --cache "$work/$fault" --compile-deadline 3 --json "$work/report.json" \
      > "$work/table" || fail "$fault, $start start: exit $?"
    python3 - "$work/report.json" "$fault" "$start" << 'PYTHON' || fail "$fault, $start start: the report is not as it should be"
import json, sys
path, fault, start = sys.argv[1:]
(row,) = json.load(open(path))["rows"]
assert row["verified"], row
mine = [c for c in row["candidates"] if c["name"].startswith(fault)]
assert mine and all(c["reason"] in ("compile_failed", "deadline", "quarantined") for c in mine), mine
if start == "next":
    assert all(c["reason"] == "quarantined" for c in mine), mine
tried = [r for r in row["reasons"] if "is not tried again" in r]
assert len(tried) == (1 if start == "first" else 0) and all(fault in r for r in tried), row["reasons"]
print(f"{fault}, {start} start: {mine[0]['reason']}: {mine[0]['note']}; chosen: {row['chosen']}")
PYTHON
  done
  "$keirin" plugins --why --plugin "$faults/$fault" --cache "$work/$fault" | grep -A3 "^$fault " | grep "quarantined: region" ||
    fail "keirin plugins --why does not name $fault"
  "$keirin" cache --cache "$work/$fault" bad | grep "^$fault " > /dev/null || fail "keirin cache bad does not list $fault"
  "$keirin" cache --cache "$work/$fault" forgive "$fault" > /dev/null
  "$keirin" cache --cache "$work/$fault" bad | grep "^0 in quarantine" > /dev/null || fail "keirin cache forgive left something"
done

export KEIRIN_FAULT_SWITCH=$work/switch
printf crash > "$KEIRIN_FAULT_SWITCH"
bench=("$keirin" bench mlp --quiet --plugin "$faults/switched_run" --cache "$work/run")
("${bench[@]}" || false) > /dev/null 2>&1 && fail "switched_run: the fault was not injected"
"${bench[@]}" --json "$work/report.json" > /dev/null || fail "switched_run, next start: exit $?"
python3 - "$work/report.json" << 'PYTHON' || fail "switched_run, next start: the report is not as it should be"
import json, sys
(row,) = json.load(open(sys.argv[1]))["rows"]
assert row["verified"], row
found = [r for r in row["reasons"] if r.startswith("switched_run: took its process down in krn.exec.run")]
assert len(found) == 1, row["reasons"]
print("switched_run, next start:", found[0], "; chosen:", row["chosen"])
PYTHON
