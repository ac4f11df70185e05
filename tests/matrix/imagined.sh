#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin matrix run and compare --imagine: cells of a device that is not here, which is compiled for. No time, no answer, code is counted.
# 77 where nothing compiles for the set.
. "$(dirname "$0")/begin.sh"
"$keirin" matrix run --imagine gfx1100 --list > out 2> err
[[ $? == 3 ]] && { cat err; exit 77; }

# A model, by the plugin that there is.
echo 'gcn/small/f32/infer/single/default' > one-case
exits 0 "$keirin" matrix run --imagine gfx1100 --set ./one-case --store real --quiet --html real.html --junit real.xml --md real.md \
  --json real.json
holds out '^imagined-gfx1100  run  .* times are none: compiled for a device that is not here$'
holds out '^  \. gcn/.* compiled:rocm  *0  *0 .* not_run; compiled for gfx1100 and not run: [1-9][0-9]* kernels, 0 registers spilled, '
holds out '^  1 not_run$'
holds real/log/* '"fitness":"compile"'
holds real.xml '<skipped message="-, not_run; compiled for gfx1100'
holds real.json '"again": "keirin matrix run --cases gcn/small/f32/infer/single/default --variants compiled:rocm --imagine gfx1100"'
holds real.html 'imagined-gfx1100'
grep -q '"kind":"sample"' real/log/* && fail "something was timed"
# What is not here is not run, and a set that nobody knows ends it before anything is asked.
exits 0 "$keirin" matrix run --imagine gfx1100 --set ./one-case --variants auto,compiled:nosuch --store absent --quiet
holds out '^  2 not_run$'
holds out 'auto .* a device that is not here answers nothing'
holds out 'nosuch .* not here, or does not compile for gfx1100'
exits 3 "$keirin" matrix run --imagine gfx1 --set ./one-case --store nowhere
holds err 'no row for the instruction set "gfx1"'
[[ -e nowhere ]] && fail "a sitting for nothing left a store"

# Two builds, by their code alone.
cases_of alpha beta > set
compare() { "$keirin" matrix compare --base ./one --set ./set --imagine gfx1100 --variants compiled:rocm --quiet "$@"; }
stand_in one --build one
stand_in same --build two
stand_in spills --build three --count spilled=3 --slow alpha=9
stand_in refuses --build four --count nodes_eager=2
stand_in broken --build five --broken beta
stand_in fewer --build six --count kernels=1 --count launches=1
exits 0 compare --head ./same --store same-store
holds out '^  2 unchanged$'
holds out 'unchanged, by counts; compiled for gfx1100 and not run'
exits 1 compare --head ./spills --store spills-store
holds out 'regressed, by counts; spilled 0 -> 3; compiled for gfx1100 and not run'
exits 1 compare --head ./refuses --store refuses-store
holds out 'regressed, by counts; nodes_eager 1 -> 2'
exits 1 compare --head ./broken --store broken-store --junit broken.xml
holds out "^  ! $(case_of beta) .* invalid; head: it claimed what it cannot compile"
holds broken.xml 'errors="1"'
exits 0 compare --head ./fewer --store fewer-store
holds out '^  2 improved$'
grep -q '"kind":"sample"' ./*-store/log/* && fail "something was timed"
exit $failed
