#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs each fuzz target of build-fuzz for a number of seconds (60) from seeds of this tree, within 10 seconds and 1 GiB an input.
# What a target finds is left in build-fuzz. Words after the seconds are the targets, else all. Needs clang-19 and libclang-rt-19-dev:
#   cmake --preset fuzz && cmake --build --preset fuzz && tests/fuzz/run.sh [60 [matrix ...]]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
readers=("${@:2}")
((${#readers[@]})) || readers=(pt2 graph_bytes text artifact manifest ledger matrix)
seeds=$(mktemp -d)
trap 'rm -rf "$seeds"' EXIT
mkdir "$seeds"/{pt2,graph_bytes,text,artifact,manifest,ledger,matrix}
cp tests/data/pt2/*.pt2 "$seeds/pt2"
find tests -name '*.ir' -exec cp -t "$seeds/text" {} +
find . -path ./build\* -prune -o -name manifest.toml -exec cp -t "$seeds/manifest" --backup=numbered {} +
status=0
python3 tests/page/store.py "$seeds/store" --cells 4
for log in "$seeds"/store/log/run-0*.jsonl; do  # without most samples, so that a seed is short
  awk '!/"kind":"sample"/ || ++samples <= 8' "$log" > "$seeds/matrix/$(basename "$log")"
done
for reader in "${readers[@]}"; do
  printf 'x' > "$seeds/$reader/one"
  log=$seeds/$reader.log
  build-fuzz/fuzz_$reader -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix=build-fuzz/found-$reader- "$seeds/$reader" > "$log" 2>&1 || { tail -40 "$log"; status=1; }
  echo "FUZZ $reader inputs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log") seconds=$seconds"
done
exit "$status"
