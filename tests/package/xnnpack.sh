#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A third party's engine, from the SDK alone: examples/xnnpack built against the installed package, certified, and run on models of the zoo
# beside LibTorch, which exports an XNNPACK of its own. Arguments: the build folder, the source folder.
set -euo pipefail
build=$1 source=$2
[ "$(uname -m)" = x86_64 ] || { echo "SKIPPED: its known failures are those of x86-64"; exit 77; }
for header in xnnpack.h pthreadpool.h; do
  [ -e /usr/include/$header ] || { echo "SKIPPED: no $header: apt-get install libxnnpack-dev libpthreadpool-dev"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/install.log"
keirin=$work/usr/bin/keirin library=$work/build/plugins/xnnpack/libxnnpack.so
export KEIRIN_CACHE=$work/cache
cd "$work"
expect() {  # file, pattern
  grep -Eq -- "$2" "$1" || { echo "not found in $1: $2"; cat "$1"; exit 1; }
}

echo "[1/4] built out of tree, without a warning"
cp -r "$source/examples/xnnpack" xnnpack
cmake -S xnnpack -B build -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" > build.log 2>&1 && cmake --build build >> build.log 2>&1 ||
  { tail -20 build.log; exit 1; }
if grep -q "warning:" build.log; then cat build.log; exit 1; fi
"$keirin" plugins --why --plugin build > why
expect why '^xnnpack 0\.1\.0 +used'
# XNNPACK's loops are the host's: none of them finds the pool that came with it, or LibTorch's.
mkdir bindings
LD_DEBUG=bindings LD_DEBUG_OUTPUT=$work/bindings/of KEIRIN_CACHE=$work/fresh "$keirin" plugins --plugin build > why
grep -h "binding file [^ ]*libXNNPACK[^ ]* .*\`pthreadpool_" bindings/of.* > bound || { echo "XNNPACK binds no pool"; exit 1; }
if grep -v 'to [^ ]*libxnnpack_threads\.so' bound; then echo "XNNPACK's loops run on a pool of its own"; exit 1; fi

echo "[2/4] certified"
# Known failures are those of Debian 12's XNNPACK; elsewhere only what has nothing to do with them is asked.
if grep -q '^VERSION_ID="12"' /etc/os-release; then
  "$keirin" certify "$library" --known xnnpack/known_failures.txt > certified || { cat certified; exit 1; }
  expect certified '^xnnpack: passed'
  expect certified ' hardswish [1-9]'
else
  for group in A B C D G I J; do "$keirin" certify "$library" --case $group > certified || { cat certified; exit 1; }; done
fi
# A certificate that hides what it should not would pass without the list as well.
if "$keirin" certify "$library" --case operators/relu --quick > bare && grep -q '^VERSION_ID="12"' /etc/os-release; then
  echo "relu of a NaN passes: known_failures.txt is out of date"; exit 1
fi

echo "[3/4] whole models in its regions, verified"
for model in mlp unet; do
  "$keirin" explain $model --plugin build --only-plugin xnnpack --force compiled --race-limit 0.2 --quiet > $model.said ||
    { cat $model.said; exit 1; }
  expect $model.said "^$model on cpu, .* threads: xnnpack/"
  expect $model.said '^\| r0 +\| xnnpack +\| +[1-9]'  # of how many operators, the race of its two plans says
done

echo "[4/4] in a worker, without LibTorch, too"
"$keirin" run mlp --plugin build --only-plugin xnnpack --force compiled --race-limit 0.2 --run-in worker > worker 2>&1 ||
  { cat worker; exit 1; }
expect worker '^mlp on cpu, .* threads: xnnpack/'
