#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin certify: the reference passes, and plugins of bad_plugin.cc fail, each by what is wrong with it, with a command that repeats it;
# what is no plugin is a usage error. Arguments: the keirin command, the folder of the fault plugins, the reference's library, its list of
# known failures, the folder of the known-bad plugins (tests/certify).
set -uo pipefail
keirin=$1 faults=$2 reference=$3 known=$4 bad=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0
expect() {  # exit code, pattern of a line that is said, words
  local code=$1 said=$2 got
  shift 2
  "$keirin" certify "$@" > out 2>&1
  got=$?
  [[ $got == "$code" ]] && grep -Eq -- "$said" out && return
  echo "keirin certify $*: exit code $got, not $code with \"$said\":"
  cat out
  failed=1
}
json() { python3 -c "import json, sys; c = json.load(open('c.json')); sys.exit(0 if ($1) else 1)" || {
  echo "not so in the JSON: $1"; failed=1; }; }

expect 0 '^reference: passed$' "$reference" --quick --known "$known" --json c.json --html c.html
json "c['passed'] and c['sha256'] == '$(sha256sum "$reference" | cut -d' ' -f1)'"
json "[g['name'] for g in c['groups']] == list('ABCDEFGHIJK') + ['operators', 'bytes', 'graphs']"
json "all(g['failed'] == 0 and not g['ended'] for g in c['groups'])"
json "all(g['passed'] > 0 for g in c['groups'] if g['name'] not in 'HJ')"
json "c['machine']['cores'] > 0 and c['schema'] == 'keirin/certify/3' and len(c['day']) == 10"
grep -q "$(sha256sum "$reference" | cut -d' ' -f1)" c.html || { echo "the page does not name the library"; failed=1; }

# What a check says, how it is repeated, and what stands on it. The plugins' own table is certify_diagonal_test.
expect 1 'FAIL G/output_ends: it writes behind the last element of an output' "$bad/writes_behind" --case G
expect 1 "repeat: keirin certify .* --case 'G/output_ends'" "$bad/writes_behind" --case G/output_ends
expect 1 'FAIL E/compile: the plugin crashed in krn.compile.compile .signal 11' "$bad/crash_compile" --case F
expect 1 '^F numerics +0 passed, 0 failed, 0 unclaimed, [1-9][0-9]* not tried$' "$bad/crash_compile" --case F
expect 1 'FAIL C/initialize: the plugin hung in krn.plugin.initialize' "$bad/hang_initialize" --case C/initialize --deadline 1
expect 1 'FAIL C/initialize: the plugin ended the process in krn.plugin.initialize' "$bad/exit_initialize" --case C/initialize
expect 0 '^good: passed, of what was asked for$' "$bad/good" --case G

# Known failures: excused to their day, not after it, and an entry that excuses nothing is one itself.
echo 'G/output_* 2999-12-31 to be mended' > list
expect 0 'known: G/output_ends: to be mended .until 2999-12-31.: it writes behind' "$bad/writes_behind" --case G --known list
echo 'G/output_* 2001-12-31 to be mended' > list
expect 1 'FAIL G/output_ends' "$bad/writes_behind" --case G --known list
expect 1 'FAIL list: line 1: G/output_\* was excused until 2001-12-31' "$bad/writes_behind" --quick --known list
printf '# mended long ago\nG/output_ends 2999-12-31 to be mended\n' > list
expect 1 'FAIL list: line 2: G/output_ends does not fail: remove the line' "$bad/good" --quick --known list
echo 'G/output_ends soon to be mended' > list
expect 2 'is not a known failure' "$bad/good" --known list

# It claims relu and linear of any dtype and compiles f32: good enough for the tests that use it.
expect 1 'FAIL operators/relu/bf16/.*the input is not f32' "$faults/good" --case operators --quick
expect 0 '^good: passed, of what was asked for$' "$faults/good/libfault_good.so" --case 'operators/relu/f32/*/contiguous*'
expect 1 'FAIL operators/relu/f32/' "$faults/wrong_relu" --case 'operators/relu/f32/*' --json c.json
json "not c['passed'] and [o['failed'] > 0 for o in c['groups'][0]['operators'] if o['name'] == 'relu'] == [True]"
repeat=$(sed -n "s/^ *repeat: keirin certify .* --case '\(.*\)'$/\1/p" out | head -1)
expect 1 "FAIL $repeat" "$faults/wrong_relu" --case "$repeat"

expect 1 'FAIL operators/relu/.*crashed in compile' "$faults/crash_compile" --case operators
expect 1 'FAIL .*signal 11' "$faults/crash_load" --case bytes
expect 1 'FAIL bytes/relu/' "$faults/garbage_artifact" --case bytes
expect 1 '^  FAIL graphs/' "$faults/wrong_together" --case graphs
repeat=$(sed -n "s/^ *repeat: keirin certify .* --case '\(.*\)'$/\1/p" out | head -1)
expect 1 "FAIL $repeat: " "$faults/wrong_together" --case "$repeat"
expect 1 'crashed in initialize' "$faults/crash_initialize" --case operators --quick
expect 0 'bytes +[1-9][0-9]* passed, 0 failed, [1-9]' "$faults/no_artifact" --case bytes --quick
expect 1 'nothing: no case' "$faults/good" --case 'operators/sin/*'
expect 2 'not one plugin: there is no such file' nothing.so
expect 2 'not one plugin: several' "$faults"
expect 2 'begins with a group, A to K, or with operators, bytes or graphs' "$reference" --case nothing

# What a plugin computes, as a table: relu on f32 in most layouts, the rest is eager's. And how fast, beside eager and a plugin whose relu
# is wrong, of which there is no figure.
sheet() {  # pattern of a line that is said, words
  local said=$1
  shift
  "$keirin" plugins --sheet good --plugin "$bad/good" --plugin "$faults/wrong_relu" --cache "$folder/sheets" "$@" > out 2>&1 &&
    grep -Eq -- "$said" out && return
  echo "keirin plugins --sheet good $*: not said: $said"
  cat out
  failed=1
}
sheet '^\| relu \| [1-9][0-9]*, [1-9][0-9]* eager \| eager \|' --json s.json --html s.html
grep -Eq '^3 of [1-9][0-9]+ operators .* 0 wrong' out || { echo "not three operators:"; cat out; failed=1; }
grep -Eq '^\| relu \| f32 \| 256x1024 \| *[0-9.]* \| *[0-9.]* \| (disturbed|[0-9.]+ \[.*\]) \|' out && grep -q '| wrong |' out ||
  { echo "relu was not timed beside the others:"; cat out; failed=1; }
grep -q '^| sin |' out && { echo "what is not claimed was timed"; failed=1; }
python3 - <<'END' || failed=1
import json
sheet = json.load(open("s.json"))
assert sheet["schema"] == "keirin/sheet/1" and sheet["sha256"] in open("s.html").read()
relu = next(c for c in sheet["speed"]["cases"] if c["operator"] == "relu" and c["dtype"] == "f32")
assert relu["plugins"]["wrong_relu"]["note"].startswith("wrong: ") and "ns" not in relu["plugins"]["wrong_relu"], relu
own = relu["plugins"]["good"]
assert own["note"].startswith("disturbed") or own["low"] <= own["ratio"] <= own["high"], own
assert not [c for c in sheet["speed"]["cases"] if "good" not in c["plugins"]]
END
sheet '^There was no time for [1-9][0-9]+ more cases' --speed-limit 0
sheet '^3 of [1-9]' --no-speed
grep -q '^## Speed' out && { echo "timed in spite of --no-speed"; failed=1; }
"$keirin" plugins --sheet nobody --plugin "$bad/good" --only-plugin good > out 2>&1
[[ $? == 2 ]] && grep -q 'no plugin is called "nobody"' out || { echo "keirin plugins --sheet nobody:"; cat out; failed=1; }
exit $failed
