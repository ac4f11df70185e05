#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the words of the command do where integers were drawn whose meaning nobody knows, and with complex outputs.
# Usage: tensors_test.sh KEIRIN MODELS
set -euo pipefail

keirin=$1
models=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "tensors_test: $*" >&2; cat "$work/said" >&2; exit 1; }

# Exit code and what is said; never the end by a signal (128 and more).
expect() {  # code, text, words...
  local wanted=$1 text=$2 code=0
  shift 2
  "$keirin" "$@" --no-cache --quiet > "$work/said" 2>&1 || code=$?
  [ "$code" = "$wanted" ] || fail "keirin $* ended with $code, wanted $wanted"
  [ -z "$text" ] || grep -qF -- "$text" "$work/said" || fail "keirin $* does not say \"$text\""
}

# ---- pivots that are drawn: LAPACK would write outside of its memory
for words in "run --eager" run explain bench; do
  # shellcheck disable=SC2086
  expect 2 'what integers are legal in "pivots" (read by aten::linalg_ldl_solve) is not known' $words "$models/pivots.pt2"
  grep -q "a process that tried drawn ones was ended by signal" "$work/said" || fail "$words: not how it ended"
  grep -q "nothing was run in this process" "$work/said" || fail "$words: not what was done instead"
  grep -q -- "--inputs FILE.safetensors" "$work/said" || fail "$words: no remedy"
done

# ---- the caller's own
python3 - "$models/pivots.safetensors" "$work/inputs.safetensors" << 'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", data[:8])
table, blob = json.loads(data[8:8 + n]), data[8 + n:]
table = {k[3:]: v for k, v in table.items() if k.startswith("in_")}
text = json.dumps(table).encode()
text += b" " * (-len(text) % 8)
out, header = b"", {}
for name, row in table.items():
    begin, end = row["data_offsets"]
    header[name] = dict(row, data_offsets=[len(out), len(out) + end - begin])
    out += blob[begin:end]
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + out)
PYTHON
expect 0 "0: f32[16,3]" run "$models/pivots.pt2" --eager --inputs "$work/inputs.safetensors"

# ---- by name, alone or beside positions; outputs by their keys
python3 - "$work/inputs.safetensors" "$work" << 'PYTHON'
import json, struct, sys
def save(path, rows):
    out, header = b"", {}
    for name, (dtype, shape, data) in rows.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(out), len(out) + len(data)]}
        out += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + out)
floats = lambda *x: struct.pack(f"<{len(x)}f", *x)
a, b, scale = ("F32", [2], floats(1, 2)), ("F32", [3], floats(3, 4, 5)), ("F32", [2], floats(10, 20))
save(sys.argv[2] + "/named.safetensors", {"d.a": a, "1": b})
save(sys.argv[2] + "/scale.safetensors", {"anything": scale})
save(sys.argv[2] + "/wrong.safetensors", {"d.a": a, "mask": b})
PYTHON
named="$models/../pt2/structured.pt2"
expect 0 "o: f32[2]" run "$named" --eager --inputs "$work/named.safetensors" --input "scale=$work/scale.safetensors"
expect 0 "" run "$named" --eager --inputs "$work/named.safetensors" --input "scale=$work/scale.safetensors" \
  --outputs "$work/keys.safetensors"
grep -q '"o"' "$work/keys.safetensors" && grep -q '"p.0"' "$work/keys.safetensors" || fail "the outputs are not under their keys"
expect 2 'input scale (position 2) is missing' run "$named" --eager --inputs "$work/named.safetensors"
expect 2 'd.a, d.b.0, scale' run "$named" --eager --inputs "$work/wrong.safetensors"
expect 2 'is given twice' run "$named" --eager --inputs "$work/named.safetensors" --input "0=$work/scale.safetensors"

# ---- integers that are indices to the graph are drawn here, without another process
expect 0 "0: f32" run "$models/tied.pt2" --eager

# ---- complex outputs
expect 0 "0: c64[3,4]" run "$models/complex.pt2" --eager
expect 0 "" run "$models/complex.pt2" --eager --outputs "$work/out.safetensors"
python3 - "$work/out.safetensors" << 'PYTHON' || fail "the complex outputs are not what the other outputs' transform is"
import cmath, json, struct, sys
data = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", data[:8])
table, blob = json.loads(data[8:8 + n]), data[8 + n:]
def numbers(name, dtype, count):
    assert table[name]["dtype"] == dtype, table
    begin, end = table[name]["data_offsets"]
    return struct.unpack(f"<{count}f", blob[begin:end])
half, conjugate = numbers("0", "C64", 24), numbers("1", "C64", 24)
x = [v - 1 for v in numbers("2", "F32", 18)]
for row in range(3):
    for k in range(4):
        wanted = sum(x[6 * row + i] * cmath.exp(-2j * cmath.pi * i * k / 6) for i in range(6))
        at = 2 * (4 * row + k)
        assert abs(complex(half[at], half[at + 1]) - wanted) < 1e-4, (row, k)
        assert abs(complex(conjugate[at], conjugate[at + 1]) - wanted.conjugate()) < 1e-4, (row, k)
PYTHON
expect 1 "output 1 is of c128, for which the safetensors format has no name" run "$models/wide_complex.pt2" \
  --outputs "$work/wide.safetensors"
grep -q "nothing was run" "$work/said" || fail "something ran"
[ ! -e "$work/wide.safetensors" ] || fail "a refused file was written"
expect 0 "1: c128[3,4]" run "$models/wide_complex.pt2" --eager
