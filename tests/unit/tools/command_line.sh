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
expect 2 'cpu, cuda, cuda:N' run mlp --device tpu
expect 1 'there are: eager, replay' run mlp --only-candidate nope
expect 0 'replay at' run mlp --only-candidate replay --threads 1
expect 2 'does not exist' repro "$folder" --plugin /nope.so
KEIRIN_RUN_IN=wrker expect 2 'KEIRIN_RUN_IN' plugins
KEIRIN_RUN_IN=worker expect 0 '' plugins
expect 0 '0 bad entries' cache --cache relative check
expect 0 'f32[' run mlp --eager --quiet --device cpu --threads 2 --mode max-autotune --budget 0 --race-limit 1 \
  --sample-rate 0 --fallback warn --numerics fast --error-budget 1e-3 --memory-limit 0.5 --plugin . --only-plugin cpu \
  --load-library libm.so.6 --cache relative --no-cache --compile-in child --run-in process --run-deadline 5 \
  --compile-deadline 5 --background --no-verify --force eager --disable-pass merge_siblings infer \
  --disable-pass simplify --repro repro --dump dump
exit $failed
