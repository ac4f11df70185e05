#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A plugin that lies in a searched folder and that nobody named: not even opened until it is allowed, and only as long as its bytes and the
# list of allowed plugins are what they were. The plugin writes a file when it is opened. Arguments: the keirin command, the folder of the
# fault plugins.
set -euo pipefail
keirin=$1 faults=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_DATA_HOME=$work/data XDG_CONFIG_HOME=$work/config KEIRIN_CACHE=$work/cache KEIRIN_FAULT_MARK=$work/opened
unset KEIRIN_PLUGIN_PATH
umask 022
found=$XDG_DATA_HOME/keirin/plugins/mine list=$XDG_CONFIG_HOME/keirin/allowed_plugins
mkdir -p "$found"
cp "$faults/marks_load/"* "$found"
library=$found/libfault_marks_load.so
guid=$(sed -n 's/^guid = "\(.*\)"/\1/p' "$found/manifest.toml")

# look WHAT used|refused [PATTERN of the reason]: how the plugin is listed, and whether its library was opened.
look() {
  rm -f "$work/opened"
  rm -rf "$work/cache"  # a verdict that is remembered would not open it again
  "$keirin" plugins --why > "$work/why" 2>&1 || { cat "$work/why"; exit 1; }
  case $2 in
    used) grep -Eq '^marks_load .* used$' "$work/why" && [ -e "$work/opened" ] ;;
    refused) grep -Eq "^marks_load .*not used: .*$3" "$work/why" && [ ! -e "$work/opened" ] ;;
  esac || { echo "$1: not $2, or the library was opened: $(ls "$work")"; cat "$work/why"; exit 1; }
  echo "ok: $1"
}
refuses() {  # WHAT, PATTERN, words of the command
  local what=$1 pattern=$2
  shift 2
  if "$keirin" plugin "$@" > "$work/said" 2>&1; then echo "$what: it was not refused"; exit 1; fi
  grep -Eq "$pattern" "$work/said" || { echo "$what: not found: $pattern"; cat "$work/said"; exit 1; }
  echo "ok: $what"
}

look "unknown" refused "you have not allowed it, so nothing of it was loaded"
grep -q "keirin plugin allow $library" "$work/why"
rm -f "$work/opened"
"$keirin" run mlp --quiet --race-limit 0.2 > /dev/null
[ ! -e "$work/opened" ] || { echo "a run opened an unknown plugin"; exit 1; }

KEIRIN_PLUGIN_PATH=$found look "named by the variable" used
"$keirin" plugins --why --plugin "$found" | grep -Eq '^marks_load .* used$'

rm -f "$work/opened"
"$keirin" plugin allow "$library" > "$work/said"
[ ! -e "$work/opened" ] || { echo "allowing opened it"; exit 1; }
grep -q "guid $guid" "$work/said"
look "allowed" used

printf 'x' >> "$library"
look "changed bytes" refused "not the one that you allowed: its SHA-256 is"
"$keirin" plugin allow "$found" > /dev/null
look "allowed again" used
[ "$(wc -l < "$list")" = 2 ] || { echo "allowed twice is not one line"; cat "$list"; exit 1; }

cp "$list" "$work/good"
for damage in 'keirin allowed plugins 2' "$guid 12" "$(sed -n 2p "$list") more" "$(sed -n 2p "$list")"; do
  { cat "$work/good"; echo "$damage"; } > "$list"
  [ "$damage" != 'keirin allowed plugins 2' ] || echo "$damage" > "$list"
  look "damaged: $damage" refused "the list of allowed plugins is damaged"
done
refuses "a damaged list is not written over" "damaged" allow "$found"
head -c -1 "$work/good" > "$list"
look "cut" refused "the list of allowed plugins is damaged"
cp "$work/good" "$list"

chmod o+w "$list"
look "the list is writable by others" refused "the list of allowed plugins is not read: others could have changed it"
chmod o-w "$list"
chmod o+w "$XDG_CONFIG_HOME/keirin"
look "its folder is" refused "the list of allowed plugins is not read: others could have changed it"
chmod o-w "$XDG_CONFIG_HOME/keirin"
mv "$list" "$list.real"
ln -s "$list.real" "$list"
look "it is a link" refused "the list of allowed plugins is not read"
mv "$list.real" "$list"
if [ "$(id -u)" = 0 ]; then
  chown 12345 "$list"
  look "it is somebody else's" refused "the list of allowed plugins is not read: others could have changed it"
  chown 0 "$list"
fi
chmod o+w "$library"
look "the library is writable by others" refused "others could have changed it"
refuses "such a library is not allowed" "others could have changed it" allow "$library"
chmod o-w "$library"
look "all is as it was" used

refuses "a guid that is none" "is no guid" revoke marks_load
refuses "a guid of nobody's" "those that are allowed: $guid" revoke 00000000-0000-0000-0000-000000000001
refuses "no plugin" "there is no plugin" allow "$work"
"$keirin" plugin revoke "$guid" > /dev/null
look "revoked" refused "you have not allowed it"

# An unknown plugin under the guid of one that is trusted does not take that one's place, and does not have both refused.
sed -i "s/^guid = .*/$(grep '^guid' "$faults/good/manifest.toml")/" "$found/manifest.toml"
KEIRIN_PLUGIN_PATH=$faults/good "$keirin" plugins --why > "$work/why"
grep -Eq '^good .* used$' "$work/why" || { echo "a foreign twin has a named plugin refused"; cat "$work/why"; exit 1; }
echo "ok: a twin in a searched folder harms nobody"
