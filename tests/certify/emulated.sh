#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin certify of the AMD plugin over the emulated HIP: A to K whole, every check passed or with a reason that is the plugin's own; of the
# sheets, for which LibTorch has no such device here, that they are not run, so that nothing is certified. Without any device the same.
# Arguments: the keirin command, the plugin's folder, the folder of the emulated libraries.
set -uo pipefail
keirin=$1 plugin=$2 emulated=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$(dirname "$0")/../standin/machine" "$folder/machine"
cd "$folder" || exit 1
failed=0
json() {
  python3 -c "import json, sys; c = json.load(open('c.json')); g = {g['name']: g for g in c['groups']}; sys.exit(0 if ($1) else 1)" ||
    { echo "not so in the JSON: $1"; cat out; failed=1; }
}
ends() { [ "$1" -eq 1 ] && grep -Eq "$2" out || { echo "exit code $1, and not said: $2"; cat out; failed=1; }; }

KEIRIN_HARDWARE_ROOT=$folder/machine LD_LIBRARY_PATH=$emulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
  "$keirin" certify "$plugin" --json c.json > out 2>&1
ends $? '^H streams +5 passed, 0 failed'
json "c['device']['uid'] == 'pci:0000:03:00.0' and c['device']['driver'] == 'amdgpu stand-in'"
json "not c['passed'] and c['verdict'].startswith('incomplete')"
json "all(g[n]['failed'] == g[n]['not_run'] == g[n]['not_tried'] == 0 and g[n]['passed'] > 0 for n in 'ABCDEFGHIJK')"
json "[k['outcome'] for k in g['H']['checks'] if k['name'] == 'H/does_not_wait'] == ['passed'] and g['H']['passed'] == 5"
json "all(g[n]['not_run'] == 1 and g[n]['passed'] == 0 and 'rocm:0' in g[n]['not_run_because'] for n in ('operators', 'bytes', 'graphs'))"

LD_LIBRARY_PATH=$emulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$keirin" certify "$plugin" --quick > out 2>&1
ends $? '^F numerics +0 passed, 0 failed, 0 unclaimed, 17 not run$'
ends 1 'not run: run all_sizes .*: it drives no device of this machine; cpu:0: not an AMD GPU'
ends 1 '^rocm: incomplete: this machine cannot ask all of it, so that nothing is certified$'
exit $failed
