#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin plugin new: what it writes, and what it refuses without writing anything. Arguments: the command, the skeleton's folder.
set -uo pipefail
keirin=$1 skeleton=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0
fault() { echo "$1"; failed=1; }
expect() {  # exit code, part of what is said, words
  local code=$1 said=$2 got
  shift 2
  "$keirin" plugin new "$@" > out 2>&1
  got=$?
  [[ $got == "$code" ]] && grep -qF -- "$said" out || fault "keirin plugin new $*: exit code $got, not $code with \"$said\": $(cat out)"
}
guid_of() { sed -n 's/^guid = "\(.*\)"/\1/p' "$1/manifest.toml.in"; }

mkdir sub
expect 0 "cmake -S acme -B acme/build" acme
expect 0 "$folder/sub/acme_npu2 is a plugin" acme_npu2 --into sub
[ "$(ls acme)" = "$(ls "$skeleton")" ] || fault "the copy holds other files than the skeleton: $(ls acme)"
[ -z "$(grep -r skeleton acme)" ] || fault "the old name is left: $(grep -r skeleton acme)"
grep -q 'name = "acme"' acme/manifest.toml.in && grep -q 'libacme.so' acme/manifest.toml.in || fault "the manifest is not acme's"
grep -q '^namespace acme_plugin {' acme/launch.cc || fault "the namespace is not acme's"
[[ $(guid_of acme) =~ ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$ ]] || fault "no guid: $(guid_of acme)"
grep -q "\"$(guid_of acme)\"" acme/plugin.cc || fault "plugin.cc has another guid than the manifest"
[ "$(guid_of acme)" != "$(guid_of sub/acme_npu2)" ] && [ "$(guid_of acme)" != "$(guid_of "$skeleton")" ] || fault "a guid was given twice"

before=$(find . -type f ! -name out | sort | xargs sha256sum)
expect 2 "$folder/acme is there already" acme
expect 2 "is there already" acme_npu2 --into sub
ln -s nowhere dangling
expect 2 "is there already" dangling
for bad in Acme 2acme acme-npu a/b .. '' 'a b' "$(printf 'a%.0s' {1..41})"; do expect 2 "cannot be a plugin's name" "$bad"; done
expect 2 "a plugin of Keirin's" cpu
expect 2 "CMake makes itself" test
expect 2 "there is no folder $folder/nowhere" bee --into nowhere
mkdir shut && chmod 555 shut
[ -w shut ] || expect 3 "could not make $folder/shut" bee --into shut  # root may write anywhere
[ "$(find . -type f ! -name out | sort | xargs sha256sum)" = "$before" ] || fault "a refusal wrote something"
[ -z "$(find . -name '.*.[0-9]*')" ] || fault "a draft was left"
exit $failed
