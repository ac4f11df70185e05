#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin matrix compare --cold: starts of new processes, told apart by what a stand-in says that it took, and by one that sleeps.
. "$(dirname "$0")/begin.sh"
case_of alpha > set
part() { echo "alpha/small/f32/infer/cold-$1/default"; }
stores=0
# Starts are timed from outside, so the machine itself disturbs them: what it made invalid is compared again, later.
exec 3>&1
until_quiet() {
  local code pause
  for pause in 0 2 4 8 16 32; do
    sleep $pause
    code=0
    "$@" > compared || code=$?
    grep -q 'invalid; others had the processor' compared && continue
    cat compared
    return $code
  done
  cat compared >&3
  ((failed)) && exit 1
  echo "skipped: others had this machine's processors for a minute, which starts are not told apart beside" >&3
  exit 77
}
compare_anew() {
  "$keirin" matrix compare --base ./one --set ./set --variants auto --gate 2 --cold --quiet --store store-$((++stores)) "$@"
}
compare() { until_quiet compare_anew "$@"; }

# The cells of a set: three of a start for each case that is called alone, timed together, so in one shard.
printf '%s\n' "$(case_of alpha)" 'beta/small/f32/infer/callers-2/default' 'mlp/small/f32/train/single/default' > mixed
"$keirin" matrix compare --base / --set ./mixed --variants auto,replay --cold --list | sort > listed
printf '%s\n' "$(case_of alpha) auto" "$(case_of alpha) replay" "$(part call) auto" "$(part compile) auto" "$(part start) auto" \
  'beta/small/f32/infer/callers-2/default auto' 'beta/small/f32/infer/callers-2/default replay' \
  'mlp/small/f32/train/single/default auto' | sort | cmp -s - listed || { fail "cells"; cat listed; }
for shard in 1 2 3 4; do "$keirin" matrix compare --base / --set ./set --variants auto --cold --shard $shard/4 --list > shard-$shard; done
[[ $(wc -l < <(cat shard-?)) == 4 && $(find . -name 'shard-?' -size +0 | wc -l) == 1 ]] || fail "a model's starts lie in several shards"
exits 2 "$keirin" matrix run --set ./set --cold
exits 2 compare --head ./one --counts-only
exits 2 "$keirin" matrix run --cases "$(part start)" --variants auto

stand_in one --build one
stand_in same --build two
exits '0 4' compare --head ./same
for each in "$(case_of alpha)" "$(part compile)" "$(part call)"; do holds out "^  = $each "; done
holds out "^  [=?] $(part start) .* 10.0 %"
grep -q '^  [v^]' out && fail "the same was called something else"

# Said to take 30 % longer to compile: confirmed by fresh processes, in every form.
stand_in slow --build three --cold compile=1.3
exits 1 compare --head ./slow --md slow.md --json slow.json --junit slow.xml --html slow.html
holds out "^  v $(part compile) .* 10.0 % .* regressed, large, measured twice"
for file in slow.md slow.json slow.xml slow.html; do holds $file cold-compile; done
holds slow.xml '<failure message="1\.[23][0-9]* .*regressed, large, measured twice'
[[ $(grep -c '"label": "regressed"' slow.json) == 1 ]] || fail "more was called slower than the compiling"
# 8 pairs, 16 where one of the three could not be told; 16 fresh ones of what was flagged; some again that others disturbed.
for each in start compile first_call; do
  n=$(grep -ho "\"measure\":\"${each}_ns\"" store-$stores/log/* | wc -l) wanted=16
  [[ $each == compile ]] && wanted=48
  ((n >= wanted && n <= wanted + 24)) || fail "$n samples of $each"
done
# 3 % is none, whatever the noise; a third less is a new level.
stand_in little --build four --cold call=1.03
exits '0 4' compare --head ./little
grep -q '^  [v^]' out && fail "3 % were called a loss"
stand_in quick --build five --cold compile=0.66
exits '0 4' compare --head ./quick
holds out "^  ^ $(part compile) .* improved, large, measured twice"

# A process that sleeps before it can be asked, by a clock outside of it.
stand_in sleeps --build one --sleep 0.3
stand_in sleeps-on --build two --sleep 0.45
cp sleeps one
exits 1 compare --head ./sleeps-on
holds out "^  v $(part start) .* regressed, large, measured twice"
exits '0 4' compare --head ./sleeps
grep -q "^  [=?] $(part start) " out || fail "the same process twice"

# Gates of starts come from selfchecks of starts, and of no other cells.
stand_in one --build one
for i in 1 2 3 4 5 6 7 8; do
  exits '0 4' "$keirin" matrix selfcheck --head ./one --set ./set --variants auto --quiet --store checked
done
"$keirin" matrix selfcheck --head ./one --set ./set --variants auto --quiet --once --store checked > out 2> err
holds err 'nothing was measured'
exits 4 until_quiet "$keirin" matrix compare --base ./one --head ./same --set ./set --variants auto --quiet --cold --store checked
holds out "^  = $(case_of alpha) "
holds out "^  ? $(part compile) .* no gate: nothing is known of the noise here"
exit $failed
