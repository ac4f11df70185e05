#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin certify: the reference passes, and plugins of bad_plugin.cc fail, each by what is wrong with it, with a command that repeats it;
# what is no plugin is a usage error. Arguments: the keirin command, the folder of the fault plugins, the reference's library.
set -uo pipefail
keirin=$1 faults=$2 reference=$3
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

expect 0 '^reference: passed$' "$reference" --quick --json c.json
json "c['passed'] and c['sha256'] == '$(sha256sum "$reference" | cut -d' ' -f1)'"
json "[g['name'] for g in c['groups']] == ['operators', 'bytes', 'graphs']"
json "all(g['failed'] == 0 and g['passed'] > 0 and not g['ended'] for g in c['groups'])"

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
expect 1 'crashed in initialize' "$faults/crash_initialize" --quick
expect 0 'bytes +[1-9][0-9]* passed, 0 failed, [1-9]' "$faults/no_artifact" --case bytes --quick
expect 1 'nothing: no case' "$faults/good" --case 'operators/sin/*'
expect 2 'not one plugin: there is no such file' nothing.so
expect 2 'not one plugin: several' "$faults"
expect 2 'begins with operators, bytes or graphs' "$reference" --case nothing
exit $failed
