#!/usr/bin/env bash
# Installs BUILD into a fresh folder and builds the examples against it: consume.sh BUILD SOURCE
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/install.log"
export KEIRIN_CACHE="$work/cache"
model="$work/usr/share/keirin/zoo/small/mlp.pt2"

echo "[1/6] find_package(keirin) with keirin::torch"
cmake -S "$source/examples/five_lines" -B "$work/five" -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" > "$work/five.log"
cmake --build "$work/five" >> "$work/five.log" 2>&1 || { tail -20 "$work/five.log"; exit 1; }
"$work/five/five_lines" "$model" 16 64

echo "[2/6] a module of torch::nn, with keirin::torch"
cmake -S "$source/examples/cpp_module" -B "$work/module" -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" > "$work/module.log"
cmake --build "$work/module" >> "$work/module.log" 2>&1 || { tail -20 "$work/module.log"; exit 1; }
"$work/module/cpp_module"

echo "[3/6] what a service does: keirin::keirin, no torch header"
cmake -S "$source/examples/service" -B "$work/service" -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" > "$work/service.log"
cmake --build "$work/service" >> "$work/service.log" 2>&1 || { tail -20 "$work/service.log"; exit 1; }
"$work/service/service" "$model" | tee "$work/service.said"
grep -q '^event: mlp: mlp on cpu' "$work/service.said"

echo "[4/6] pkg-config, no torch header"
lib=$(dirname "$(find "$work/usr" -name keirin.pc)")
PKG_CONFIG_PATH="$lib" g++ -std=c++17 "$source/examples/plain_views/main.cc" -o "$work/plain" \
  $(PKG_CONFIG_PATH="$lib" pkg-config --cflags --libs keirin)
"$work/plain" "$model" 16 64

echo "[5/6] the installed command finds its own plugins and zoo"
"$work/usr/bin/keirin" plugins --why
"$work/usr/bin/keirin" run mlp --quiet
# Where the library looks for launch replay; without it calls are only launched step by step, and nothing fails.
[ ! -e "$build/libkeirin_cuda_graph.so" ] || [ -e "$(dirname "$(find "$work/usr" -name libkeirin.so)")/keirin/libkeirin_cuda_graph.so" ] ||
  { echo "launch replay was built and not installed"; exit 1; }

echo "[6/6] a broken file ends in a clear error"
head -c 1000 "$model" > "$work/torn.pt2"
if "$work/plain" "$work/torn.pt2" 32 64 2> "$work/error"; then echo "a torn file was accepted"; exit 1; fi
cat "$work/error"
grep -q corrupt "$work/error"
