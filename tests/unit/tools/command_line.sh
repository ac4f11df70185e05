#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What may be typed behind `keirin`, and how what may not is answered: exit code 2 and a text that helps. Argument: the
# command.
set -uo pipefail
keirin=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export KEIRIN_CACHE=$folder/cache
failed=0
expect() {  # exit code, part of what is said, words
  local code=$1 said=$2 got
  shift 2
  "$keirin" "$@" >out 2>&1
  got=$?
  [[ $got == "$code" ]] && grep -qF -- "$said" out && return
  echo "keirin $*: exit code $got, not $code with \"$said\":"
  cat out
  failed=1
}
expect 0 "--only-plugin" run --help
expect 0 "KEIRIN_RUN_IN" options
expect 2 'nearest is "bench"' benhc
expect 2 'nearest is "default"' run mlp --mode defualt
expect 2 'default, reduce-overhead, max-autotune, max-performance' run mlp --mode turbo
expect 2 'nearest is "forbid"' run mlp --fallback forbidd
expect 2 'a number from 0 to 4096' run mlp --threads -3
expect 2 'a number above 0' run mlp --run-deadline 0
expect 2 'a number from 0' run mlp --budget nan
expect 2 'nearest is "merge_siblings"' run mlp --disable-pass merge_sibling
expect 2 'does not exist' run mlp --plugin /nope.so
expect 2 "$folder/nope.so" run mlp --plugin nope.so
expect 2 'those found: ' run mlp --only-plugin nope
expect 2 'no such device: tpu; available: cpu' run mlp --device tpu
expect 2 'no such device: cuda:x; available: cpu' doctor --device cuda:x
expect 1 'there are: eager, replay' run mlp --only-candidate nope
expect 0 'replay at' run mlp --only-candidate replay --threads 1
expect 2 'does not exist' repro "$folder" --plugin /nope.so
KEIRIN_RUN_IN=wrker expect 2 'KEIRIN_RUN_IN' plugins
KEIRIN_RUN_IN=worker expect 0 '' plugins
expect 2 'there is no cache in' cache --cache relative check
[ ! -e relative ] || { echo "looking at a cache made it"; failed=1; }
# `all` is each device in turn where that makes sense; a plugin's name is the device that it drives, and nobody else compiles.
expect 2 'no such device: all; available: cpu' run mlp --device all
expect 0 '| mlp' bench mlp --device all --quiet --race-limit 0.2
expect 0 'reference/all' explain mlp --device reference --race-limit 0.2 --no-cache
grep -q 'mlp on cpu' out && ! grep -q ' cpu/' out || { echo "--device reference:"; cat out; failed=1; }
expect 0 'f32[' run mlp --eager --quiet --device cpu --threads 2 --mode max-autotune --budget 0 --race-limit 1 \
  --sample-rate 0 --fallback warn --numerics fast --error-budget 1e-3 --memory-limit 0.5 --plugin . --only-plugin cpu \
  --load-library libm.so.6 --cache relative --no-cache --compile-in child --run-in process --run-deadline 5 \
  --compile-deadline 5 --compile background --no-verify --force eager --disable-pass merge_siblings infer \
  --disable-pass simplify --repro repro --dump dump
expect 0 '0 bad entries' cache check --cache cache
expect 0 '| 4 |' options
# What is behind --json - can be read as JSON, for every word that has it.
json() {
  "$keirin" "$@" --json - >out 2>err && python3 -c 'import json, sys; json.load(open("out"))' && return
  echo "keirin $* --json -: standard output is not JSON alone:"
  head -5 out err
  failed=1
}
for word in "bench mlp --race-limit 0.2" "run mlp --race-limit 0.2" "explain mlp --race-limit 0.2" plugins doctor "inspect mlp" options \
  "cache ls" "cache check" "cache bad"; do
  # shellcheck disable=SC2086
  json $word
done
# Signature: names, ranges, operators; in less than a second.
expect 0 '1..256' inspect resnet50_dynamic
expect 0 'are known to the operator table' inspect mlp
expect 0 '1 kinds of calls' build mlp -o m.krn --race-limit 0.2 --threads 1
expect 0 'a bundle, made with torch' inspect m.krn
fits() {  # words: the bundle's decisions are used
  "$keirin" run m.krn --race-limit 0.2 --threads 1 "$@" >out 2>&1 && ! grep -q "bundle's decisions are not used" out && return
  echo "keirin run m.krn $*:"
  cat out
  failed=1
}
fits
expect 0 "the bundle's decisions are not used" run m.krn --race-limit 0.2 --threads 1 --numerics strict
expect 0 'another user' run m.krn --race-limit 0.2 --threads 1 --cache "$folder/theirs"
fits --cache "$folder/mine" --trust native
expect 2 'own, native' run m.krn --trust nobody
expect 2 'there is no cache' build mlp -o n.krn --no-cache
echo '{"gpt": [[]]}' >sizes.json
expect 2 'holds no sizes of "mlp"' build mlp -o n.krn --shapes sizes.json
head -c 3000 m.krn >cut.krn
expect 1 'the file is cut off' run cut.krn
[ ! -e n.krn ] || { echo "a bundle that failed left a file"; failed=1; }
TIMEFORMAT=%U
took=$( { time "$keirin" inspect mlp >/dev/null; } 2>&1)  # of the processor: other tests run beside this one
[ "${took%.*}" = 0 ] || { echo "inspect took $took s"; failed=1; }
# Tables fit the terminal; percentiles are in the wide one and in JSON.
COLUMNS=80 "$keirin" bench mlp --quiet --race-limit 0.2 >out || failed=1
[ "$(grep '^|' out | awk '{ if (length > n) n = length } END { print n }')" -le 80 ] && grep -q 'left out to fit 80 columns' out || {
  cat out; failed=1; }
COLUMNS=80 expect 0 'p99 ms' bench mlp --quiet --race-limit 0.2 --wide
"$keirin" bench mlp --quiet --race-limit 0.2 --json out >/dev/null
python3 - <<'PYTHON' || { echo "no percentiles in the JSON"; failed=1; }
import json, sys
report = json.load(open("out"))["rows"][0]
row = report["latency"]
if report["disturbed"]:
    sys.exit(0 if row["calls"] == 0 else "a disturbed row has percentiles")
assert row["calls"] >= 10 and 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] and row["samples_per_s"] > row["calls_per_s"], row
PYTHON
# `run --quiet` says results only; a cache that cannot be written is one line.
expect 0 '0: f32' run mlp --quiet --race-limit 0.2
[ "$(wc -l <out)" = 1 ] || { echo "run --quiet:"; cat out; failed=1; }
mkdir -m 1777 open
expect 0 'warning: cache' run mlp --quiet --race-limit 0.2 --cache open
# A decision that was kept is explained with its steps, and `cache ls` says whose it is.
for try in 1 2 3 4 5; do
  "$keirin" run mlp --race-limit 1 --cache kept >out 2>&1
  "$keirin" cache ls --cache kept >list
  grep -q '^ledger .*  mlp: ' list && break
done
if grep -q 'mlp: cpu' list; then
  expect 0 '| r0 ' explain mlp --race-limit 1 --cache kept
  grep -q 'decided by an earlier process' out && grep -Eq '^\| r0 .* [0-9.]+ \|[^|]* % \|' out || {
    echo "no times of a kept decision's steps:"; cat out; failed=1; }
else
  echo "no quiet race chose a plan: the kept decision was not looked at"; cat list
fi
grep -q 'reference compiles' out && { echo "an oracle that nobody asked is told of"; failed=1; }
# A device that is not there: one text, with what there is.
if [ ! -e /dev/nvidiactl ]; then
  expect 1 'no such device: cuda:0; available: cpu' run mlp --device cuda
  expect 0 'no such device: cuda:0; available: cpu' doctor --device cuda
  # A GPU that the kernel's driver shows and nothing else answers for: the table says why it has no row.
  mkdir -p gpu/proc/driver/nvidia/gpus/0000:01:00.0 gpu/dev
  printf 'Model: \t\t NVIDIA Imagined\nDevice Minor: \t 0\n' > gpu/proc/driver/nvidia/gpus/0000:01:00.0/information
  touch gpu/dev/nvidia0
  KEIRIN_HARDWARE_ROOT=$folder/gpu expect 0 'NVIDIA Imagined is in this machine and not measured: no such device: cuda:0; available: cpu' \
    bench mlp --device all --quiet --race-limit 0.2
  grep -q '^| mlp' out || { echo "no row of the processor:"; cat out; failed=1; }
fi
# What the environment told a plugin is not remembered of it for a process in which it says something else.
KEIRIN_CPU_LEVEL=nope expect 0 'no level is called "nope"' plugins --why
"$keirin" plugins --why > out 2>&1
grep -A 4 '^cpu ' out | grep -q 'cpu:0 *used as ' || { echo "a level that is named no longer:"; cat out; failed=1; }
# What is missing is in that line, also of the plugin that would drive it.
if [ ! -e /dev/kfd ] && "$keirin" plugins 2>/dev/null | grep -q '^rocm '; then
  expect 1 'no such device: rocm:0; available: cpu' bench mlp gcn dlrm --device rocm
  grep -Eq 'no such device: rocm:0; .* is not a ROCm build; plugin rocm: .*not an AMD GPU' out || {
    echo "what is missing for rocm:"; cat out; failed=1; }
  expect 0 'support: tier 3: never run on an AMD GPU' plugins --why
fi
# Ctrl-C keeps what is finished.
python3 - "$keirin" <<'PYTHON' || { echo "Ctrl-C dropped the finished row"; failed=1; }
import signal, subprocess, sys
bench = subprocess.Popen([sys.argv[1], "bench", "mlp", "resnet50", "bert", "--race-limit", "1", "--no-cache"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
for line in bench.stderr:
    if line.startswith("  mlp: ") and "verified" in line.lower():  # progress has lines of its own
        break
bench.send_signal(signal.SIGINT)
said = bench.communicate(timeout=20)[0]
assert bench.returncode == 130 and "\n| mlp " in said and "resnet50" not in said, (bench.returncode, said)
PYTHON
exit $failed
