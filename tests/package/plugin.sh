#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a plugin's author meets: the skeleton built from the installed package alone, by each compiler that is here, loaded and run; and
# a null write in its compile, which costs an attempt and not the host. Argument: the build folder.
set -euo pipefail
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/install.log"
keirin=$work/usr/bin/keirin
cd "$work"
expect() {  # file, pattern
  grep -Eq -- "$2" "$1" || { echo "not found in $1: $2"; cat "$1"; exit 1; }
}

compile() {  # compiler, source folder
  local begin=$SECONDS
  cmake -S "$2" -B "$2/build" -G Ninja -DCMAKE_CXX_COMPILER="$1" -DCMAKE_PREFIX_PATH="$work/usr" > "$2.log" 2>&1 &&
    cmake --build "$2/build" >> "$2.log" 2>&1 || { tail -20 "$2.log"; exit 1; }
  grep -q "warning:" "$2.log" && { cat "$2.log"; exit 1; }
  [ $((SECONDS - begin)) -lt 30 ] || { echo "$1 took $((SECONDS - begin)) s"; exit 1; }
}

# Runs a model of the zoo of which the plugin can take an add with the relu behind it.
run_model() {  # folder, words of the command
  local folder=$1
  shift
  "$keirin" run sage --race-limit 1 --plugin "$folder/build" --only-plugin skeleton --cache "$folder/cache" "$@" > "$folder/run" 2>&1
}

for compiler in g++ clang++; do
  command -v $compiler > /dev/null || { echo "[skipped] $compiler is not here"; continue; }
  echo "[$compiler] builds, loads and runs the installed skeleton"
  cp -r usr/share/keirin/skeleton $compiler
  compile $compiler $compiler
  library=$compiler/build/plugins/skeleton/libskeleton.so
  [ "$(nm -D --defined-only --format=posix $library | cut -d' ' -f1)" = krn_plugin_entry ] || { nm -D --defined-only $library; exit 1; }
  readelf -d $library > $compiler.elf
  expect $compiler.elf 'NODELETE'
  expect $compiler.elf 'BIND_NOW|FLAGS.*NOW'
  readelf -n $library > $compiler.notes
  expect $compiler.notes 'Build ID: [0-9a-f]{40}'
  KEIRIN_PLUGIN_PATH=$work/$compiler/build "$keirin" plugins --why --cache $compiler/cache > $compiler.why
  expect $compiler.why '^skeleton 0\.1\.0 +used'
  expect $compiler.why 'cpu:0 +used as skeleton on the host CPU'
  run_model $compiler --force compiled || { cat $compiler/run; exit 1; }
  expect $compiler/run '^sage on cpu, .* threads: skeleton/all'
  expect $compiler/run '^\| r0 +\| skeleton +\| +2 '
done

echo "[crash] a null write in compile: eager answers, the region is quarantined, the host lives"
cp -r usr/share/keirin/skeleton crash
sed -i 's/^  Program compile() {$/&\n    *static_cast<volatile int*>(nullptr) = 1;/' crash/compile.cc
expect crash/compile.cc 'nullptr.* = 1'
compile g++ crash
run_model crash || { echo "the host died or failed: $?"; cat crash/run; exit 1; }
expect crash/run '^sage on cpu, .* threads: eager'
expect crash/run 'skeleton: crashed in compile \(signal 11.*not tried again'
expect crash/run '^0: f32'
"$keirin" cache --cache crash/cache bad > crash/bad
expect crash/bad '^skeleton .*crashed in compile'
