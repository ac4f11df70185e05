#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The reports that keirin matrix writes as JSON are what their published schema says, and what they are not is refused by it. 77 without
# Python's jsonschema.
. "$(dirname "$0")/begin.sh"
python3 -c 'import jsonschema' 2> /dev/null || { echo "skipped: Python's jsonschema is not here"; exit 77; }
schema=$(dirname "$keirin")/share/keirin/schemas/matrix-1.json
[ -e "$schema" ] || schema=$(dirname "$keirin")/../share/keirin/schemas/matrix-1.json
cases_of alpha beta gamma > set
stand_in one --build one
stand_in mixed --build two --slow alpha=1.3 --lacks beta --factor 0.9
words="--set ./set --gate 2 --quiet"
# shellcheck disable=SC2086
{
  "$keirin" matrix compare --base ./one --head ./mixed --variants auto $words --json compare.json --store compare
  "$keirin" matrix compare --base ./one --head ./mixed --variants auto $words --counts-only --json counts.json --store counts
  "$keirin" matrix compare --base ./one --head ./one --cases "$(case_of alpha)" --variants auto $words --cold --json cold.json --store cold
  "$keirin" matrix run --head ./one --variants replay,auto,compiled:cpu $words --json run.json --store run
  "$keirin" matrix run --head ./one --variants auto $words --budget 0.01 --json cut-off.json --store cut-off
} > out 2> err
python3 - "$schema" << 'PYTHON' || fail "reports and schema"
import copy, json, sys
import jsonschema

schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
check = jsonschema.Draft202012Validator(schema)
labels, fields = set(), set()
for name in ("compare", "counts", "cold", "run", "cut-off"):
    report = json.load(open(f"{name}.json"))
    for fault in check.iter_errors(report):
        sys.exit(f"{name}: {fault.json_path}: {fault.message}")
    labels |= {cell["label"] for cell in report["cells"]}
    known = schema["properties"].keys() | schema["$defs"]["cell"]["properties"].keys()
    assert not (unknown := (report.keys() | report["cells"][0].keys()) - known), f"not in the schema: {unknown}"
    for field in schema["required"]:
        assert not check.is_valid({k: v for k, v in report.items() if k != field}), f"a report without {field} was taken"
    for field in schema["$defs"]["cell"]["required"]:
        other = copy.deepcopy(report)
        del other["cells"][0][field]
        assert not check.is_valid(other), f"a cell without {field} was taken"
    for field, value in (("label", "fine"), ("ratio", -1), ("blocks", 1.5), ("gated", "yes"), ("ratio_ci", [1])):
        other = copy.deepcopy(report)
        other["cells"][0][field] = value
        assert not check.is_valid(other), f"a cell whose {field} is {value} was taken"
assert {"regressed", "improved", "unchanged", "invalid", "not_run"} <= labels, labels
PYTHON
exit $failed
