#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A vendor that generates code through ours: the smallest of Keirin's plugins, a processor's without a library, copied out of the tree,
# built against the installed package with the component `processor` and certified. Then the two other components link, and one that there
# is not is named. Arguments: the build folder, the source folder.
set -euo pipefail
build=$1 source=$2
case $(uname -m) in
  x86_64) isa=cpu ;;
  aarch64) isa=arm ;;
  *) echo "SKIPPED: no instruction set for $(uname -m)"; exit 77 ;;
esac
[ -e "$build/plugins/processor/libkeirin_processor.a" ] || { echo "SKIPPED: Keirin was built without LLVM 19"; exit 77; }
llvm=$(sed -n 's/^LLVM_DIR:PATH=//p' "$build/CMakeCache.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/install.log"
keirin=$work/usr/bin/keirin
export KEIRIN_CACHE=$work/cache
cd "$work"
expect() {  # file, pattern
  grep -Eq -- "$2" "$1" || { echo "not found in $1: $2"; tail -40 "$1"; exit 1; }
}
configure() {  # folder
  cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/usr" -DLLVM_DIR="$llvm" > "$1.log" 2>&1
}
project() {  # folder, components, rest of CMakeLists.txt
  mkdir -p "$1"
  cat > "$1/CMakeLists.txt" << CMAKE
cmake_minimum_required(VERSION 3.20)
project(acme VERSION 0.1.0 LANGUAGES C CXX)
set(CMAKE_BUILD_TYPE Release)
find_package(keirin 0.1 REQUIRED COMPONENTS $2)
$3
CMAKE
}

echo "[1/3] a processor's plugin from the package alone"
project acme processor "keirin_add_plugin(acme SOURCES plugin.cc $isa/device.cc LIBS keirin::processor)
target_include_directories(acme PRIVATE \${PROJECT_SOURCE_DIR})
target_link_options(acme PRIVATE -Wl,--gc-sections)"
mkdir "acme/$isa"
cp "$source/$isa/device.h" "$source/$isa/device.cc" "$source/$isa/target.def" "acme/$isa"
"$keirin" plugin new guid > /dev/null
guid=$(sed -n 's/^guid = "\(.*\)"/\1/p' guid/manifest.toml.in)
sed "s/guid = .*/guid = \"$guid\"/; s/\"guid\"/\"acme\"/; s/libguid/libacme/" guid/manifest.toml.in > acme/manifest.toml.in
cat > acme/plugin.cc << CC
#include "$isa/device.h"
#include "plugins/processor/plugin.h"

namespace {
const keirin::processor::Vendor kVendor{
    .isa = &keirin::$isa::isa(), .look = keirin::$isa::look, .library = nullptr, .traits = {.exec_flags = KRN_EXEC_CONCURRENT}};
std::unique_ptr<keirin::kit::Plugin> make(const keirin::kit::Host&, const krn_config& config) {
  return keirin::processor::make_plugin(kVendor, config);
}
}  // namespace

KRN_PLUGIN((keirin::kit::About{.guid = "$guid",
                               .version = "0.1.0",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           make)
CC
configure acme && cmake --build acme/build >> acme.log 2>&1 || { tail -30 acme.log; exit 1; }
if grep -q "warning:" acme.log; then cat acme.log; exit 1; fi
library=acme/build/plugins/acme/libacme.so
[ "$(nm -D --defined-only --format=posix $library | cut -d' ' -f1)" = krn_plugin_entry ] || { nm -D --defined-only $library; exit 1; }
"$keirin" certify $library --quick > certified || { tail -40 certified; exit 1; }
expect certified '^acme: passed'
expect certified '^graphs +[1-9][0-9]* passed, 0 failed'
"$keirin" explain sage --plugin acme/build --only-plugin acme --force compiled --race-limit 0.2 --quiet > sage.said ||
  { cat sage.said; exit 1; }
expect sage.said '^\| r[0-9]+ +\| +acme +\| +[1-9][0-9] +\|.* [1-3] kernels, 0 library calls'  # many operators, fused

echo "[2/3] the other components"
project parts "codegen gpu" "add_executable(parts main.cc)
target_link_libraries(parts PRIVATE keirin::codegen keirin::gpu keirin::kit)"
cat > parts/main.cc << 'CC'
#include "plugins/codegen/backend.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/driver.h"
#include "plugins/gpu/vendor_plugin.h"
#include "plugins/shell/shell.h"
int main() { return 0; }
CC
configure parts && cmake --build parts/build >> parts.log 2>&1 || { tail -30 parts.log; exit 1; }
parts/build/parts

echo "[3/3] a component that there is not"
project none vulkan ""
if configure none; then echo "a component of no name was found"; exit 1; fi
expect none.log 'Keirin has no component vulkan here'
