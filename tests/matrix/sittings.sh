#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin matrix on times that are known before: labels, exit codes, what a budget cuts off, shards as engines say them, the table of a run.
. "$(dirname "$0")/begin.sh"
cases_of alpha beta gamma > set
case_of beta > one-case
stand_in one --build one
stand_in same --build two
stand_in slow --build three --slow beta=1.1
stand_in quick --build four --factor 0.8
stand_in wrong --build five --wrong gamma
stand_in lacks --build six --lacks gamma
stand_in stuck --build seven --hang beta
stand_in hot --build eight --hot beta
compare() { "$keirin" matrix compare --base ./one --set ./${set:-set} --variants auto --quiet "$@"; }

# What decides the exit code, and what it is called.
exits 0 compare --head ./same --gate 2 --store equal
holds out '^  3 unchanged$'
exits 1 compare --head ./slow --gate 2 --store slow-store
holds out '^  1 regressed, 2 unchanged$'
holds out "^  v $(case_of beta) .* regressed, large, measured twice"
exits 0 compare --head ./quick --gate 2 --store quick-store
holds out '^  3 improved$'
[[ $(grep -hc '"kind":"mark"' quick-store/log/*) == 3 ]] || fail "three new levels left no three marks"
exits 1 compare --head ./wrong --gate 2 --store wrong-store
holds out '^  1 invalid, 2 unchanged$'
exits 1 compare --head ./lacks --gate 2 --store lacks-store
# Another host is asked about what was called changed, and about nothing else.
exits 1 compare --head ./slow --gate 2 --store first-store --json first.json
exits 2 "$keirin" matrix compare --base ./one --head ./same --confirm set
exits 2 "$keirin" matrix compare --base ./one --head ./same --confirm run.json
"$keirin" matrix compare --base ./one --head ./slow --confirm first.json --list > listed
[[ $(cat listed) == "$(case_of beta) auto" ]] || fail "asked about $(cat listed)"
exits 1 "$keirin" matrix compare --base ./one --head ./slow --gate 2 --confirm first.json --store second-store --quiet
grep -q '"confirms":true' second-store/log/* || fail "the sitting does not say that it confirms"
set=one-case
exits 4 compare --head ./same --store no-gate-store
holds out 'no gate: nothing is known of the noise here'
exits 0 compare --head ./slow --gate 90 --store wide-store
exits 0 compare --head ./slow --gate 2 --counts-only --store counts-store
holds out 'times inform only, counts decide'
holds out "^  = $(case_of beta) .* unchanged, by counts"
grep -q '"stage":"confirm"' counts-store/log/* && fail "what times say was measured twice where counts decide"

KEIRIN_INSTRUCTIONS=$work/nobody-counts exits 0 compare --head ./slow --gate 2 --store emulated-store
holds out 'times inform only, counts decide'

# Counts: exact, memory within 1 %, instructions within 0.5 %; both figures stand in each format.
stand_in steps --build eleven --count steps=3
exits 1 compare --head ./steps --gate 2 --counts-only --store steps-store --md steps.md --junit steps.xml --json steps.json \
  --html steps.html --google-benchmark steps-head.json --google-benchmark-base steps-base.json
holds out "^  v $(case_of beta) .* regressed, by counts; steps 2 -> 3"
for file in steps.md steps.xml steps.json steps.html; do holds $file 'steps 2 -&gt; 3\|steps 2 -> 3\|steps 2 -\\u003e 3'; done
holds steps-base.json '"steps": 2'
holds steps-head.json '"steps": 3'
stand_in fewer --build twelve --count steps=1 --count peak_bytes=1009000 --count instructions=1004900
exits 0 compare --head ./fewer --gate 2 --counts-only --store fewer-store
holds out "^  ^ $(case_of beta) .* improved, by counts; steps 2 -> 1$"
stand_in bytes --build thirteen --count steps=1 --count peak_bytes=1011000 --count instructions=1006000
exits 1 compare --head ./bytes --gate 2 --counts-only --store bytes-store
holds out 'regressed, by counts; steps 2 -> 1; peak_bytes 1000000 -> 1011000; instructions 1000000 -> 1006000$'
# What a call takes from LibTorch's allocator, counted when it is steady: one more is one too many, bytes have room.
stand_in allocates --build fifteen --count allocations=5 --count allocated_bytes=4100
exits 1 compare --head ./allocates --gate 2 --counts-only --store allocates-store
holds out "^  v $(case_of beta) .* regressed, by counts; allocations 4 -> 5$"
stand_in launches --build sixteen --count launches=7
stand_in launched --build seventeen --count launches=6
exits 0 "$keirin" matrix compare --base ./launches --head ./launched --set ./one-case --variants auto --gate 2 --counts-only \
  --store launches-store --quiet
holds out "^  ^ $(case_of beta) .* improved, by counts; launches 7 -> 6$"
# Counts of two candidates are not compared, and times that decide are not overruled by counts.
stand_in other --build fourteen --count steps=3 --answers cpu/other
exits 4 compare --head ./other --gate 2 --counts-only --store other-store
holds out 'cpu/other answers where cpu/all did'
exits 0 compare --head ./steps --gate 2 --store steps-timing-store

# Times of a device that was held down are none.
exits 4 compare --head ./hot --gate 2 --store hot-store
holds out "^  ! $(case_of beta) .* heat held the clock down in [0-9]* of [0-9]* blocks"
# A device that is not here ends it before anything is asked.
exits 3 compare --head ./same --device cuda:99 --store nowhere-store
[[ -e nowhere-store ]] && fail "a sitting on a device that is not here left a store"

set=set
# A cell in progress does not outlast the budget, and is no pass: beta answers nothing, gamma is not reached.
SECONDS=0
exits 4 compare --head ./stuck --gate 2 --budget 4s --store cut-store
(( SECONDS <= 20 )) || fail "a budget of 4 s took $SECONDS s"
holds out '^  1 unchanged, 2 not_run$'
holds out "^  \. $(case_of beta) .* no record: the sitting ended before"
# So does one that is to be measured once more: it was beyond the gate and stays undecided.
printf '#!/bin/sh\n[ -e %s/twice ] && exec sleep 60\nexec %s/slow "$@"\n' "$work" "$work" > stops
chmod +x stops
set=one-case
(while ! grep -qs '"stage":"screen"' twice-store/log/*; do sleep 0.02; done; touch twice) &
exits 4 compare --head ./stops --gate 2 --budget 4s --store twice-store
holds out 'beyond the gate, and not measured once more'
wait

# Training: the worker of --peers runs both sides, each with the Python package that was built with its command.
echo 'alpha/small/f32/train/single/default' > training
for side in before after bare; do mkdir -p $side && stand_in $side/keirin --build $side; done
for side in before after; do mkdir -p $side/python/keirin && touch $side/python/keirin/_native.abi3.so; done
stand_in trainer --slow after=1.2
trains() { "$keirin" matrix "$@" --set ./training --gate 2 --quiet --peers ./trainer; }
exits 0 trains compare --base ./before --head ./before --store train-same
exits 1 trains compare --base ./before --head ./after --variants auto --store train-slow
holds out '^  v alpha/small/f32/train/single/default .* regressed, large, measured twice'
exits 0 trains compare --base ./before --head ./after --variants auto --counts-only --store train-counts
grep -q "\"package\":\"$work/after/python\"" train-slow/log/* || fail "the stack does not say which package trained"
# The same of a wheel, around its command and below the prefix of its start script.
mkdir -p site/keirin prefix/bin prefix/lib/python3.12/site-packages/keirin
stand_in site/keirin/keirin && stand_in prefix/bin/keirin
touch site/keirin/_native.abi3.so prefix/lib/python3.12/site-packages/keirin/_native.abi3.so
exits 0 trains compare --base ./site/keirin/keirin --head ./prefix --variants auto --store train-wheel
for package in site prefix/lib/python3.12/site-packages; do
  grep -q "\"package\":\"$work/$package\"" train-wheel/log/* || fail "the package in $package was not found"
done
exits 0 trains run --head ./before --store train-run
holds out '^  1 improved$'
# No package, or nobody who trains: not run, which is no pass.
for sides in 'before bare' 'bare before'; do
  set -- $sides
  exits 4 trains compare --base ./$1 --head ./$2 --variants auto --store train-bare-$1
  holds out "not_run; .*no Python package of Keirin was built or installed with $work/bare/keirin"
done
ln -sf /bin/false nobody
exits 4 "$keirin" matrix run --set ./training --gate 2 --quiet --variants auto --peers ./nobody --head ./before --store train-nobody
holds out 'not_run; .*nothing trains here'
# It is one cell of a case, and stays as it is in a grid.
for words in '' '--callers 1,2' '--shapes 4,8'; do
  # shellcheck disable=SC2086
  "$keirin" matrix run --set ./training --variants replay,compiled:cpu,auto $words --list > listed
  [[ $(cat listed) == 'alpha/small/f32/train/single/default auto' ]] || fail "cells of training: $(cat listed)"
done
exits 2 trains run --variants replay --store train-none
for odd in alpha/small@4/f32/train/single/default alpha/small/f32/train/callers-2/default; do
  echo $odd > odd
  exits 2 "$keirin" matrix run --set ./odd --list
done

# Gates come from selfchecks, which are not repeated where they are known.
for i in 1 2 3; do exits 0 "$keirin" matrix selfcheck --head ./one --set ./set --variants auto --quiet --once --store checked; done
exits 0 "$keirin" matrix selfcheck --head ./one --set ./set --variants auto --quiet --once --store checked
holds err 'nothing was measured'
[[ $(ls checked/log | wc -l) == 3 ]] || fail "a fourth selfcheck was made"
exits 1 compare --head ./slow --store checked
holds out ' 1.0 % .* regressed'

# A run: auto against the better of eager (2 ms) and replay (1.5 ms), and the table that people look for.
exits 0 "$keirin" matrix run --head ./one --set ./set --variants auto,replay --gate 2 --store run-store --quiet --md run.md --json run.json
holds out 'auto over the better of eager and replay, 3 cases: 1.50x'
holds run.md '^| alpha | 2.00[0-9] | 1.50[0-9] | 1.00[0-9] | 2.00x | 1.50x \[1.50, 1.50\] | cpu/all | 0.0 | 2.0e-06 (1.0e-06) |$'
holds run.md '^| geometric mean of 3 | | | | 2.00x | 1.50x | | | |$'
grep -q '"over_eager": \(1.99\|2.0\)' run.json || fail "no snapshot in the JSON"
# An answer that is wrong is in no mean of how fast answers are.
exits 1 "$keirin" matrix run --head ./wrong --set ./set --variants auto,replay --gate 2 --store run-wrong-store --quiet
holds out 'auto over the better of eager and replay, 2 cases: 1.50x'
# Beside peers: the fastest of those that are right, by case.
stand_in peers --build thirty --factor 1.3 --slow peer:openvino=0.9 --wrong gamma
exits 0 "$keirin" matrix run --head ./one --set ./set --variants auto,replay,peer:openvino,peer:onnxruntime --peers ./peers --gate 2 \
  --store run-peers-store --quiet --md run.md --json run.json
holds out 'auto over the better of eager and replay, 3 cases: 1.50x'
holds out 'auto over the best peer, 2 cases: 1.17x'
holds run.md '^| alpha | .* | openvino | 1.1[67][0-9] | 1.17x |$'
holds run.md '^| gamma | .* | - | - | - |$'
holds run.md '^| geometric mean of 3 | | | | 2.00x | 1.50x | | | | of 2 | | 1.17x |$'
# Only what may fail is measured twice: auto slower than replay is, replay and auto faster are not.
grep -q '"stage":"confirm"' run-store/log/* && fail "what informs was measured twice"
stand_in loses --build nine --slow beta=1.6
exits 1 "$keirin" matrix run --head ./loses --set ./set --variants auto,replay --gate 2 --store loses-store --quiet
holds out "^  v $(case_of beta) .* regressed, medium, measured twice"

# The command that measures a cell once more finds its case in no set.
[[ $("$keirin" matrix run --cases "$(case_of beta)" --variants auto --list) == "$(case_of beta) auto" ]] || fail "a case by its name"
exits 2 "$keirin" matrix run --cases '*/small/f32/infer/single/nomode' --variants auto
# A folder that is called as a set hides none.
mkdir ci
"$keirin" matrix run --set ci --variants auto --list > listed
[[ $(wc -l < listed) == 16 ]] || fail "the set ci has $(wc -l < listed) cases beside a folder of that name"

# A grid of sizes and callers, and words that are none.
listed() { "$keirin" matrix run --set ./one-case --variants auto --list "$@" | tr '\n' ' '; }
[[ $(listed --shapes 1x16,8 --callers 1,2) == "beta/small@1x16/f32/infer/single/default auto \
beta/small@1x16/f32/infer/callers-2/default auto \
beta/small@8/f32/infer/single/default auto beta/small@8/f32/infer/callers-2/default auto " ]] || fail "a grid: \
$(listed --shapes 1x16,8 --callers 1,2)"
for words in '--shapes x' '--shapes 4x' '--shapes -1' '--callers 0' '--callers 65'; do
  # shellcheck disable=SC2086
  exits 2 "$keirin" matrix run --set ./one-case --list $words
done

# Shards as engines say them.
shard() { env "$@" "$keirin" matrix run --set ./set --variants auto --shard auto --list; }
exits 2 shard SLURM_ARRAY_TASK_ID=0
exits 2 shard SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1
exits 2 shard JOB_COMPLETION_INDEX=2 KEIRIN_SHARDS=2
exits 2 shard JOB_COMPLETION_INDEX=0
exits 2 shard SLURM_ARRAY_TASK_ID=x SLURM_ARRAY_TASK_COUNT=2
for i in 1 2; do
  "$keirin" matrix run --set ./set --variants auto --shard $i/2 --list > by-hand
  shard SLURM_ARRAY_TASK_ID=$((i + 4)) SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=5 | cmp -s by-hand || fail "shard $i of Slurm's array"
  shard JOB_COMPLETION_INDEX=$((i - 1)) KEIRIN_SHARDS=2 | cmp -s by-hand || fail "shard $i of Kubernetes' job"
done
# The list for GitHub names each shard that has a case, and their cases are all.
"$keirin" matrix run --set ./set --shards 64 > shards.json
python3 - "$keirin" << 'PYTHON' || fail "--shards is not what --shard says"
import json, subprocess, sys
include = json.load(open("shards.json"))["include"]
listed = lambda shard: subprocess.run([sys.argv[1], "matrix", "run", "--set", "./set", "--variants", "auto", "--shard", shard, "--list"],
                                      capture_output=True, text=True, check=True).stdout.splitlines()
cells = [(entry, listed(entry["shard"])) for entry in include]
assert all(entry["cases"] == len(lines) for entry, lines in cells), cells
assert sorted(sum((lines for _, lines in cells), [])) == sorted(listed("1/1")), cells
assert 1 <= len(include) <= 3
PYTHON
exit $failed
