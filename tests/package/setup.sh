#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What ci/setup would download where nothing is there yet: on a machine with an NVIDIA driver also what its GPU needs, pinned; elsewhere
# nothing of that. Argument: the source folder.
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/proc/driver/nvidia" "$work/none"
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
