#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `keirin explain --imagine SET --dump-launches DIR` writes is what docs/launches.md says: code objects with the kernels that are
# launched, arguments that lie in the buffers' files, results that are expected. Whether the code is right a simulator says (ci/rocm).
# Arguments: the command, a model of several generated kernels. 77 where nothing compiles for the sets.
set -uo pipefail
keirin=$1 model=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for set in gfx1100 gfx942; do
  "$keirin" explain "$model" --imagine $set --dump-launches "$folder/$set" --only-plugin rocm --force compiled --race-limit 0 \
    > "$folder/out" 2>&1
  code=$?
  if grep -q 'is not installed\|no device library\|does not know' "$folder/out"; then cat "$folder/out"; exit 77; fi
  [ $code -eq 0 ] || { echo "exit code $code"; cat "$folder/out"; exit 1; }
  python3 - "$folder/$set" $set << 'PYTHON' || exit 1
import json, pathlib, sys
folder, arch = pathlib.Path(sys.argv[1]), sys.argv[2]
sizes = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}
launches = json.loads((folder / "launches.json").read_text())["launches"]
made, expected, blank = {}, 0, set()


def buffers(arg):
    if "struct" in arg:
        for each in arg["struct"]:
            yield from buffers(each)
    elif "buffer" in arg:
        yield arg


for launch in launches:
    code = (folder / launch["code"]).read_bytes()
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 224, "not a code object of an AMD GPU"
    assert launch["kernel"].encode() + b".kd\0" in code, f"{launch['kernel']} is not in {launch['code']}"
    assert launch["spilled"] == 0, "a generated kernel spills, or nobody says whether it does"
    assert launch["arch"] == arch and launch["block"][0] % (64 if arch == "gfx942" else 32) == 0 and min(launch["grid"]) >= 1, launch
    named = [b for arg in launch["args"] for b in buffers(arg)]
    assert named, "a kernel without buffers"
    for b in named:
        size = b["bytes"] if "bytes" in b else (folder / b["buffer"]).stat().st_size
        made[b["buffer"]] = max(size, made.get(b["buffer"], 0))
        assert 0 <= b.get("offset", 0) <= size, b
    for e in launch["expect"]:
        want = folder / e["file"]
        bytes_ = e.get("count", want.stat().st_size // sizes[e["dtype"]]) * sizes[e["dtype"]]
        assert bytes_ > 0 and e["tol"] >= 0 and e["buffer"] in made, e
        assert e.get("offset", 0) + bytes_ <= made[e["buffer"]], e
        before = folder / e["buffer"]
        if not before.exists() or before.read_bytes()[e.get("offset", 0):][:bytes_] != want.read_bytes()[:bytes_]:
            blank.add(e["buffer"])
        expected += 1
assert len(launches) >= 3 and expected >= 1 and blank, \
    f"{len(launches)} launches, {expected} results, {len(blank)} that a launch has to write"
print(f"LAUNCHES {arch} launches={len(launches)} expected={expected} written={len(blank)}")
PYTHON
done
