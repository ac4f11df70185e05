#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a deployment engineer meets on a machine with nothing but a Debian: the packages of ci/package unpacked in a fresh root with
# LibTorch alone (no Python, no compiler), what NEEDS.txt lists installed by apt, `keirin bench mlp` run. Then, with a compiler installed,
# an example built against it, and a vendor's first hour as docs/write-a-plugin.md has it. By hand, as root:
#
#   tests/package/fresh_root.sh PACKAGES ROOT TORCH     PACKAGES: what ci/package made; ROOT: of debootstrap --variant=minbase
set -euo pipefail
packages=$1 root=$2 torch=$3
in_root() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive "$@"; }
# With its neighbours: a wheel's LibTorch finds CUDA's libraries in the folder nvidia beside it.
mkdir -p "$root/opt/wheels" "$root/opt/packages"
mountpoint -q "$root/opt/wheels" || mount --bind "$(dirname "$torch")" "$root/opt/wheels"
trap 'umount "$root/opt/wheels"' EXIT
libtorch=/opt/wheels/$(basename "$torch")
cp "$packages"/keirin* "$packages/NEEDS.txt" "$root/opt/packages"

echo "[1/5] the .deb with what it depends on"
in_root apt-get update -qq
in_root sh -c 'apt-get install -y -qq --no-install-recommends /opt/packages/keirin_*.deb' > /dev/null 2>&1
in_root sh -c '! command -v python3 && ! command -v g++' || echo "(this root has a Python or a compiler already)"
in_root ln -sfn "$libtorch" /usr/lib/keirin/torch
in_root keirin bench mlp --quiet --race-limit 1
in_root keirin plugins

echo "[2/5] the .tar.gz, anywhere"
in_root sh -c 'rm -rf /srv/k && mkdir -p /srv/k && tar -xzf /opt/packages/keirin-*.tar.gz -C /srv/k --strip-components=1'
in_root ln -s "$libtorch" /srv/k/lib/keirin/torch
in_root /srv/k/bin/keirin bench mlp --quiet --race-limit 1

echo "[3/5] an example built against it"
in_root apt-get install -y -qq --no-install-recommends g++ cmake ninja-build > /dev/null 2>&1
in_root cmake -S /srv/k/share/doc/keirin/examples/five_lines -B /tmp/five -G Ninja -DCMAKE_PREFIX_PATH=/srv/k > /dev/null
in_root cmake --build /tmp/five > /dev/null
in_root /tmp/five/five_lines /srv/k/share/keirin/zoo/small/mlp.pt2 16 64 | tail -1

echo "[4/5] a service, without LibTorch's headers"
in_root cmake -S /srv/k/share/doc/keirin/examples/service -B /tmp/service -G Ninja -DCMAKE_PREFIX_PATH=/srv/k > /dev/null
in_root cmake --build /tmp/service > /dev/null
in_root /tmp/service/service /srv/k/share/keirin/zoo/small/mlp.pt2 | tail -1

echo "[5/5] a vendor's first hour"
cp "$(dirname "$0")/pages.sh" "$root/opt/packages"
in_root bash /opt/packages/pages.sh /srv/k /srv/k/share/doc/keirin/docs/write-a-plugin.md=8 | grep -v '^\$'
