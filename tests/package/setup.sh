#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What ci/setup would download where nothing is there yet: on a machine with an NVIDIA driver also what its GPU needs, pinned; elsewhere
# nothing of that. And that CMake finds cuDNN's headers where those wheels put them: beside LibTorch, or in the environment of ci/python,
# with which a wheel is built on a machine without a GPU. Argument: the source folder.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/proc/driver/nvidia" "$work/none"

site=$work/site-packages nvidia=$work/site-packages/nvidia
for file in include/cudnn_frontend/graph_interface.h nvidia/cudnn/include/cudnn.h torch/include/ATen/ATen.h \
  nvidia/cu13/include/{cuda.h,cuda_bf16.h,crt/host_defines.h,nv/target}; do
  mkdir -p "$(dirname "$site/$file")"
  touch "$site/$file"
done
cat > "$work/CMakeLists.txt" << CMAKE
cmake_minimum_required(VERSION 3.25)
project(headers LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH $source/cmake)
set(KEIRIN_TORCH_ROOT $site/torch)
find_package(KeirinCudaHeaders REQUIRED)
find_package(KeirinCudnn REQUIRED)
foreach(pair "KEIRIN_CUDNN_INCLUDE=$nvidia/cudnn/include" "KEIRIN_CUDNN_CCCL_INCLUDE=$nvidia/cu13/include")
  string(REGEX MATCH "(.*)=(.*)" _ \${pair})
  if(NOT "\${\${CMAKE_MATCH_1}}" PATH_EQUAL "\${CMAKE_MATCH_2}")
    message(FATAL_ERROR "\${CMAKE_MATCH_1} is \${\${CMAKE_MATCH_1}}, not \${CMAKE_MATCH_2}")
  endif()
endforeach()
CMAKE
configure() {  # the folder of dependencies
  rm -rf "$work/headers"
  env -u KEIRIN_CUDNN_FRONTEND KEIRIN_DEPS="$1" cmake -S "$work" -B "$work/headers" > "$work/cmake.log" 2>&1 || {
    cat "$work/cmake.log"; exit 1; }
}
configure "$work/none"
deps=$work/elsewhere
mkdir -p "$deps"/{python-3.11,cuda-headers}/lib/python3.11/site-packages/nvidia
mv "$nvidia/cudnn" "$deps/python-3.11/lib/python3.11/site-packages/nvidia/"
mv "$site/include" "$deps/cuda-headers/lib/python3.11/site-packages/"
sed -i "s|KEIRIN_CUDNN_INCLUDE=$nvidia|KEIRIN_CUDNN_INCLUDE=$deps/python-3.11/lib/python3.11/site-packages/nvidia|" "$work/CMakeLists.txt"
configure "$deps"

plan() { env -u KEIRIN_TORCH KEIRIN_DEPS="$work/deps" KEIRIN_HARDWARE_ROOT="$1" "$source/ci/setup" --dry-run > "$2"; }
plan "$work" "$work/with"
plan "$work/none" "$work/without"
if ! grep -q 'torch==' "$work/without"; then
  echo "SKIPPED: the Python here has a torch of its own, which is used as it is"
  exit 0
fi
for name in cudnn cublas cuda-nvrtc nccl cudnn-frontend; do
  grep -Eq "for the NVIDIA GPU: .*nvidia-$name[a-z0-9-]*==[0-9]" "$work/with" || {
    echo "no pinned $name for a GPU:"; cat "$work/with"; exit 1; }
done
! grep -q 'for the NVIDIA GPU' "$work/without" || { echo "a GPU that is not there:"; cat "$work/without"; exit 1; }
[ ! -e "$work/deps" ] || { echo "a dry run wrote $(ls "$work/deps")"; exit 1; }
