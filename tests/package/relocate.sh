#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci/package: its archive unpacked and moved runs with LibTorch named by the environment or by a link, and an example builds against it;
# the Debian package holds the same files. Arguments: the build folder, the source folder, LibTorch's folder.
set -euo pipefail
build=$1 source=$2 torch=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$source/ci/package" --build "$build" --out "$work/out"
cat "$work/out/NEEDS.txt"
cd "$work"
tar -xzf out/keirin-*.tar.gz
mv keirin-* moved
grep -q '^  libc6 (>= ' moved/share/doc/keirin/NEEDS.txt

echo "[1/4] without LibTorch the loader says what is missing"
clean() { env -i HOME="$work/home" PATH=/usr/bin:/bin "$@"; }
if clean moved/bin/keirin --version 2> error; then echo "it found a LibTorch that nobody named"; exit 1; fi
grep -q 'libtorch_cpu.so' error

echo "[2/4] LD_LIBRARY_PATH names LibTorch"
mkdir home
clean LD_LIBRARY_PATH="$torch/lib" moved/bin/keirin bench mlp --quiet --race-limit 1 | tee table
grep -q '^| mlp ' table
clean LD_LIBRARY_PATH="$torch/lib" moved/bin/keirin plugins --why > why
grep -Eq '^cpu|^arm' why || { cat why; exit 1; }

echo "[3/4] a link names LibTorch; an example builds against the package"
ln -s "$torch" moved/lib/keirin/torch
clean moved/bin/keirin run mlp --quiet
clean moved/bin/keirin plugin new mine
clean cmake -S moved/share/doc/keirin/examples/five_lines -B five -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" > five.log
clean cmake --build five >> five.log 2>&1 || { tail -20 five.log; exit 1; }
clean KEIRIN_CACHE="$work/cache" five/five_lines moved/share/keirin/zoo/small/mlp.pt2 16 64

echo "[4/4] the Debian package"
dpkg-deb --field out/keirin_*.deb Depends | tee depends
grep -q 'libsodium23' depends
dpkg-deb --contents out/keirin_*.deb > contents
grep -q 'root/root.* ./usr/bin/keirin$' contents
