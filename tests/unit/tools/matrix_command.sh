#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin matrix from the outside: cells and shards, refusals, and one sitting of each kind on a model of microseconds. Which label a
# cell gets hangs on what else runs here: what is asked is that it is never called slower or faster, and that the exit code is that of
# the label. What becomes of known times tests/matrix asks.
data=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../data/import" && pwd)
. "$(dirname "${BASH_SOURCE[0]}")/../../matrix/begin.sh" "$1"

# Shards hold each cell once, and all of them.
"$keirin" matrix run --set ci --list | sort >all
for i in 1 2 3 4 5 6 7 8; do "$keirin" matrix run --set ci --shard $i/8 --list; done | sort >parts
cmp -s all parts || fail "eight shards are not the set"
[[ $(wc -l <all) -ge 30 ]] || fail "the set ci has $(wc -l <all) cells"
grep -q '^mlp/small/f32/infer/single/default compiled:cpu$' all || fail "no cell of the plugin cpu"

# What cannot be meant is refused, and nothing is written.
exits 2 "$keirin" matrix run --set nowhere
exits 2 "$keirin" matrix run --shard 9/8
exits 2 "$keirin" matrix run --cases 'no such*'
exits 2 "$keirin" matrix run --budget soon
exits 2 "$keirin" matrix compare --base "$work/nowhere"
exits 2 "$keirin" matrix report
exits 2 "$keirin" matrix-worker 3<&-
exits 2 "$keirin" matrix-worker 3< /dev/null
echo 'mlp/small/f32/fly/single/default' >odd
exits 2 "$keirin" matrix run --set ./odd
grep -q 'fly' err || fail "the message does not name the part"
[[ ! -e keirin-matrix ]] || fail "a store was made for nothing"
# A command that is none of ours is told, not waited for.
exits "1 3" "$keirin" matrix compare --base /bin/true --cases 'mlp*' --store other
grep -q '/bin/true' err || fail "the message does not name the command"

# A model that nobody ships is not run, which is no pass and no failure; numerics of another plugin's absence alike.
echo 'nosuchmodel/small/f32/infer/single/default' >absent
exits 4 "$keirin" matrix selfcheck --set ./absent --variants eager --store absent-store --quiet
exits 0 "$keirin" matrix selfcheck --cases 'mlp*' --variants compiled:nosuch --store absent-plugin --quiet
grep -q '1 not_run' out || { fail "a plugin that is absent is not shown as not run"; cat out; }

# Nor is a step of training that a worker without Python is asked for.
echo 'mlp/small/f32/train/single/default' >training
exits 0 "$keirin" matrix run --set ./training --variants eager --peers "$keirin" --store untrained --quiet
grep -q 'not_run; .*trains nothing' out || { fail "a command that trains nothing was taken for one that does"; cat out; }

# What is counted of a real call tells two models apart that go by one name, and the same from itself: an operator more is an allocation
# more, and a region has its launches.
echo 'twin/small/f32/infer/single/default' >twin
for side in one two; do
  mkdir -p $side && printf '#!/bin/sh\ncd %s/%s && exec "%s" "$@"\n' "$work" $side "$keirin" >command-$side && chmod +x command-$side
done
cp "$data/mlp.pt2" one/twin && cp "$data/hidden_relu.pt2" two/twin
counted() {
  "$keirin" matrix compare --base ./command-one --head "$1" --set ./twin --variants eager --counts-only --store "$2" --quiet >out 2>err
}
counted ./command-one twin-same && grep -q 'unchanged, by counts' out || { fail "the same model twice, by counts"; cat out err; }
grep -q '"allocations":[1-9]' twin-same/log/* || fail "no allocation was counted in eager"
counted ./command-two twin-other
grep -q ' allocations [0-9]* -> [0-9]*' out || { fail "another model takes as many allocations"; cat out err; }
"$keirin" matrix compare --base "$keirin" --cases 'mlp*' --variants compiled:cpu --counts-only --store launched --quiet >out 2>err ||
  { fail "the same plan twice, by counts"; cat out err; }
grep -q '"launches":[1-9]' launched/log/* || fail "no launch was counted"

for word in selfcheck run "compare --base $keirin"; do
  # shellcheck disable=SC2086
  "$keirin" matrix $word --cases 'mlp*' --variants auto --threads 1 --gate 90 --store store --json report.json --md report.md \
    --junit report.xml >out 2>err
  code=$? wanted=0  # a gate of 90 % lets times inform only, so that one thing is left to decide: whether others had the processor
  grep -q '"label": "invalid"' report.json && wanted=4
  [[ $code == "$wanted" ]] || { fail "exit $code, not $wanted: $word"; cat out err; }
  grep -q '"schema": "keirin/matrix/1"' report.json || fail "no report of $word"
done
[[ $(ls store/log | wc -l) == 3 ]] || fail "three sittings left $(ls store/log | wc -l) logs"
exits 0 "$keirin" matrix merge --into merged store store
grep -q ' 0 skipped' out || fail "a merge skipped something"
"$keirin" matrix report --store store --json - --text '' >first
"$keirin" matrix report --store merged --json - --text '' >second
cmp -s first second || fail "the merged store says something else"
exits 0 "$keirin" matrix history --store merged
run=$(grep -om1 '"run": "[0-9a-f]*"' first | cut -d'"' -f4)
exits 0 "$keirin" matrix mark "$run" --as void --why 'a test' --store merged
exits 2 "$keirin" matrix mark nothing --as void --why 'a test' --store merged

# The same binary twice is not called slower (S12). In a build with planted bugs head has the one that is switched on, base has none:
# regions that spin for as long as they ran are found on a noisy machine too. (KEIRIN_PLANTED_PERCENT=10 asks for a spin of a tenth.)
printf '#!/bin/sh\nunset KEIRIN_PLANTED\nexec "%s" "$@"\n' "$keirin" >plain
chmod +x plain
"$keirin" matrix compare --base ./plain --cases 'gcn*' --variants compiled:cpu --threads 1 --gate 3 --store twice --quiet \
  --json twice.json >out 2>err
case "$? $(grep -o '"label": "[a-z]*"' twice.json)" in
  '0 "label": "unchanged"' | '4 "label": "inconclusive"' | '4 "label": "invalid"') ;;
  *) fail "the same binary twice"; cat err ;;
esac
cat out
exit $failed
