#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# rocm_table over models: takes their graphs as plugins see them from `keirin explain`, then compiles. 77 where nothing compiles for any
# set.
# Usage: compiled.sh KEIRIN ROCM_TABLE [--every N] [--targets A,B] MODEL.pt2...
set -uo pipefail
keirin=$1 table=$2
shift 2
options=()
while [[ ${1-} == --* ]]; do options+=("$1" "$2"); shift 2; done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
graphs=()
for model in "$@"; do
  size=$(basename "$(dirname "$model")") name=$(basename "$model" .pt2)
  # The graph is the same for all plugins, and nothing is compiled, judged or timed for it.
  KEIRIN_DUMP="$folder/$size.$name" "$keirin" explain "$model" --no-cache --compile never > "$folder/out" 2>&1
  graph=$(echo "$folder/$size.$name"/*-write_bodies.ir)
  if [ ! -s "$graph" ] && grep -q '^segments, between which' "$folder/out"; then
    echo "$model is compiled in segments, whose graphs nothing writes before a call: left out"
    continue
  fi
  if [ ! -s "$graph" ]; then echo "$model gave no graph:"; tail -n 20 "$folder/out"; exit 1; fi
  graphs+=("$graph")
done
"$table" "${options[@]}" "${graphs[@]}" > "$folder/table"
code=$?
cat "$folder/table"
echo "of ${#graphs[@]} models"
if grep -q '^COMPILED targets=0' "$folder/table"; then exit 77; fi
exit $code
