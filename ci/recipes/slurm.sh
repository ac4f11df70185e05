#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The matrix on Slurm: an array job with a node to itself for each shard, then a job that merges and reports whatever became of them.
#
#   BASE=/opt/keirin-1.2 HEAD=/opt/keirin-1.3 STORES=/shared/matrix ci/recipes/slurm.sh [words of sbatch: --constraint=CLASS]
#
# BASE and HEAD: install prefixes, the same for all nodes. STORES: a folder that all nodes see. SHARDS (8), SET (ci) and WORDS (of
# `keirin matrix compare`, "--threads 8") may be set. Prints the number of the last job: its exit code is the verdict, and STORES/report.md
# the report. A shard that was killed shows as not run; `--shard 3/8` by hand measures it again, a merge adds it.
set -euo pipefail
export BASE=${BASE:?} HEAD=${HEAD:?} STORES=${STORES:?} SHARDS=${SHARDS:-8} SET=${SET:-ci} WORDS=${WORDS:-}
mkdir -p "$STORES"
array=$(sbatch --parsable --job-name=keirin-matrix --exclusive --array="0-$((SHARDS - 1))" --output="$STORES/shard-%a.txt" "$@" --wrap '
  mine=$STORES/shard-$SLURM_ARRAY_TASK_ID
  for _ in 1 2 3; do "$HEAD/bin/keirin" matrix selfcheck --set smoke $WORDS --store "$mine" --once; done
  "$HEAD/bin/keirin" matrix compare --base "$BASE" --head "$HEAD" --set "$SET" $WORDS --store "$mine" --shard auto')
sbatch --parsable --job-name=keirin-matrix-report --dependency="afterany:$array" --output="$STORES/report.txt" "$@" --wrap '
  "$HEAD/bin/keirin" matrix merge --into "$STORES/all" "$STORES"/shard-*/ &&
    "$HEAD/bin/keirin" matrix report --store "$STORES/all" --md "$STORES/report.md" --html "$STORES/report.html"'
