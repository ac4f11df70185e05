# SPDX-License-Identifier: Apache-2.0
# How tests of `keirin matrix` begin; sourced with the keirin command. Makes $work, and stand-ins in it.
# shellcheck shell=bash disable=SC2034
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
keirin=$(realpath "$1")
python=$(python3 -c 'import sys; print(sys.executable)')  # a worker is started hundreds of times
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KEIRIN_CACHE=$work/cache
cd "$work" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# exits CODES COMMAND...: the exit code is one of the words of CODES
exits() {
  local wanted=$1 code=0
  shift
  "$@" > out 2> err || code=$?
  [[ " $wanted " == *" $code "* ]] || { fail "exit $code, not $wanted: $*"; tail -n 15 out err; }
}
holds() { grep -q -- "$2" "$1" || { fail "$1 does not hold \"$2\""; cat "$1"; }; }
# stand_in FILE WORDS...: a keirin command that runs no model
stand_in() {
  local file=$1
  shift
  printf '#!/bin/sh\nexec %s -S -E %s/stand_in.py %s "$@"\n' "$python" "$here" "$*" > "$file"
  chmod +x "$file"
}
# case_of MODEL, cases_of MODELS...: a set of cases
case_of() { echo "$1/small/f32/infer/single/default"; }
cases_of() { for model in "$@"; do case_of "$model"; done; }
