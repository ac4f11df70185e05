#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A good plugin beside one with a missing symbol, one for another processor and one that crashes: the list names each with its
# reason, and a bench beside them ends right. Arguments: the keirin command, the folder of the fault plugins.
set -euo pipefail
keirin=$1 faults=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$faults/good" "$folder/foreign"
printf '\xb7\x00' | dd of="$folder/foreign/libfault_good.so" bs=1 seek=18 conv=notrunc status=none  # e_machine: AArch64
sed -i 's/^name = .*/name = "foreign"/; s/fa000000-/fb000000-/' "$folder/foreign/manifest.toml"
cd "$faults"  # a path may be typed relative to where one is
plugins=(--plugin good --plugin "$faults/missing_symbol" --plugin "$folder/foreign" --plugin "$faults/crash_initialize" \
  --cache "$folder/cache")
"$keirin" plugins --why "${plugins[@]}" | tee "$folder/why"
"$keirin" bench mlp --quiet "${plugins[@]}" | tee "$folder/bench"
failed=0
expect() {
  grep -Eq "$1" "$2" || { echo "not found: $1"; failed=1; }
}
expect '^good .* used$' "$folder/why"
expect '^missing_symbol .*not used: .*symbol' "$folder/why"
expect '^foreign .*not used: .*(AArch64|aarch64|machine)' "$folder/why"
expect '^crash_initialize .*not used: .*(crash|signal|died)' "$folder/why"
expect '^\| mlp .*(compiled|eager|replay)' "$folder/bench"
! grep -q 'not verified' "$folder/bench" || { echo "the bench did not end right"; failed=1; }
exit $failed
